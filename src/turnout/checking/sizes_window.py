"""Checks of sliding windows and fixed shapes: lengths that must fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from turnout import catalog
from turnout.bundle import GraphFile, Stage
from turnout.bundle.modeltypes import DECODER_TYPES
from turnout.bundle.onnxheader import ValueInfo
from turnout.checking.findings import Finding, Rule
from turnout.checking.sizes_caches import (
    LENGTH,
    caches,
    decoder_graphs,
    fixed,
    fixed_length,
    grows_by_concat,
    max_length,
    reads_tokens,
    window_size,
)
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import (
    DECODER,
    WINDOW,
    fed_lengths,
    listed,
    number,
    role,
    slides_inputs,
)
from turnout.checking.wiring_stages import decoder_inputs, flat_of, pipeline_of

WINDOW_SIZE = Rule(
    "T236",
    "error",
    "graph",
    "A `window_size` that no prompt fits",
    why="The runtime divides prompts by it. Zero kills the process at the first prompt (an integer"
    " division by zero), a negative one too. A prompt takes at least one window, so that one"
    " longer than `max_length` fails.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 0}}}}',
    good='{"model": {"decoder": {"sliding_window": {"window_size": 64}}}}',
)
FIXED_TOKENS = Rule(
    "T237",
    "error",
    "graph",
    "A graph of fixed length that the runtime does not feed so",
    why="The runtime gives prefill stages `window_size` tokens at a time, or the whole prompt"
    " without a `sliding_window`, and decode stages one. A graph that fixes another number fails at"
    " the first prompt: 'Got invalid dimensions'.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 32}}}}, with a prefill graph for'
    " 64 tokens",
    good='{"model": {"decoder": {"sliding_window": {"window_size": 64}}}}',
)
GROWING = Rule(
    "T238",
    "error",
    "graph",
    "Windows over a decoder that does not take them",
    why="`slide_inputs`, on by default, is for pipelines whose graphs have caches of fixed length."
    " Tried with others: a flat decoder reads the first window alone and answers nonsense, or"
    " fails; caches that grow fail, or give nonsense without a word.",
    bad='{"model": {"type": "mistral", "decoder": {"filename": "model.onnx", "sliding_window":'
    ' {"window_size": 4096}}}}',
    good='{"model": {"type": "mistral", "decoder": {"filename": "model.onnx", "sliding_window":'
    ' {"window_size": 4096, "slide_inputs": false, "slide_key_value_cache": false}}}}',
)
ALIGNMENT = Rule(
    "T239",
    "error",
    "graph",
    "Windows filled up on the wrong side",
    why="Graphs that are told `past_sequence_length` want the padding behind the prompt:"
    ' `"alignment": "left"`. By default, and with any other word, it goes in front; nothing fails,'
    " and the answer is nonsense.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 64}, "pipeline": [{"context":'
    ' {"inputs": ["hidden", "past_sequence_length", "total_sequence_length"]}}]}}}',
    good='{"model": {"decoder": {"sliding_window": {"window_size": 64, "alignment": "left"},'
    ' "pipeline": [{"context": {"inputs": ["hidden", "past_sequence_length",'
    ' "total_sequence_length"]}}]}}}',
)
CACHE_LENGTH = Rule(
    "T240",
    "error",
    "graph",
    "`max_length` beyond the graphs' caches",
    why="Graphs that are told `total_sequence_length` get `max_length` for it, which must not be"
    " more than their caches hold: the first prompt fails in GroupQueryAttention.",
    bad='{"search": {"max_length": 4096}}, with past_key_values.0.key [1, 2, 2048, 64]',
    good='{"search": {"max_length": 2048}}',
)
CACHE_END = Rule(
    "T241",
    "warning",
    "graph",
    "Lengths that the graphs' caches cannot hold",
    why="Caches of fixed length end where they end, whatever `max_length` says, and prompts take"
    " whole windows of them. Longer sequences fail late; a last window that is no whole one is"
    " written beyond the end.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 48}}}}, with caches of 1024'
    " tokens",
    good='{"model": {"decoder": {"sliding_window": {"window_size": 64}}}}, with caches of 1024'
    " tokens",
)
SLIDING_CACHE = Rule(
    "T245",
    "error",
    "graph",
    "A sliding cache that is not of bytes",
    why="`slide_key_value_cache`, on by default, is for caches quantized to uint8. A flat decoder"
    " with others fails when a generator is made: 'Expected input data type to be uint8_t'; so it"
    " does on OpenVINO.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 4096, "slide_inputs": false}}}},'
    " with float16 caches",
    good='{"model": {"decoder": {"sliding_window": {"window_size": 4096, "slide_inputs": false,'
    ' "slide_key_value_cache": false}}}}',
)
OUTGROWN = Rule(
    "T249",
    "warning",
    "graph",
    "A window that longer sequences outgrow",
    why="Without `slide_inputs` the runtime still cuts caches to the window and 16 tokens more: all"
    " of them with a shared buffer, else those of `layers`. A graph whose attention does not slide"
    " fails when a sequence is longer. And a pipeline whose caches grow by Concat fails for prompts"
    " longer than the window.",
    bad='{"model": {"decoder": {"sliding_window": {"window_size": 64, "slide_inputs": false,'
    ' "slide_key_value_cache": false}}}, "search": {"past_present_share_buffer": true}}, with a'
    " GroupQueryAttention that does not slide",
    good="no sliding_window, or a graph exported for one",
)
RULES = (
    WINDOW_SIZE,
    FIXED_TOKENS,
    GROWING,
    ALIGNMENT,
    CACHE_LENGTH,
    CACHE_END,
    SLIDING_CACHE,
    OUTGROWN,
)
# What the CPU EP keeps of a cache beside its window.
_SLACK = 16


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about windows and fixed shapes of a decoder that reads tokens."""
    if not reads_tokens(subject):
        return
    if slides_inputs(subject.config):
        yield from _size(subject)
        yield from _growing(subject)
        yield from _alignment(subject)
    yield from _fixed_graphs(subject)
    yield from _lengths(subject)
    yield from _sliding_cache(subject)
    if not slides_inputs(subject.config):
        yield from _outgrown(subject)


