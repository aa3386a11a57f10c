"""What a caller asks of a route: values, and the words that a command line says them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnout import catalog
from turnout.errors import UnknownDeviceError, UsageError

CONFIG = "config"
AUTO = "auto"
DEVICE_WORDS = (CONFIG, AUTO, "cpu", "gpu", "npu")
SCOPES = ("pipeline", "accelerated")


class StageRequest(NamedTuple):
    """An EP for one stage; `ep` is "config" where the bundle's word is to stand."""

    name: str
    ep: str
    device: str | None = None


class OptionRequest(NamedTuple):
    """An option for one stage, or for every stage that the route reaches (`stage` None)."""

    stage: str | None
    key: str
    value: str


@dataclass(frozen=True)
class RouteRequest:
    """What was asked. The default asks for nothing: the bundle's config is respected.

    Precedence: `stages` over `ep` over `device` over the config.
    Raises `UnknownDeviceError` or `UsageError` for a word that means nothing.
    """

    ep: str | None = None
    device: str = CONFIG
    stages: tuple[StageRequest, ...] = ()
    scope: str = "pipeline"
    provider_options: tuple[OptionRequest, ...] = ()
    session_options: tuple[OptionRequest, ...] = ()
    reproducible: bool = False

    def __post_init__(self) -> None:
        self._check_kinds()
        check_device(self.device, DEVICE_WORDS)
        if self.scope not in SCOPES:
            raise UsageError(
                "The scope is unknown.", found=repr(self.scope), expected=" or ".join(SCOPES)
            )
        if self.scope != SCOPES[0] and not self.has_override:
            raise UsageError(
                "A scope needs something to limit.",
                found=f"--scope {self.scope}",
                expected="--ep or --device with it",
            )
        seen = set()
        for stage in self.stages:
            if stage.name in seen:
                raise UsageError(f"Stage {stage.name!r} is routed twice.", expected="once a stage")
            seen.add(stage.name)
            if stage.device is not None:
                check_device(stage.device, (AUTO, *catalog.DEVICES))

    def _check_kinds(self) -> None:
        """Python callers can give anything; `None` and text are what is understood."""
        for name, value in (
            ("ep", "" if self.ep is None else self.ep),
            ("device", self.device),
            ("scope", self.scope),
        ):
            _check_text(name, value)
        for what, kind, items in (
            ("stages", StageRequest, self.stages),
            ("provider_options", OptionRequest, self.provider_options),
            ("session_options", OptionRequest, self.session_options),
        ):
            for item in items:
                if not isinstance(item, kind):
                    raise _wrong_kind(what, item, f"a {kind.__name__}")
                for part in item:
                    _check_text(f"a part of {what}", "" if part is None else part)

    def of(self, stage: str) -> StageRequest | None:
        """What was asked for the stage of that name alone, None where nothing was."""
        return next((asked for asked in self.stages if asked.name == stage), None)

    @property
    def reroutes(self) -> bool:
        """Whether an EP or a device was asked for, for any stage."""
        return self.has_override or any(stage.ep != CONFIG for stage in self.stages)

    @property
    def has_override(self) -> bool:
        """Whether an EP or a device was asked for all stages at once."""
        return self.ep is not None or self.device != CONFIG

    @property
    def needs_inventory(self) -> bool:
        """Whether the answer depends on the machine, beyond what every machine has."""
        if self.ep is not None:
            global_needs = not _everywhere(self.ep, self.device)
        else:
            global_needs = self.device not in {CONFIG, *catalog.CPU.devices}
        return global_needs or any(
            stage.ep != CONFIG and not _everywhere(stage.ep, stage.device) for stage in self.stages
        )

    def __str__(self) -> str:
        """In the words of the command line, "config" when nothing was asked."""
        words = [f"--ep {self.ep}"] if self.ep is not None else []
        words += [f"--device {self.device}"] if self.device != CONFIG else []
        words += [
            f"--stage {name}={ep}" + (f"@{device}" if device is not None else "")
            for name, ep, device in self.stages
        ]
        words += [f"--scope {self.scope}"] if self.scope != SCOPES[0] else []
        for flag, options in (
            ("--provider-option", self.provider_options),
            ("--session-option", self.session_options),
        ):
            words += [
                f"{flag} " + (f"{stage}:" if stage is not None else "") + f"{key}={value}"
                for stage, key, value in options
            ]
        words += ["--reproducible"] if self.reproducible else []
        return " ".join(words) or CONFIG


def check_device(word: str, allowed: Iterable[str]) -> None:
    """Raise `UnknownDeviceError` unless `word` is one of `allowed`."""
    allowed = tuple(allowed)
    if word not in allowed:
        raise UnknownDeviceError(
            "The device is unknown.", found=repr(word), expected=", ".join(allowed)
        )


def parse_stage(text: str) -> StageRequest:
    """`NAME=EP[@DEVICE]` or `NAME=config`. Raises `UsageError`."""
    name, equals, target = text.partition("=")
    ep, at, device = target.partition("@")
    parts = [part.strip() for part in (name, ep, device)]
    if not equals or not parts[0] or not parts[1] or (at and not parts[2]):
        raise UsageError(
            "A stage's route is malformed.",
            found=repr(text),
            expected="NAME=EP[@DEVICE] or NAME=config",
            fix="for example --stage context=openvino@npu",
        )
    return StageRequest(parts[0], parts[1], parts[2].lower() if at else None)


def parse_option(text: str, example: str = "") -> OptionRequest:
    """`[STAGE:]KEY=VALUE`; the value may hold anything. Raises `UsageError` with an `example`."""
    left, equals, value = text.partition("=")
    stage, colon, key = left.rpartition(":")
    stage, key = stage.strip(), key.strip()
    if not equals or not key or (colon and not stage):
        raise UsageError(
            "An option is malformed.",
            found=repr(text),
            expected="[STAGE:]KEY=VALUE",
            fix=f"for example {example or 'context:htp_performance_mode=burst'}",
        )
    return OptionRequest(stage or None, key, value)


def stage_requests(
    stages: Mapping[str, str] | Iterable[StageRequest] | None,
) -> tuple[StageRequest, ...]:
    """Stage requests from `{name: "ep[@device]"}`, or as they are."""
    if stages is None:
        return ()
    if isinstance(stages, Mapping):
        return tuple(parse_stage(f"{name}={target}") for name, target in stages.items())
    return _items("stages", stages, 'a mapping such as {"context": "openvino@npu"}')


def option_requests(
    options: Mapping[str, str] | Iterable[OptionRequest | str] | None,
) -> tuple[OptionRequest, ...]:
    """Option requests from `{"[stage:]key": value}`, from `[STAGE:]KEY=VALUE`, or as they are."""
    if options is None:
        return ()
    if isinstance(options, Mapping):
        return tuple(parse_option(f"{key}={value}") for key, value in options.items())
    items = _items("options", options, 'a mapping such as {"htp_performance_mode": "burst"}')
    return tuple(parse_option(option) if isinstance(option, str) else option for option in items)


def _items(name: str, value: Any, expected: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _wrong_kind(name, value, expected)
    return tuple(value)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise _wrong_kind(name, value, "text")


def _wrong_kind(name: str, value: object, expected: str) -> UsageError:
    return UsageError(
        f"The argument {name} is of the wrong kind.", found=repr(value)[:80], expected=expected
    )


def _everywhere(ep: str, device: str | None) -> bool:
    known = catalog.find(ep)
    return known is not None and known.builtin and device in {None, CONFIG, AUTO, *known.devices}
