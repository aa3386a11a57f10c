"""The layouts in which a config names its stages, and the session options each one gets.

Which options take effect, in onnxruntime-genai 0.18: a `decoder.pipeline` stage without
`session_options` uses the decoder's; with them it uses only its own, unless
`inherit_session_options` is true: then the decoder's below its own. Every other section uses
its own or, having none, the decoder's. In a `vision.pipeline` only `vision_attn` takes any.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnout import catalog
from turnout.bundle.jsontext import Node, Path, line_and_column, show_path
from turnout.errors import ConfigError

# Sections of `model` that name a graph. Those in front run before the decoder.
BEFORE_DECODER = ("vad", "vision", "speech", "encoder", "embedding")
AFTER_DECODER = ("joiner", "mtp", "draft", "dflash2", "dspark", "moonshine", "audio_output")
PROMPT_ONLY = frozenset({"vad", "vision", "speech", "encoder"})
TOKENS_ONLY = frozenset({"mtp", "draft", "dflash2", "dspark"})
# Sections that never take the decoder's options. (A draft must name the decoder's very EPs.)
STANDALONE = frozenset({"decoder", "draft"})
DEVICE_FILTER = "device_filtering_options"
# Far above what any bundle has; each stage holds the options that it inherits, and is edited by
# itself, so that without bounds a config of a megabyte takes gigabytes and hours.
MAX_STAGES = 128
MAX_OPTIONS = 500  # keys of one `session_options`, options of one `provider_options`


@dataclass(frozen=True)
class ProviderEntry:
    """One element of `provider_options`: `name` as written, `ep` canonical, `options` strings.

    `device_filter` is its `device_filtering_options`, which onnxruntime-genai reads itself.
    """

    name: str
    ep: str
    options: Mapping[str, str]
    device_filter: Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """One graph of a bundle, and the session options it runs with.

    `path` is the JSON path of its object. `providers` are those that take effect, in order;
    `session_options` is its own object as written ({} when absent: see
    `has_session_options`); `effective_options` are all options that take effect, without
    `provider_options`. `inherits` is true where the decoder's options take effect;
    `takes_options` is false for a stage that the runtime always loads with defaults.
    """

    name: str
    section: str
    path: Path
    filename: str | None
    run_on_prompt: bool
    run_on_token_gen: bool
    is_lm_head: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    providers: tuple[ProviderEntry, ...]
    session_options: Mapping[str, Any]
    has_session_options: bool
    effective_options: Mapping[str, Any]
    inherits: bool
    takes_options: bool = True

    @property
    def ep(self) -> str:
        """The canonical EP that takes effect: the first other than CPU, else the CPU's."""
        cpu = catalog.CPU.name
        return next((entry.ep for entry in self.providers if entry.ep != cpu), cpu)

    @property
    def options_section(self) -> str:
        """The section of `model` whose `session_options` stand in where it has none."""
        return _parent_of(self.section)

    @property
    def in_decoder(self) -> bool:
        """Whether it belongs to `model.decoder`."""
        return self.section == "decoder"


def read_stages(text: str, root: Node, where: str) -> tuple[Stage, ...]:
    """Every stage of the config `text`, parsed as `root`. Raises `ConfigError`."""
    return _Reader(text, root, where).stages()


def read_providers(text: str, root: Node, where: str, options: Path) -> tuple[ProviderEntry, ...]:
    """The provider entries of the session options at the path `options`. Raises `ConfigError`."""
    return _Reader(text, root, where).providers(options)