def _size(subject: Subject) -> Iterator[Finding]:
    size, most = window_size(subject) or 0, max_length(subject)
    if size < 1 or (most is not None and 0 < most < size):
        yield WINDOW_SIZE.at(
            subject.place((*WINDOW, "window_size")),
            "Prompts cannot be cut into windows of this size.",
            found=size,
            expected="1 or more" + (f", at most {most}, the max_length" if most else ""),
            fix="set window_size to the tokens that the prefill graphs take at a time",
        )


def _growing(subject: Subject) -> Iterator[Finding]:
    flat = flat_of(subject) if subject.config.model_type in DECODER_TYPES else None
    # The runtime looks at keys alone, and of one name at the first.
    keys = {cache.read.name: cache for cache in reversed(caches(subject)) if cache.is_key}
    open_in = [
        cache.stage.name
        for cache in reversed(keys.values())
        if cache.plain and cache.size(LENGTH) is None and cache.stage.run_on_prompt
    ]
    if flat is not None or open_in:
        found = "a decoder of one graph" if flat else f"caches that grow in {open_in[0]!r}"
        yield GROWING.at(
            subject.place(WINDOW),
            "The prompt is cut into windows, which this decoder does not take.",
            found=found,
            expected="prefill stages of a pipeline, with caches of fixed length",
            fix='set "slide_inputs" to false, or remove sliding_window',
        )


def _alignment(subject: Subject) -> Iterator[Finding]:
    side = subject.config.get((*WINDOW, "alignment"), "right")
    if fed_lengths(subject.config, decoder_inputs(subject)) and side != "left":
        yield ALIGNMENT.at(
            subject.place((*WINDOW, "alignment")),
            "Windows are filled up in front of the prompt, where the graphs count from its start.",
            found=str(side)[:60],
            expected="left",
            fix='set "alignment" to "left"',
        )


def _fixed_graphs(subject: Subject) -> Iterator[Finding]:
    window = window_size(subject) if slides_inputs(subject.config) else None
    stages = {stage.name for stage in pipeline_of(subject)}
    for stage, graph in decoder_graphs(subject):
        tokens = _tokens(subject, graph)
        if tokens is None:
            continue
        size, tensor = tokens
        wanted = []
        if stage.run_on_prompt and size != window:
            wanted.append(f"{window} for prompts" if window else "any number for prompts")
        if stage.run_on_token_gen and size != 1:
            wanted.append("1 for tokens")
        if wanted:
            where = (*WINDOW, "window_size") if window and stage.run_on_prompt else stage.path
            yield FIXED_TOKENS.at(
                subject.place(where),
                f"{stage.filename} takes {size} tokens at a time, and is not fed so.",
                found=f"{tensor.name} of {size} tokens",
                expected=" and ".join(wanted),
                fix=_fix(stage, size, window, piped=stage.name in stages),
            )
        yield from _mask(subject, stage, graph, window)


def _fix(stage: Stage, size: int, window: int | None, *, piped: bool) -> str:
    if stage.run_on_prompt and not stage.run_on_token_gen and size > 1:
        return f"set window_size to {size}" if window else f"add a sliding_window of {size}"
    if not piped:
        return "export the graph with a length that varies, or as a pipeline"
    return "let it run only on what it takes: run_on_prompt, run_on_token_gen"


