"""Which graphs a bundle has: flat, three stages, or four with prefill and decode apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.building import layers, stages
from turnout.building.genai import PipelineStage
from turnout.building.graph import GraphWriter
from turnout.building.layers import DYNAMIC, Shapes
from turnout.building.stages import StageAuthor
from turnout.errors import UsageError

if TYPE_CHECKING:
    from turnout.building.spec import ModelSpec

LAYOUTS = ("pipeline", "flat")


@dataclass(frozen=True)
class Layout:
    """`window` is the number of tokens of a static prefill; None for shapes that vary."""

    kind: str = "pipeline"
    two_sessions: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        """Refuse combinations that make no sense."""
        if self.kind not in LAYOUTS:
            raise UsageError(
                f"There is no layout {self.kind!r}.", found=self.kind, expected=", ".join(LAYOUTS)
            )
        if self.kind == "flat" and (self.two_sessions or self.window is not None):
            raise UsageError(
                "A flat bundle has one session for prefill and decode.",
                found="layout flat with two sessions or a static prefill",
                fix="leave out --layout flat, or --two-sessions and --static-prefill",
            )
        if self.window is not None and self.window < 2:
            raise UsageError(
                "A static prefill takes at least two tokens.",
                found=self.window,
                expected="2 or more; a one-token prompt runs the decode stage",
            )

    def check_context(self, context: int) -> None:
        """Raises `UsageError` for a context length that the window does not divide."""
        if self.window is not None and context % self.window:
            # The last window of a prompt is padded, and its padding is written to the cache.
            raise UsageError(
                "The context length is no multiple of the static prefill.",
                found=f"context {context}, prefill {self.window}",
                expected="a multiple",
                fix=_window_fix(self.window, context),
            )

    def pipeline(self, spec: ModelSpec) -> list[PipelineStage] | None:
        """The stages in order; None for a flat bundle."""
        if self.kind == "flat":
            return None
        embeddings = PipelineStage("embeddings", [stages.INPUT_IDS], [stages.EMBEDDINGS])
        mask = [] if self.window else [layers.ATTENTION_MASK]
        taken = [stages.HIDDEN_STATES, *mask]
        head = PipelineStage("lm_head", taken, [stages.LOGITS], is_lm_head=True)
        inputs, outputs = self._transformer_io(spec)
        if not (self.two_sessions or self.window):
            return [embeddings, PipelineStage("transformer", inputs, outputs), head]
        return [
            embeddings,
            PipelineStage("context", inputs, outputs, run_on_token_gen=False),
            PipelineStage("iterator", inputs, outputs, run_on_prompt=False),
            head,
        ]

    def _transformer_io(self, spec: ModelSpec) -> tuple[list[str], list[str]]:
        lengths = (
            [layers.ATTENTION_MASK]
            if self.window is None
            else [layers.PAST_LENGTH, layers.TOTAL_LENGTH]
        )
        past = [name % n for n in range(spec.layers) for name in layers.PAST_NAMES]
        present = [name % n for n in range(spec.layers) for name in layers.PRESENT_NAMES]
        return [stages.EMBEDDINGS, *lengths, *past], [stages.HIDDEN_STATES, *present]


def _window_fix(window: int, context: int) -> str:
    if window > context:
        return f"take a static prefill of at most {context}"
    return f"pass --context-length {context // window * window}"


def write_graphs(
    layout: Layout,
    pipeline: Sequence[PipelineStage] | None,
    author: StageAuthor,
    context: int,
    *,
    folder: Path,
    data: str,
) -> None:
    """Author every graph of the layout into `folder`, pointing into the data file `data`.

    `pipeline` is what `layout.pipeline` gives.
    """
    if pipeline is None:
        _write(folder, "model", data, author.decoder)
        return
    for stage in pipeline:
        _write(folder, stage.name, data, _author_of(stage.name, layout, author, context))


def _author_of(
    name: str, layout: Layout, author: StageAuthor, context: int
) -> Callable[[GraphWriter], None]:
    window = layout.window
    # Embeddings and head run on any number of tokens: only what an NPU takes is made static.
    loose = DYNAMIC if window is None else Shapes(batch=1, fixed=True)
    if name == "embeddings":
        return lambda graph: author.embeddings(graph, loose)
    if name == "lm_head":
        return lambda graph: author.head(graph, loose)
    if window is None:
        return lambda graph: author.transformer(graph, DYNAMIC)
    tokens = window if name == "context" else 1
    return lambda graph: author.transformer(graph, Shapes.static(tokens, context))


def _write(folder: Path, name: str, data: str, author: Callable[[GraphWriter], None]) -> None:
    graph = GraphWriter(name, data)
    author(graph)
    graph.save(folder / f"{name}.onnx")
