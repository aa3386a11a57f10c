"""From a source model to a bundle on disk, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.bundle import CONFIG_NAME, Bundle
from turnout.errors import GgufError, GraphError, OutputExistsError, UsageError
from turnout.files import atomic_folder, write_atomic

if TYPE_CHECKING:
    from turnout.building.architectures import ModelPlan
    from turnout.building.gguf import GgufFile
    from turnout.building.layouts import Layout
    from turnout.building.spec import ModelSpec
    from turnout.building.tokenizer import TokenizerFacts
    from turnout.building.weights import StoredModel

ACCURACY_LEVELS = (0, 1, 4)
DATA_NAME = "model.data"


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is: source bytes written of all, and the step it is at."""

    step: str
    done: int
    total: int


@dataclass(frozen=True)
class BuildOptions:
    """What `build` was asked for beside the layout; see there. Refuses what makes no sense."""

    accuracy_level: int = 4
    precision: str = "source"
    context_length: int | None = None

    def __post_init__(self) -> None:
        """Check each option by itself."""
        from turnout.building.matrices import PRECISIONS

        _check_whole("accuracy_level", self.accuracy_level)
        _check_whole("context_length", self.context_length)
        if self.accuracy_level not in ACCURACY_LEVELS:
            raise UsageError(
                f"There is no accuracy level {self.accuracy_level}.",
                found=self.accuracy_level,
                expected="0 (exact float), 1 (float32), 4 (8-bit activations)",
            )
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"There is no precision {self.precision!r}.",
                found=self.precision,
                expected=", ".join(PRECISIONS),
            )

    def context_of(self, spec: ModelSpec) -> int:
        """The context length of the bundle, in tokens."""
        if self.context_length is None:
            return spec.context
        if not 2 <= self.context_length <= spec.context:
            raise UsageError(
                "The context length is not one that the model has.",
                found=self.context_length,
                expected=f"2, a token of a prompt and one of an answer, to {spec.context}, "
                "the model's own",
            )
        return self.context_length


def _check_whole(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name} is no whole number.", found=repr(value), expected="an integer")


def _output_path(output: Path | str) -> Path:
    if "\0" in str(output):
        raise UsageError(
            "The output has no usable name.",
            found=repr(str(output)),
            expected="a path without a NUL",
        )
    # Absolute, so that it is right also where the current folder is the one that is replaced.
    return Path(os.path.abspath(output))  # noqa: PTH100 - resolve() would follow links


def build(
    source: Path | str,
    output: Path | str,
    *,
    layout: str = "pipeline",
    two_sessions: bool = False,
    static_prefill: int | None = None,
    accuracy_level: int = 4,
    precision: str = "source",
    context_length: int | None = None,
    overwrite: bool = False,
    progress: Callable[[BuildProgress], None] | None = None,
) -> Path:
    """Make an onnxruntime-genai bundle at `output` from the GGUF file `source`; its absolute path.

    - `layout`: `pipeline` (embeddings, transformer, lm_head) or `flat` (one graph).
    - `two_sessions`: stages of their own for prefill (`context`) and decode (`iterator`).
    - `static_prefill`: the same two with fixed shapes: a prefill of so many tokens, a decode of
      one, a key-value cache of the context length.
    - `accuracy_level`: of the products with quantized weights on the CPU EP: 4 rounds
      activations to 8 bits, 0 computes in float.
    - `precision`: `source` keeps the file's own quantization, exactly; `fp32` dequantizes it,
      exactly; `int8` and `int4` round what the file has in float to blocks of 32.
    - `context_length`: tokens, at most the model's own.

    The same source and options give the same bytes. Nothing is left behind on any error.
    Raises `SourceError`, `UsageError` or `WriteError`.
    """
    from turnout.building.architectures import plan_model
    from turnout.building.gguf import GgufFile
    from turnout.building.layouts import Layout
    from turnout.building.spec import read_spec

    options = BuildOptions(accuracy_level, precision, context_length)
    _check_whole("static_prefill", static_prefill)
    form = Layout(layout, two_sessions, static_prefill)
    target = _output_path(output)
    with GgufFile.open(source) as gguf:
        spec = read_spec(gguf)
        context = options.context_of(spec)
        form.check_context(context)
        job = _Build(
            gguf,
            spec,
            plan_model(gguf, spec),
            layout=form,
            options=options,
            context=context,
            progress=progress,
        )
        _check_replaceable(target, gguf.path)
        with atomic_folder(target, overwrite=overwrite) as folder:
            job.write(folder)
            verify_written(folder)
    return target


