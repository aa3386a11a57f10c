"""Checks of layers, heads and buffers of the key-value cache."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.bundle.modeltypes import LAYER_TYPED
from turnout.checking.findings import Finding, Rule
from turnout.checking.sizes_caches import (
    HEADS,
    LENGTH,
    SIZE,
    Cache,
    caches,
    decoder_graphs,
    fixed,
    grows_by_concat,
    reads_tokens,
)
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import DECODER, listed, number, role
from turnout.checking.wiring_stages import decoder_inputs

MORE_LAYERS = Rule(
    "T221",
    "warning",
    "graph",
    "More layers in the graphs than `num_hidden_layers`",
    why="onnxruntime-genai 0.18 counts the layers of ordinary caches in the graphs and ignores the"
    " number (tried on flat bundles and pipelines, with and without shared buffers). Caches that"
    " slide, and other programs that read the config, go by it.",
    bad='{"model": {"decoder": {"num_hidden_layers": 16}}}, with past_key_values.0 to 23',
    good='{"model": {"decoder": {"num_hidden_layers": 24}}}',
)
FEWER_LAYERS = Rule(
    "T222",
    "info",
    "graph",
    "Fewer layers with a cache than `num_hidden_layers`",
    why="Models whose layers share caches, or have other states, are so. Otherwise the number is"
    " wrong; onnxruntime-genai 0.18 ignores it for ordinary caches.",
    bad='{"model": {"decoder": {"num_hidden_layers": 32}}}, with past_key_values.0 to 23',
    good='{"model": {"decoder": {"num_hidden_layers": 24}}}',
)
CACHE_SHAPE = Rule(
    "T223",
    "warning",
    "graph",
    "`head_size` or `num_key_value_heads` other than in the graphs",
    why="Where a graph fixes these sizes of its caches, onnxruntime-genai 0.18 takes them from"
    " there and ignores the config (tried with GroupQueryAttention and shared buffers, with beams,"
    " and with fixed shapes). Other runtimes, and estimates of memory, go by the config.",
    bad='{"model": {"decoder": {"head_size": 128}}}, with past_key_values.0.key [batch, 2, past,'
    " 64]",
    good='{"model": {"decoder": {"head_size": 64}}}',
)
CACHE_OPEN = Rule(
    "T224",
    "error",
    "graph",
    "A cache whose size neither graph nor config gives rightly",
    why="Where a graph leaves the heads or the head size of a cache open, the runtime makes the"
    " cache by `num_key_value_heads` and `head_size`. Missing or wrong, the first prompt fails:"
    " 'Got invalid dimensions', or `Input 'past_key' shall have kv_num_heads`. Below zero, no"
    " generator can be made, whatever the graph says.",
    bad='{"model": {"decoder": {"num_key_value_heads": 2}}}, with past_key_values.0.key [batch,'
    " heads, past, head]",
    good='{"model": {"decoder": {"num_key_value_heads": 2, "head_size": 64}}}',
)
HIDDEN = Rule(
    "T225",
    "info",
    "graph",
    "`hidden_size` other than in the graphs",
    why="The runtime does not use it for text. It makes hidden states by it for images, sound and"
    " speculative decoding.",
    bad='{"model": {"decoder": {"hidden_size": 512}}}, where embeddings.onnx gives [batch,'
    " sequence, 576]",
    good='{"model": {"decoder": {"hidden_size": 576}}}',
)
GROUPS = Rule(
    "T243",
    "warning",
    "graph",
    "Attention heads that do not share key-value heads evenly",
    why="`num_attention_heads` must be a multiple of `num_key_value_heads` in every known"
    " architecture. The graph decides what is computed; the numbers are wrong.",
    bad='{"model": {"decoder": {"num_attention_heads": 9, "num_key_value_heads": 2}}}',
    good='{"model": {"decoder": {"num_attention_heads": 9, "num_key_value_heads": 3}}}',
)
LAYER_TYPES = Rule(
    "T244",
    "error",
    "graph",
    "`layer_types` that do not fit the layers",
    why="Where there is such a list, whatever the type, and for types with layers of convolution in"
    " any case, the runtime goes by it: one of another length is refused ('layer_types array size"
    " does not match num_hidden_layers'), and any word but full_attention is a layer with a state"
    " of its own ('Model input was not found: past_key_values.0.conv_state').",
    bad='{"model": {"type": "lfm2", "decoder": {"num_hidden_layers": 2, "layer_types": ["conv"]}}}',
    good='{"model": {"type": "lfm2", "decoder": {"num_hidden_layers": 2, "layer_types": ["conv",'
    ' "full_attention"]}}}',
)
NOT_SHARED = Rule(
    "T246",
    "error",
    "graph",
    "A shared buffer that the graph cannot write into",
    why="With `past_present_share_buffer` past and present are one buffer of `max_length` tokens,"
    " as GroupQueryAttention takes it. A graph that joins past and new keys by Concat gives a"
    " tensor of another length, and the first prompt fails.",
    bad='{"search": {"past_present_share_buffer": true}}, with caches grown by Concat',
    good='{"search": {"past_present_share_buffer": false}}',
)
RULES = (
    MORE_LAYERS,
    FEWER_LAYERS,
    CACHE_SHAPE,
    CACHE_OPEN,
    HIDDEN,
    GROUPS,
    LAYER_TYPES,
    NOT_SHARED,
)
_SIZES = ((HEADS, "num_key_value_heads"), (SIZE, "head_size"))


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about the sizes of a decoder's caches."""
    yield from _groups(subject)
    yield from _layer_types(subject)
    found = caches(subject)
    if reads_tokens(subject) and (found or not subject.graphs):
        yield from _negative(subject)
    if found and reads_tokens(subject):
        yield from _layers(subject, found)
        yield from _shapes(subject, [cache for cache in found if cache.plain])
        yield from _shared(subject, found)
    yield from _hidden(subject)