class _Reader:
    def __init__(self, text: str, root: Node, where: str) -> None:
        self.text, self.root, self.where = text, root, where

    def stages(self) -> tuple[Stage, ...]:
        model = self.root.child("model")
        if model is None:
            keys = ", ".join(member.key for member in self.root.members[:8]) or "no keys"
            raise ConfigError(
                f"{self.where} has no model.",
                found=keys,
                expected="a model with a decoder, as onnxruntime-genai reads it",
                where=self.where,
            )
        self.expect(("model",), "object")
        names = dict.fromkeys(member.key for member in model.members)
        known = {*BEFORE_DECODER, "decoder", *AFTER_DECODER}
        order = [*BEFORE_DECODER, "decoder", *AFTER_DECODER, *(n for n in names if n not in known)]
        stages: list[Stage] = []
        for section in order:
            if section in names:
                for stage in self.section(section, known=section in known):
                    self.bound(stage.path, len(stages) + 1, MAX_STAGES, "stages")
                    stages.append(stage)
        return self.distinct(stages)

    def distinct(self, stages: list[Stage]) -> tuple[Stage, ...]:
        """Stages under names of their own: equal names of two sections get the section's name."""
        seen: dict[str, Stage] = {}
        for stage in stages:
            if stage.name in seen and seen[stage.name].section == stage.section:
                raise self.error(
                    stage.path,
                    f"Two stages are named {stage.name!r}.",
                    found=f"also at {show_path(seen[stage.name].path)}",
                    expected="one name a stage",
                )
            seen.setdefault(stage.name, stage)
        return tuple(
            stage if seen[stage.name] is stage else _renamed(stage, f"{stage.section}.{stage.name}")
            for stage in stages
        )

    def section(self, section: str, *, known: bool) -> Iterator[Stage]:
        path: Path = ("model", section)
        node = self.root.find(path)
        if node is None or node.kind != "object":
            if known:
                self.expect(path, "object")
            return
        steps = list(itertools.islice(self.pipeline((*path, "pipeline")), MAX_STAGES + 1))
        if steps:
            yield from (self.stage(step, str(step[-1]), section) for step in steps)
        elif section == "decoder" or node.child("filename") is not None:
            yield self.stage(path, section, section)
        for member in node.members:
            # Parts that a section names beside its graph, as moonshine and audio_output do.
            inner = member.value
            name = member.key.removesuffix("_filename")
            if name != member.key and _is_graph(inner):
                yield self.stage(path, f"{section}.{name}", section, file_key=member.key)
            elif inner.kind == "object" and _is_graph(inner.child("filename")):
                yield self.stage((*path, member.key), f"{section}.{name}", section)

    def pipeline(self, path: Path) -> Iterator[Path]:
        """The paths of a pipeline's stages, in each layout; nothing when it has none."""
        node = self.root.find(path)
        if node is None:
            return
        if node.kind == "object":
            objects: list[tuple[Path, Node]] = [(path, node)]
        else:
            self.expect(path, "array")
            objects = [((*path, index), item) for index, item in enumerate(node.items)]
        for where, item in objects:
            self.expect(where, "object")
            for member in item.members:
                yield (*where, member.key)

    def stage(self, path: Path, name: str, section: str, file_key: str = "filename") -> Stage:
        self.expect(path, "object")
        in_pipeline = len(path) > 2 and path[2] == "pipeline"
        own = self.options((*path, "session_options"), None)
        inherit = in_pipeline and self.typed((*path, "inherit_session_options"), "bool", False)
        inherits = (in_pipeline or section not in STANDALONE) and (own is None or inherit)
        takes = True
        if in_pipeline and section == "vision":
            on_cpu = self.typed((*path, "run_on_cpu"), "bool", False)
            takes = name == "vision_attn" and not on_cpu
            inherits = inherits and takes
        providers = self.providers((*path, "session_options")) if takes else ()
        options = _free_options(own or {}) if takes else {}
        if inherits:
            parent: Path = ("model", _parent_of(section), "session_options")
            providers = _merged(providers, self.providers(parent))
            options = {**_free_options(self.options(parent, {})), **options}
        return Stage(
            name=name,
            section=section,
            path=path,
            filename=self.typed((*path, file_key), "string", None),
            run_on_prompt=self.typed((*path, "run_on_prompt"), "bool", section not in TOKENS_ONLY),
            run_on_token_gen=self.typed(
                (*path, "run_on_token_gen"), "bool", section not in PROMPT_ONLY
            ),
            is_lm_head=self.typed((*path, "is_lm_head"), "bool", False),
            inputs=self.names((*path, "inputs")),
            outputs=self.names((*path, "outputs")),
            providers=providers,
            session_options=own or {},
            has_session_options=own is not None,
            effective_options=options,
            inherits=inherits,
            takes_options=takes,
        )

    def options(self, path: Path, default: Any) -> Any:
        """The session options at a path, a bounded number of them."""
        node = self.root.find(path)
        self.bound(path, 0 if node is None else len(node.members), MAX_OPTIONS, "session options")
        return self.typed(path, "object", default)

    def names(self, path: Path) -> tuple[str, ...]:
        """Tensor names: a pipeline stage lists them, other sections map roles to them."""
        node = self.root.find(path)
        if node is None:
            return ()
        if node.kind == "object":
            children = [member.value for member in node.members]
        else:
            self.expect(path, "array")
            children = list(node.items)
            for index, child in enumerate(children):
                if child.kind != "string":
                    self.expect((*path, index), "string")
        return tuple(str(child.scalar) for child in children if child.kind == "string")

    def providers(self, options: Path) -> tuple[ProviderEntry, ...]:
        path = (*options, "provider_options")
        node = self.root.find(path)
        if node is None or node.kind == "string":
            return ()  # a string is taken by onnxruntime-genai as a free option of that name
        self.expect(path, "array")
        entries: list[ProviderEntry] = []
        count = 0
        for index, item in enumerate(node.items):
            self.expect((*path, index), "object")
            for member in item.members:
                count += 1 + len(member.value.members)
                self.bound(path, count, MAX_OPTIONS, "provider options")
                entries.append(self.provider((*path, index, member.key), member.key))
        return _by_name(entries)

    def provider(self, path: Path, name: str) -> ProviderEntry:
        self.expect(path, "object")
        node = self.root.find(path)
        assert node is not None  # the caller walked to it
        options: dict[str, str] = {}
        device_filter: Mapping[str, Any] = {}
        for member in node.members:
            where = (*path, member.key)
            # A string of that name is passed on as any other option is.
            if member.key == DEVICE_FILTER and member.value.kind != "string":
                device_filter = self.typed(where, "object", {})
            else:
                options[member.key] = self.typed(where, "string", "")
        return ProviderEntry(name, catalog.canonical(name), options, device_filter)

    def typed(self, path: Path, kind: str, default: Any) -> Any:
        node = self.root.find(path)
        if node is None:
            return default
        self.expect(path, kind)
        return node.data()

    def expect(self, path: Path, kind: str) -> None:
        node = self.root.find(path)
        if node is not None and node.kind == kind:
            return
        shown = "nothing" if node is None else _shown(node)
        fix = None
        if kind == "string" and node is not None and node.kind in {"number", "bool"}:
            fix = "write the value in double quotes: onnxruntime-genai takes strings only there"
        article = "an" if kind[0] in "aeiou" else "a"
        raise self.error(
            path,
            f"{show_path(path)} has a value of the wrong kind.",
            found=shown,
            expected=f"{article} {kind}",
            fix=fix,
        )

    def bound(self, path: Path, count: int, limit: int, what: str) -> None:
        if count > limit:
            raise self.error(
                path,
                f"{show_path(path)} has too many {what}.",
                found=f"{count} or more",
                expected=f"at most {limit}",
            )

    def error(
        self,
        path: Path,
        problem: str,
        *,
        expected: str,
        found: str | None = None,
        fix: str | None = None,
    ) -> ConfigError:
        node = self.root.find(path)
        at = f"{self.where}, {show_path(path)}"
        if node is not None:
            line, column = line_and_column(self.text, node.start)
            at += f" (line {line}, column {column})"
        return ConfigError(problem, found=found, expected=expected, where=at, fix=fix)