def _check_replaceable(output: Path, source: Path) -> None:
    """`overwrite` replaces a bundle; a folder of something else would be lost by mistake."""
    if source.resolve().is_relative_to(output.resolve()):
        raise UsageError(
            "The model file lies in the output, and would go with what is replaced.",
            found=source,
            where=output,
            fix="choose another output, or move the model file",
        )
    if not output.exists():
        return
    if Path.cwd().is_relative_to(output.resolve()):
        raise UsageError(
            "The output is the current folder, or one around it.",
            where=output,
            fix="go to another folder first: replacing it would leave the shell in a deleted one",
        )
    if (output / CONFIG_NAME).is_file():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise OutputExistsError(
            f"{output} exists and is no bundle, so it is not replaced.",
            found="a folder without a genai_config.json" if output.is_dir() else "a file",
            where=output,
            fix="choose another output, or remove it yourself",
        )


class _Build:
    """One build into an empty folder."""

    def __init__(
        self,
        gguf: GgufFile,
        spec: ModelSpec,
        plan: ModelPlan,
        *,
        layout: Layout,
        options: BuildOptions,
        context: int,
        progress: Callable[[BuildProgress], None] | None,
    ) -> None:
        self._gguf = gguf
        self._spec = spec
        self._plan = plan
        self._layout = layout
        self._options = options
        self._context = context
        self._report = progress
        self._total = sum(tensor.nbytes for tensor in gguf.tensors.values())
        self._done = 0

    def write(self, folder: Path) -> None:
        """Tokenizer first: it is quick, and refuses what it does not know."""
        from turnout.building.genai import config_text
        from turnout.building.layouts import write_graphs
        from turnout.building.stages import StageAuthor
        from turnout.building.tokenizer import write_tokenizer

        self._say("tokenizer")
        tokenizer = write_tokenizer(self._gguf, folder)
        self._check_vocabulary(tokenizer)
        weights = self._write_weights(folder)
        self._say("graphs")
        author = StageAuthor(self._spec, weights, self._options.accuracy_level)
        pipeline = self._layout.pipeline(self._spec)
        write_graphs(self._layout, pipeline, author, self._context, folder=folder, data=DATA_NAME)
        text = config_text(self._spec, tokenizer, self._context, pipeline, self._layout.window)
        write_atomic(folder / CONFIG_NAME, text)

    def _write_weights(self, folder: Path) -> StoredModel:
        from turnout.building.datafile import DataFile
        from turnout.building.matrices import MatrixWriter, Precision
        from turnout.building.weights import store_model

        with DataFile(folder / DATA_NAME) as data:
            writer = MatrixWriter(data, Precision(self._options.precision), self._advance)
            return store_model(self._plan, self._spec, self._context, writer)

    def _check_vocabulary(self, tokenizer: TokenizerFacts) -> None:
        if tokenizer.vocab_size > self._spec.vocabulary:
            raise GgufError(
                "The tokenizer has more tokens than the embedding has rows.",
                found=f"{tokenizer.vocab_size} tokens, {self._spec.vocabulary} rows",
                expected="at most as many tokens as rows",
                where=self._gguf.path,
            )

    def _advance(self, nbytes: int) -> None:
        self._done += nbytes
        self._say("weights")

    def _say(self, step: str) -> None:
        if self._report is not None:
            self._report(BuildProgress(step, self._done, self._total))


def verify_written(folder: Path) -> None:
    """Read a new bundle back as a stranger would: config, graphs, and ranges of weights.

    Raises `BundleError` if what was written does not hold together.
    """
    bundle = Bundle.open(folder)
    for stage in bundle.stages:
        graph = bundle.graph(stage)
        for initializer in graph.initializers:
            external = initializer.external
            if external is None:
                continue
            size = (folder / external.location).stat().st_size
            if external.offset + (external.length or 0) > size:
                raise GraphError(
                    f"{initializer.name} lies outside its data file.",
                    found=f"{external.offset} + {external.length}",
                    expected=f"at most {size}",
                    where=bundle.graph_path(stage),
                )
