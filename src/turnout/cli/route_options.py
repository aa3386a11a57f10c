"""The options of every command that makes a route, and the request that they say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.output import some_path

if TYPE_CHECKING:
    from turnout.machine import Inventory
    from turnout.routing import RouteRequest

MAX_INVENTORY = 16 << 20

BundleArgument = Annotated[Path, typer.Argument(help="A bundle's directory.", parser=some_path)]
EpOption = Annotated[
    str | None,
    typer.Option(
        "--ep",
        metavar="NAME",
        help="Run every stage on this EP: an alias or full name, in any case (cpu, openvino, ...).",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="config|auto|cpu|gpu|npu",
        help="Run every stage on this kind of device, by the best EP for it that this machine has. "
        "config, the default, respects the bundle's own configuration; auto takes the best device. "
        "With --ep: that EP on that device.",
    ),
]
StageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        metavar="NAME=EP[@DEVICE]",
        help="Route one stage; it outranks --ep and --device. NAME=config leaves that stage as the "
        "bundle says. Repeatable.",
    ),
]
ScopeOption = Annotated[
    str,
    typer.Option(
        "--scope",
        metavar="pipeline|accelerated",
        help="What --ep and --device reach: every stage, or only those that the bundle does not "
        "run on the CPU EP.",
    ),
]
ProviderOptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--provider-option",
        metavar="[STAGE:]KEY=VALUE",
        help="An option for the EP, on top of what the bundle or the catalog gives. Repeatable.",
    ),
]
SessionOptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--session-option",
        metavar="[STAGE:]KEY=VALUE",
        help="A session option of onnxruntime, for one stage or for all. Repeatable.",
    ),
]
InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        metavar="FILE",
        help="Decide for the machine that wrote FILE with: turnout devices --json. Needs --ep, "
        "--device, --stage or --reproducible.",
    ),
]
ExplainInventoryOption = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        metavar="FILE",
        help="Explain for the machine that wrote FILE with: turnout devices --json.",
    ),
]
RouteOption = Annotated[
    Path | None,
    typer.Option(
        "--route",
        metavar="FILE",
        help="Take the route that was saved in FILE, instead of the options above.",
    ),
]
SaveRouteOption = Annotated[
    Path | None,
    typer.Option(
        "--save-route",
        metavar="FILE",
        help="Save what is decided in FILE, for --route. Replaces a saved route, and no other "
        "file.",
    ),
]
ReproducibleOption = Annotated[
    bool,
    typer.Option(
        "--reproducible",
        help="Exact arithmetic on every EP that can; slower, so that answers agree.",
    ),
]


@dataclass(frozen=True)
class RouteOptions:
    """The options that say a route, for `turnout.cli.taking`."""

    ep: EpOption = None
    device: DeviceOption = "config"
    stage: StageOption = None
    scope: ScopeOption = "pipeline"
    provider_option: ProviderOptionOption = None
    session_option: SessionOptionOption = None
    reproducible: ReproducibleOption = False
    route: RouteOption = None

    def request(self) -> RouteRequest:
        """What is asked for. Raises `UsageError`, also where a saved route is given as well."""
        from turnout.routing.request import RouteRequest, parse_option, parse_stage

        request = RouteRequest(
            ep=self.ep,
            device=self.device.strip().lower(),
            stages=tuple(parse_stage(text) for text in self.stage or ()),
            scope=self.scope.strip().lower(),
            provider_options=tuple(
                parse_option(text, "--provider-option context:htp_performance_mode=burst")
                for text in self.provider_option or ()
            ),
            session_options=tuple(
                parse_option(text, "--session-option intra_op_num_threads=4")
                for text in self.session_option or ()
            ),
            reproducible=self.reproducible,
        )
        exclusive(self.route, request)
        return request


def exclusive(route: Path | None, request: RouteRequest) -> None:
    """Raise `UsageError` where a saved route is given, and something else is asked for as well."""
    from turnout.errors import UsageError
    from turnout.routing.request import RouteRequest

    if route is not None and request != RouteRequest():
        raise UsageError(
            "A saved route is a whole decision, which nothing is added to.",
            found=f"--route {route} with {request}",
            expected="--route, or the other options of a route",
        )


def inventory_from(path: Path | None, request: RouteRequest | None = None) -> Inventory | None:
    """The inventory in the file of `--inventory`, None without one. Raises `UsageError`.

    One that the `request` would not use is refused: the bundle would run as it is configured,
    and nothing would tell that the file was not looked at.
    """
    from turnout.errors import UsageError
    from turnout.machine import Inventory

    if path is None:
        return None
    inventory = Inventory.from_json(_read(path), where=path)
    if request is not None and not (request.reroutes or request.reproducible):
        raise UsageError(
            "An inventory says for which machine to decide, and nothing is to be decided.",
            found=f"--inventory {path}",
            expected="--ep, --device, --stage or --reproducible with it",
        )
    return inventory


def _read(path: Path) -> bytes:
    from turnout.errors import UsageError

    try:
        with path.open("rb") as file:
            data = file.read(MAX_INVENTORY + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"Cannot read the inventory {path}: {reason}.", where=path) from error
    if len(data) > MAX_INVENTORY:
        raise UsageError(
            "The inventory is too large.", expected=f"at most {MAX_INVENTORY} bytes", where=path
        )
    return data
