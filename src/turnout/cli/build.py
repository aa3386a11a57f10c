"""`turnout build`: from a GGUF file to a bundle, with a progress bar."""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnout.cli.ending import ended_cleanly
from turnout.cli.output import (
    DebugOption,
    JsonOption,
    QuietOption,
    VerboseOption,
    print_json,
    program,
    stderr_console,
)

if TYPE_CHECKING:
    from turnout.building import BuildProgress
    from turnout.bundle import Bundle

SCHEMA_VERSION = 1
# Bytes of caches that are worth a word.
HEAVY_CACHES = 100_000_000

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def build(
    source: Annotated[Path, typer.Argument(help="A GGUF file: llama, qwen2 or qwen3.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The bundle's folder, which must not exist.")
    ],
    *,
    layout: Annotated[
        str,
        typer.Option(
            metavar="pipeline|flat",
            help="pipeline: stages embeddings, transformer, lm_head. flat: one graph.",
        ),
    ] = "pipeline",
    two_sessions: Annotated[
        bool,
        typer.Option(
            "--two-sessions",
            help="Stages context (prefill) and iterator (decode) in place of transformer.",
        ),
    ] = False,
    static_prefill: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Those two stages with fixed shapes, as NPUs take them: a prefill of N tokens, a "
            "decode of one, a key-value cache of the context length.",
        ),
    ] = None,
    accuracy_level: Annotated[
        int,
        typer.Option(
            metavar="0|1|4",
            help="Of products with quantized weights on the CPU EP. 4 rounds activations to 8 "
            "bits; 0 and 1 compute in float32, about ten times slower: for verification.",
        ),
    ] = 4,
    precision: Annotated[
        str,
        typer.Option(
            metavar="source|fp32|int8|int4",
            help="source keeps the file's own quantization, exactly. fp32 dequantizes it, "
            "exactly. int8 and int4 round the file's float matrices to blocks of 32.",
        ),
    ] = "source",
    context_length: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="At most the model's own, which is the default."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing bundle at the output.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Make an onnxruntime-genai bundle from a model file, importing its weights exactly.

    The bundle appears whole or not at all. The same source and options give the same bytes.
    """
    from turnout import building

    started = time.perf_counter()
    with ended_cleanly(), _progress_bar(shown=not quiet) as progress:
        path = building.build(
            source,
            output,
            layout=layout,
            two_sessions=two_sessions,
            static_prefill=static_prefill,
            accuracy_level=accuracy_level,
            precision=precision,
            context_length=context_length,
            overwrite=overwrite,
            progress=progress,
        )
    _report(
        path,
        output,
        seconds=time.perf_counter() - started,
        as_json=as_json,
        verbose=verbose,
        quiet=quiet,
    )


def _report(
    path: Path, shown: Path, *, seconds: float, as_json: bool, verbose: bool, quiet: bool
) -> None:
    """Say what was made at `path`, which the caller called `shown`."""
    from turnout.bundle import Bundle
    from turnout.cli.folding import printable

    bundle = Bundle.open(path)
    stages = [stage.name for stage in bundle.stages]
    if as_json:
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "bundle": str(path),
            "bytes": bundle.total_bytes,
            "build_s": round(seconds, 3),
            "model_type": bundle.config.model_type,
            "context_length": bundle.context_length,
            "stages": stages,
        }
        print_json(document)
        return
    size = bundle.total_bytes / 1e6
    print(f"{printable(str(shown))}: {', '.join(stages)}; {size:.1f} MB in {seconds:.1f} s")
    if not quiet:
        console = stderr_console()
        for line in _hints(bundle, shown):
            console.print(line, markup=False, soft_wrap=True)
        if verbose:
            for file in sorted(path.iterdir()):
                line = f"  {file.name}  {file.stat().st_size:,} bytes"
                console.print(line, markup=False, soft_wrap=True)


def _hints(bundle: Bundle, path: Path) -> Iterator[str]:
    """What to type next; and the price of a static cache, which many would not expect."""
    caches = _static_caches(bundle)
    if caches > HEAVY_CACHES:
        yield (
            f"Its key-value caches of {bundle.context_length} tokens take {caches / 1e6:.0f} MB "
            "from the first token on; --context-length makes them smaller."
        )
    yield f'Ask it: {program()} generate {shlex.quote(str(path))} "..."'


def _static_caches(bundle: Bundle) -> int:
    """Bytes of the key-value caches of fixed length; 0 for a bundle whose caches grow."""
    return max(
        sum(
            4 * math.prod(size for size in value.shape or () if isinstance(size, int))
            for value in bundle.graph(stage).inputs
            if value.name.startswith("past_key_values")
            and all(isinstance(size, int) for size in value.shape or ("",))
        )
        for stage in bundle.stages
    )


@contextlib.contextmanager
def _progress_bar(*, shown: bool) -> Iterator[Callable[[BuildProgress], None]]:
    """A callback that moves a bar on stderr; one that does nothing where no one would see it."""
    console = stderr_console()
    if not (shown and console.is_terminal):
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=None)
        yield lambda state: bar.update(
            task, description=state.step, completed=state.done, total=state.total
        )