def _groups(subject: Subject) -> Iterator[Finding]:
    heads, groups = (
        number(subject.config, *DECODER, key)
        for key in ("num_attention_heads", "num_key_value_heads")
    )
    if heads and groups and heads > 0 and groups > 0 and heads % groups:
        yield GROUPS.at(
            subject.place((*DECODER, "num_key_value_heads")),
            f"{heads} attention heads do not share {groups} key-value heads evenly.",
            found=groups,
            expected=f"a divisor of {heads}",
        )


def _layer_types(subject: Subject) -> Iterator[Finding]:
    types = subject.config.get((*DECODER, "layer_types"))
    types = types if isinstance(types, list) else []
    ordinary = subject.config.model_type not in LAYER_TYPED
    if ordinary and not (types and reads_tokens(subject)):
        return
    place = subject.place((*DECODER, "layer_types"))
    layers = number(subject.config, *DECODER, "num_hidden_layers") or 0
    if len(types) != layers:
        yield LAYER_TYPES.at(
            place,
            "layer_types does not say the type of each layer.",
            found=f"{len(types)} of {layers} layers",
            expected=f'{layers} times "conv" or "full_attention"',
        )
        return
    odd = [layer for layer, word in enumerate(types) if word != "full_attention"]
    if odd and subject.graphs and not _has_states(subject):
        yield LAYER_TYPES.at(
            place,
            "layer_types has layers of a kind that no graph keeps a state of.",
            found=f"layer {odd[0]}: {str(types[odd[0]])[:40]}",
            expected="full_attention" + (", or no layer_types" if ordinary else ""),
        )


def _has_states(subject: Subject) -> bool:
    """Whether a graph of the decoder takes a state that is no key and no value."""
    return any("conv" in name for name in decoder_inputs(subject))


