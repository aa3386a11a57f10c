"""The key-value caches of a decoder as its graphs declare them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from turnout.bundle import GraphFile, Stage
from turnout.bundle.modeltypes import DECODER_TYPES, PIPELINE
from turnout.bundle.onnxheader import ValueInfo
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import WINDOW, cache_names, number

# Batch, heads, tokens, head size: the axes of a cache.
HEADS, LENGTH, SIZE = 1, 2, 3
_FLOATS = frozenset({"float32", "float16", "bfloat16"})
_STANDARD = frozenset({"", "ai.onnx"})
# Standard operators that write into a buffer at a place, instead of making a longer one.
_IN_PLACE = frozenset({"Attention", "TensorScatter", "ScatterND", "ScatterElements"})


@dataclass(frozen=True)
class Cache:
    """A past key or value of one layer. `written` is its present, None where there is none."""

    stage: Stage
    layer: int
    is_key: bool
    read: ValueInfo
    written: ValueInfo | None

    @property
    def plain(self) -> bool:
        """Whether it is [batch, heads, tokens, head size] of floats, as most graphs have it.

        Quantized caches have other sizes, and on some NPUs other axes.
        """
        shape = self.read.shape
        return shape is not None and len(shape) == 4 and self.read.dtype in _FLOATS

    def size(self, axis: int) -> int | None:
        """The fixed size of an axis, None where the graph leaves it open."""
        return fixed(self.read, axis)


def fixed(value: ValueInfo | None, axis: int) -> int | None:
    """The size of an axis where the graph fixes it, else None."""
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) and size > 0 else None


def reads_tokens(subject: Subject) -> bool:
    """Whether the decoder is one whose feeding is known: one graph, or a plain pipeline."""
    return subject.config.model_type in DECODER_TYPES | {PIPELINE}


def decoder_graphs(subject: Subject) -> Iterator[tuple[Stage, GraphFile]]:
    """The decoder's stages whose graphs are known."""
    for stage in subject.stages:
        graph = subject.graphs.get(stage.name)
        if stage.in_decoder and graph is not None:
            yield stage, graph


def caches(subject: Subject) -> list[Cache]:
    """Every cache that a known graph of the decoder reads, in the order of stages and inputs."""
    names = cache_names(subject.config)
    found = []
    for stage, graph in decoder_graphs(subject):
        outputs = {value.name: value for value in graph.outputs}
        for value in graph.inputs:
            for part in (0, 1):
                layer = names.past[part].layer(value.name)
                if layer is not None:
                    written = outputs.get(names.present[part].name(layer))
                    found.append(Cache(stage, layer, part == 0, value, written))
    return found


def fixed_length(subject: Subject) -> int | None:
    """The tokens that the caches hold where every graph fixes one and the same number."""
    sizes = {cache.size(LENGTH) if cache.plain else None for cache in caches(subject)}
    return sizes.pop() if len(sizes) == 1 else None


def max_length(subject: Subject) -> int | None:
    """The length that the runtime takes where a program asks for none."""
    return number(subject.config, "search", "max_length") or subject.config.context_length


def window_size(subject: Subject) -> int | None:
    """`sliding_window.window_size`, 0 where the object is there without one, None without it."""
    if not isinstance(subject.config.get(WINDOW), dict):
        return None
    return number(subject.config, *WINDOW, "window_size") or 0


def grows_by_concat(graph: GraphFile) -> bool:
    """Whether a graph joins old and new keys, and writes nothing into a buffer."""
    writes = any(domain not in _STANDARD or op in _IN_PLACE for domain, op in graph.ops)
    return not writes and any(op == "Concat" for _, op in graph.ops)
