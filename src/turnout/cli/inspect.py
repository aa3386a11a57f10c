"""`turnout inspect`: what is in a bundle, from its headers alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnout.cli import folding, sharing_report
from turnout.cli.output import DebugOption, JsonOption, QuietOption, VerboseOption, print_json
from turnout.cli.route_options import BundleArgument
from turnout.cli.text import writer

if TYPE_CHECKING:
    from turnout.bundle import Bundle, Stage, Weights
    from turnout.bundle.comparing import SharedContents
    from turnout.bundle.weights import StageWeights

SCHEMA_VERSION = 1

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def inspect(
    bundle: BundleArgument,
    *,
    sharing: Annotated[
        bool,
        typer.Option(
            "--sharing",
            help="Compare the weights of every two stages by content; this reads the weights.",
        ),
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - read from the arguments by turnout.cli.main
) -> None:
    """Stages in order, their graphs, EPs, inputs, outputs and weights; tokenizer and template.

    Reads headers only, so it takes the same time for a bundle of any size. Nothing is loaded.
    With --sharing also what every two stages have in common, and what is stored twice.
    With -v, also operators and the chat template; with -q, the stages without inputs and outputs.
    """
    from turnout.bundle import Bundle, require_regular, weigh
    from turnout.errors import GraphError

    opened = Bundle.open(bundle)
    require_regular(opened)
    missing = opened.missing
    if missing:
        raise GraphError(
            f"{len(missing)} file{'s' if len(missing) > 1 else ''} of the bundle {bundle} "
            f"{'are' if len(missing) > 1 else 'is'} missing.",
            found=", ".join(missing),
            where=bundle,
            fix="fetch or build the bundle again",
        )
    weights = weigh(opened)
    contents = compared(opened) if sharing else None
    if as_json:
        shown = document(opened, weights)
        if contents is not None:
            shown["contents"] = sharing_report.document(contents)
        print_json(shown)
        return
    # All of it before the first line, so that what is wrong is not told in the middle.
    report = list(lines(opened, weights, verbose=verbose, quiet=quiet))
    if contents is not None:
        report += ["", *sharing_report.lines(contents, verbose=verbose)]
    write = writer(sys.stdout)
    for line in report:
        # Names come from untrusted files, and must not drive the terminal.
        write(folding.printable(line) + "\n")


def compared(bundle: Bundle) -> SharedContents:
    """What every two stages have in common. Hashes of weights are remembered between calls."""
    from turnout.bundle.comparing import compare_contents
    from turnout.compiling.hashes import ContentHashes
    from turnout.compiling.places import cache_folder

    return compare_contents(bundle, ContentHashes(cache_folder()).range)


def document(bundle: Bundle, weights: Weights) -> dict[str, Any]:
    """Everything that is known, untruncated. Sizes are bytes."""
    tokenizer = bundle.tokenizer
    sizes = {item.stage: item for item in weights.stages}
    return {
        "schema_version": SCHEMA_VERSION,
        "path": str(bundle.path),
        "model_type": bundle.config.model_type,
        "context_length": bundle.context_length,
        "total_bytes": bundle.total_bytes,
        "weights_bytes": weights.stored,
        "tokenizer": {
            "kind": tokenizer.kind,
            "class": tokenizer.tokenizer_class,
            "files": list(tokenizer.files),
            "missing": list(tokenizer.missing),
        },
        "chat_template": {"file": tokenizer.template_file, "text": tokenizer.chat_template},
        "stages": [
            _stage_document(bundle, stage, sizes.get(stage.name)) for stage in bundle.stages
        ],
        "sharing": [
            {"stages": list(item.stages), "bytes": item.nbytes, "ranges": item.ranges}
            for item in weights.sharing
        ],
    }


def _stage_document(bundle: Bundle, stage: Stage, size: StageWeights | None) -> dict[str, Any]:
    graph = bundle.graph(stage)
    return {
        "name": stage.name,
        "section": stage.section,
        "file": stage.filename,
        "runs_on_prompt": stage.run_on_prompt,
        "runs_on_tokens": stage.run_on_token_gen,
        "ep": stage.ep,
        "providers": [
            {"name": entry.name, "ep": entry.ep, "options": dict(entry.options)}
            for entry in stage.providers
        ],
        "session_options": dict(stage.effective_options),
        "inputs": [_value_document(value) for value in graph.inputs],
        "outputs": [_value_document(value) for value in graph.outputs],
        "weights": None
        if size is None
        else {"total": size.total, "own": size.own, "shared": size.shared, "inline": size.inline},
        "graph": {
            "bytes": graph.file_bytes,
            "ir_version": graph.ir_version,
            "opsets": dict(graph.opsets),
            "producer": graph.producer,
            "nodes": graph.node_count,
            "operators": {_operator(key): count for key, count in graph.ops.items()},
            "external_files": list(graph.external_files),
            "ep_contexts": [
                {
                    "name": context.name,
                    "source": context.source,
                    "binary": context.cache,
                    "embedded_bytes": context.embedded_bytes,
                    "partition": context.partition_name,
                }
                for context in graph.ep_contexts
            ],
        },
    }


def _value_document(value: Any) -> dict[str, Any]:
    shape = None if value.shape is None else list(value.shape)
    return {"name": value.name, "dtype": value.dtype, "shape": shape}


def lines(bundle: Bundle, weights: Weights, *, verbose: bool, quiet: bool) -> Iterator[str]:
    """The report for people, a line at a time."""
    tokenizer = bundle.tokenizer
    yield f"{bundle.path}"
    yield f"  model      {bundle.config.model_type or 'of no stated type'}"
    length = bundle.context_length
    yield f"  context    {length} tokens" if length else "  context    not stated"
    if tokenizer.missing:
        yield f"  tokenizer  incomplete: no {', no '.join(tokenizer.missing)}"
    else:
        kind = tokenizer.kind or "of unknown kind"
        yield f"  tokenizer  {kind}" + (f" ({c})" if (c := tokenizer.tokenizer_class) else "")
    template = tokenizer.chat_template
    if template:
        yield f"  template   {len(template)} characters in {tokenizer.template_file}"
    else:
        yield "  template   none"
    stored = folding.size(weights.stored)
    yield f"  on disk    {folding.size(bundle.total_bytes)}, of which weights {stored}"
    sizes = {item.stage: item for item in weights.stages}
    for stage in bundle.stages:
        yield ""
        yield from _stage_lines(bundle, stage, sizes.get(stage.name), weights, quiet=quiet)
        if verbose:
            yield from _operator_lines(bundle, stage)
    if verbose and template:
        yield ""
        yield "chat template"
        yield from (f"  {line}" for line in template.splitlines())


def _stage_lines(
    bundle: Bundle, stage: Stage, size: StageWeights | None, weights: Weights, *, quiet: bool
) -> Iterator[str]:
    graph = bundle.graph(stage)
    yield f"{stage.name}"
    yield f"  file       {stage.filename} ({folding.size(graph.file_bytes)})"
    yield f"  EP         {_ep(stage)}"
    yield f"  runs on    {_runs(stage)}"
    if size is not None:
        yield f"  weights    {_weights(size, weights)}"
    if graph.ep_contexts:
        sources = ", ".join(sorted({context.source or "no EP" for context in graph.ep_contexts}))
        nodes = "node" if len(graph.ep_contexts) == 1 else "nodes"
        yield f"  compiled   {len(graph.ep_contexts)} EPContext {nodes} of {sources}"
    if not quiet:
        yield from _values("inputs", graph.inputs)
        yield from _values("outputs", graph.outputs)


def _values(title: str, values: Any) -> Iterator[str]:
    rows = folding.fold(values)
    width = max((len(name) for name, _ in rows), default=0)
    for index, (name, kind) in enumerate(rows):
        yield f"  {title if index == 0 else '':9}  {name:{width}}  {kind}"


def _ep(stage: Stage) -> str:
    from turnout import catalog

    shown = []
    for entry in stage.providers:
        options = ", ".join(f"{key}={value}" for key, value in entry.options.items())
        shown.append(catalog.alias_of(entry.ep) + (f" ({options})" if options else ""))
    if not shown:
        shown = [catalog.alias_of(stage.ep)]
    inherited = stage.inherits and bool(stage.providers)
    return ", ".join(shown) + (", from the decoder's options" if inherited else "")


def _runs(stage: Stage) -> str:
    words = [
        word
        for word, runs in (("prompt", stage.run_on_prompt), ("tokens", stage.run_on_token_gen))
        if runs
    ]
    return " and ".join(words) or "nothing"


def _weights(size: StageWeights, weights: Weights) -> str:
    if not size.total:
        return "none"
    text = f"{folding.size(size.total)}"
    for item in weights.sharing:
        if size.stage in item.stages:
            others = ", ".join(name for name in item.stages if name != size.stage)
            text += f", {_amount(item.nbytes, size.total)} shared with {others}"
    return text


def _amount(part: int, total: int) -> str:
    if part == total:
        return "all"
    if folding.size(part) == folding.size(total):
        return f"all but {folding.size(total - part)}"
    return f"{folding.size(part)} of them"


def _operator(key: tuple[str, str]) -> str:
    domain, kind = key
    return f"{domain}::{kind}" if domain else kind


def _operator_lines(bundle: Bundle, stage: Stage) -> Iterator[str]:
    ops = bundle.graph(stage).ops
    order = sorted(ops, key=lambda key: (-ops[key], key))
    yield "  operators  " + ", ".join(f"{ops[key]} {_operator(key)}" for key in order)