def _layers(subject: Subject, found: list[Cache]) -> Iterator[Finding]:
    layers = number(subject.config, *DECODER, "num_hidden_layers")
    there = {cache.layer for cache in found}
    if layers is None or layers <= 0:
        return
    rule = MORE_LAYERS if max(there) >= layers else FEWER_LAYERS
    # Gaps are layers of another kind.
    if max(there) >= layers or (len(there) < layers and max(there) == len(there) - 1):
        yield rule.at(
            subject.place((*DECODER, "num_hidden_layers")),
            f"The graphs have caches of {len(there)} layers.",
            found=layers,
            expected=max(there) + 1,
            fix=f"set num_hidden_layers to {max(there) + 1}"
            + (", unless layers share caches" if rule is FEWER_LAYERS else ""),
        )


def _negative(subject: Subject) -> Iterator[Finding]:
    for _, key in _SIZES:
        value = number(subject.config, *DECODER, key)
        if value is not None and value < 0:
            yield CACHE_OPEN.at(
                subject.place((*DECODER, key)),
                f"{key} is negative.",
                found=value,
                expected=f"the model's {key}",
                fix=f"correct {key} in model.decoder",
            )


def _shapes(subject: Subject, found: list[Cache]) -> Iterator[Finding]:
    for axis, key in _SIZES:
        value = number(subject.config, *DECODER, key)
        sizes = {cache.size(axis) for cache in found}
        known = sorted(size for size in sizes if size is not None)
        place = subject.place((*DECODER, key))
        if known and value is not None and value > 0 and value not in known:
            yield CACHE_SHAPE.at(
                place,
                f"{key} is not what the graphs' caches have.",
                found=value,
                expected=listed(str(size) for size in known),
                fix=f"set {key} to {known[0]}",
            )
        elif None in sizes:
            yield from _open(subject, [cache for cache in found if cache.size(axis) is None], axis)


def _open(subject: Subject, found: list[Cache], axis: int) -> Iterator[Finding]:
    key = dict(_SIZES)[axis]
    value = number(subject.config, *DECODER, key)
    made = {size for cache in found if (size := fixed(cache.written, axis)) is not None}
    if value is not None and value < 0:
        return  # said already
    if not value or (made and value not in made):
        yield CACHE_OPEN.at(
            subject.place((*DECODER, key)),
            f"The graphs leave {key} to the config, which does not give it rightly.",
            found="nothing" if value is None else value,
            expected=listed(str(size) for size in sorted(made)) or f"the model's {key}",
            fix=f"set {key} in model.decoder",
        )


def _hidden(subject: Subject) -> Iterator[Finding]:
    value = number(subject.config, *DECODER, "hidden_size")
    names = {
        role(subject.config, "inputs", "inputs_embeds"),
        role(subject.config, "outputs", "hidden_states"),
    }
    sizes = {
        size
        for _, graph in decoder_graphs(subject)
        for tensor in (*graph.inputs, *graph.outputs)
        if tensor.name in names and tensor.shape is not None and len(tensor.shape) == 3
        if (size := fixed(tensor, -1)) is not None
    }
    if value and sizes and value not in sizes:
        yield HIDDEN.at(
            subject.place((*DECODER, "hidden_size")),
            "hidden_size is not what the graphs have.",
            found=value,
            expected=listed(str(size) for size in sorted(sizes)),
        )


def _shared(subject: Subject, found: list[Cache]) -> Iterator[Finding]:
    search = subject.config.search
    # More beams switch it off; a graph that fixes the length has a buffer of that length.
    if search.get("past_present_share_buffer") is not True or search.get("num_beams", 1) != 1:
        return
    growing = {cache.stage.name for cache in found if cache.size(LENGTH) is None and cache.plain}
    for stage, graph in decoder_graphs(subject):
        if stage.name in growing and grows_by_concat(graph):
            yield NOT_SHARED.at(
                subject.place(("search", "past_present_share_buffer")),
                f"{stage.filename} grows its caches by Concat and cannot share them.",
                found="past_present_share_buffer: true",
                expected="false, or a graph with GroupQueryAttention",
                fix="set past_present_share_buffer to false",
            )