def _tokens(subject: Subject, graph: GraphFile) -> tuple[int, ValueInfo] | None:
    """How many tokens a graph takes at a time where it fixes that, and the input that says so."""
    hidden = number(subject.config, *DECODER, "hidden_size")
    flat = {role(subject.config, "inputs", key) for key in ("input_ids", "position_ids")}
    for value in graph.inputs:
        shape = value.shape or ()
        is_ids = value.name in flat and len(shape) == 2
        is_states = len(shape) == 3 and hidden is not None and shape[2] == hidden
        size = fixed(value, 1) if is_ids or is_states else None
        if size is not None:
            return size, value
    return None


def _mask(
    subject: Subject, stage: Stage, graph: GraphFile, window: int | None
) -> Iterator[Finding]:
    """A mask of fixed length: with windows the runtime makes one of `context_length`."""
    name = role(subject.config, "inputs", "attention_mask")
    mask = next((v for v in graph.inputs if v.name == name and name in stage.inputs), None)
    size, context = fixed(mask, 1), subject.config.context_length
    if window and size is not None and context is not None and size != context:
        yield FIXED_TOKENS.at(
            subject.place(("model", "context_length")),
            f"{stage.filename} takes a mask of {size} tokens, and gets one of context_length.",
            found=context,
            expected=size,
            fix=f"set context_length to {size}",
        )


def _lengths(subject: Subject) -> Iterator[Finding]:
    held, most = fixed_length(subject), max_length(subject)
    if held is None or most is None:
        return
    total = role(subject.config, "inputs", "total_sequence_length")
    told = total in fed_lengths(subject.config, decoder_inputs(subject))
    window = window_size(subject)
    if most > held:
        yield (CACHE_LENGTH if told else CACHE_END).at(
            subject.place(("search", "max_length")),
            "max_length is more than the graphs' caches hold.",
            found=most,
            expected=f"at most {held}",
            fix=f"set max_length to {held}",
        )
    if slides_inputs(subject.config) and window and window > 0 and held % window:
        yield CACHE_END.at(
            subject.place((*WINDOW, "window_size")),
            "The caches do not hold whole windows.",
            found=f"windows of {window} in {held} tokens",
            expected=f"a divisor of {held}",
        )


def _sliding_cache(subject: Subject) -> Iterator[Finding]:
    window = subject.config.get(WINDOW)
    if not isinstance(window, dict) or window.get("slide_key_value_cache") is False:
        return
    flat = flat_of(subject)
    eps = [catalog.find(entry.ep) for entry in flat.providers] if flat is not None else []
    if flat is None or any(ep is None or ep.slides_caches for ep in eps):
        return
    types = {cache.read.dtype for cache in caches(subject)} - {"uint8"}
    if types:
        yield SLIDING_CACHE.at(
            subject.place((*WINDOW, "slide_key_value_cache")),
            "The caches are to slide, and are not of bytes.",
            found=listed(sorted(types)),
            expected="uint8, or slide_key_value_cache: false",
            fix='set "slide_key_value_cache" to false',
        )


def _outgrown(subject: Subject) -> Iterator[Finding]:
    """A window that cuts caches, or prompts, of graphs that do not slide."""
    size, most = window_size(subject), max_length(subject)
    if size is None or size < 1 or most is None:
        return
    piped = {stage.name for stage in pipeline_of(subject)}
    cached = {cache.stage.name for cache in caches(subject)}
    for stage, graph in decoder_graphs(subject):
        if stage.name not in cached:
            continue
        if stage.name in piped:
            longest = size if grows_by_concat(graph) and stage.run_on_prompt else most
        else:
            longest = size + _slack(subject) if _cuts_caches(subject, stage, graph) else most
        if longest < most:
            yield OUTGROWN.at(
                subject.place((*WINDOW, "window_size")),
                f"{stage.filename} is not made for the window: what is longer fails.",
                found=f"window_size {size}, and sequences of up to {most} tokens",
                expected="no window, or a graph whose attention slides",
                fix="remove sliding_window, or set window_size to the max_length",
            )
            return


def _slack(subject: Subject) -> int:
    own = number(subject.config, *WINDOW, "cache_slack") or 0
    chunk = number(subject.config, "search", "chunk_size") or 0
    return max(own if own > 0 else _SLACK, chunk - 1)


def _cuts_caches(subject: Subject, stage: Stage, graph: GraphFile) -> bool:
    """Whether the runtime makes caches of the window's size that the graph does not keep to.

    Known of the CPU EP; other EPs have caches of other sizes.
    """
    window = subject.config.get(WINDOW)
    if stage.ep != catalog.CPU.name or window.get("slide_key_value_cache") is not False:
        return False
    some = isinstance(window.get("layers"), list) and window["layers"]
    shared = subject.config.search.get("past_present_share_buffer") is True
    return not graph.evicts and bool(some or shared)