def _parent_of(section: str) -> str:
    return section if section in STANDALONE else "decoder"


def _is_graph(node: Node | None) -> bool:
    return node is not None and node.kind == "string" and str(node.scalar).endswith(".onnx")


def _shown(node: Node) -> str:
    if node.kind in {"object", "array"}:
        return f"an {node.kind}"
    return f"the {node.kind} {str(node.data())[:60]!r}" if node.kind != "null" else "null"


def _free_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "provider_options"}


def _by_name(entries: list[ProviderEntry]) -> tuple[ProviderEntry, ...]:
    """Entries of one spelling as one, as the runtime reads them: the last word on each option."""
    found: dict[str, ProviderEntry] = {}
    for entry in entries:
        first = found.get(entry.name)
        if first is not None:
            options = {**first.options, **entry.options}
            device_filter = entry.device_filter or first.device_filter
            entry = replace(first, options=options, device_filter=device_filter)  # noqa: PLW2901
        found[entry.name] = entry
    return tuple(found.values())


def _merged(
    own: tuple[ProviderEntry, ...], parent: tuple[ProviderEntry, ...]
) -> tuple[ProviderEntry, ...]:
    """Own entries with the parent's options below them, then the parent's other entries."""
    parents = {entry.ep: entry for entry in parent}
    merged = []
    for entry in own:
        above = parents.pop(entry.ep, None)
        if above is not None:
            options = {**above.options, **entry.options}
            device_filter = entry.device_filter or above.device_filter
            merged.append(ProviderEntry(entry.name, entry.ep, options, device_filter))
        else:
            merged.append(entry)
    return (*merged, *parents.values())


def _renamed(stage: Stage, name: str) -> Stage:
    return replace(stage, name=name)
