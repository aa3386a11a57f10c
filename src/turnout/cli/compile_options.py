"""The options of every command that prepares a bundle ahead of time, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnout.compiling.options import CompileOptions

TIMEOUT_S = 600.0

CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile/--no-compile",
        help="Compile what the route sends to EPs that compile, ahead of time and once: the result "
        "is stored and used again. Without it, such EPs compile in memory at each load.",
    ),
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="off|auto|require|session|ep|prepacked",
        help="How stages keep one copy of their weights: session makes equal stages one, ep lets "
        "the EP share them, prepacked stores the CPU EP's own layout once; auto chooses, require "
        "fails where nothing can be shared. off is the default, and auto with --compile.",
    ),
]
RequireCompiledOption = Annotated[
    bool,
    typer.Option(
        "--require-compiled",
        help="Fail where a stage that could be compiled cannot; else it warns.",
    ),
]
RebuildOption = Annotated[
    bool, typer.Option("--rebuild", help="Compile anew what is stored already.")
]
NoCacheOption = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Compile into a temporary folder, which is removed at the end."
    ),
]
ParanoidOption = Annotated[
    bool,
    typer.Option(
        "--paranoid", help="Read and hash everything anew, whatever is remembered of it; slower."
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--compile-timeout", metavar="SECONDS", help="How long compiling one stage may take."
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="KEY=VALUE,...",
        help="Compile for a device that is not here, such as soc_model=60,htp_arch=73.",
    ),
]
NativeCodeOption = Annotated[
    bool,
    typer.Option(
        "--allow-native-code",
        help="Load native libraries that the bundle's config names (custom_ops_library). They run "
        "with all your rights.",
    ),
]


@dataclass(frozen=True)
class PrepareOptions:
    """The options that say what a session prepares, for `turnout.cli.taking`."""

    compile: CompileOption = False
    share: ShareOption = None
    require_compiled: RequireCompiledOption = False
    rebuild: RebuildOption = False
    no_cache: NoCacheOption = False
    paranoid: ParanoidOption = False
    compile_timeout: TimeoutOption = TIMEOUT_S
    target: TargetOption = None
    allow_native_code: NativeCodeOption = False

    def options(self, *, elsewhere: bool = False) -> CompileOptions:
        """What is asked for. Raises `UsageError`, also for what would do nothing.

        `elsewhere`: what to compile and to share is said somewhere else as well.
        """
        return options_from(
            compile=self.compile,
            share=self.share,
            require_compiled=self.require_compiled,
            rebuild=self.rebuild,
            no_cache=self.no_cache,
            paranoid=self.paranoid,
            timeout=self.compile_timeout,
            target=self.target,
            elsewhere=elsewhere,
        )


def options_from(
    *,
    compile: bool = False,
    share: str | None = None,
    require_compiled: bool = False,
    rebuild: bool = False,
    no_cache: bool = False,
    paranoid: bool = False,
    timeout: float = TIMEOUT_S,
    target: Sequence[str] | None = None,
    elsewhere: bool = False,
) -> CompileOptions:
    """What these options say. Raises `UsageError`, also for those that would do nothing."""
    from turnout.compiling.options import CompileOptions
    from turnout.compiling.targets import parse
    from turnout.errors import UsageError

    options = CompileOptions(
        compile=compile,
        share=None if share is None else share.strip().lower(),
        require_compiled=require_compiled,
        rebuild=rebuild,
        no_cache=no_cache,
        paranoid=paranoid,
        timeout_s=timeout,
        target=parse(target or ()),
    )
    idle = [
        name
        for name, given in (
            ("--rebuild", rebuild),
            ("--no-cache", no_cache),
            ("--paranoid", paranoid),
            ("--target", bool(target)),
            ("--compile-timeout", timeout != TIMEOUT_S),
        )
        if given
    ]
    if idle and not options.prepares and not elsewhere:
        raise UsageError(
            "Nothing is prepared ahead of time that this could apply to.",
            found=", ".join(idle),
            expected="--compile or --share with it",
        )
    return options
