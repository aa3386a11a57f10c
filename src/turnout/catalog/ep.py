"""What an execution provider is, to everything that is not the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from turnout.catalog.devices import meant
from turnout.catalog.grammars import Device
from turnout.catalog.options import BUILT_IN, PLUGIN, Option

# Order of preference when any device will do.
DEVICES = ("npu", "gpu", "cpu")

# Where onnxruntime-genai keeps the inputs of a pipeline whose decoder names an EP: in memory that
# every stage reads ("host"), that stages read which name the EP themselves ("stages"), or that no
# stage reads ("own"). `IntermediatePipelineState::SupportsPrimaryDevice` in its source.
Memory = Literal["host", "stages", "own"]


@dataclass(frozen=True)
class Package:
    """A package that brings an EP.

    `platforms` are `system-machine` words (`linux-x86_64`, `windows-arm64`, `macos-arm64`).
    `module` is the module of a plugin package and `library` the stem of the library inside it,
    both None for a package that takes onnxruntime's place and has the EP built in.
    `compile_only` are those platforms on which it can prepare models but not run them, and
    `simulates` those on which what it prepared runs in a simulator of its devices.
    """

    name: str
    platforms: tuple[str, ...]
    module: str | None = None
    library: str | None = None
    compile_only: tuple[str, ...] = ()
    simulates: tuple[str, ...] = ()


@dataclass(frozen=True)
class OfflineTarget:
    """How an EP is told of a device that is not here, to compile for it.

    `device` is its kind. `options` are the provider options that describe it, `required` those
    of which at least one must be given. `record` says where the EP notes in a compiled graph
    which values it took: fields by position, split at colons, of its compatibility string; "0"
    in a field is a value that it did not take. `record_version` is the first field.
    `compiling_options` are refused where nothing is compiled.
    """

    device: str
    options: tuple[str, ...]
    required: tuple[str, ...] = ()
    record: Mapping[str, int] = field(default_factory=dict)
    record_version: str = ""
    compiling_options: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ep:
    """One execution provider.

    `devices` come in order of preference; `compile_only_on` are devices that its plugin lists
    but can only compile on, ahead of time. `required_options`: at least one must be given;
    `exclusive_options`: at most one may be.
    `device_words` maps an option's value to a device; `default_device` is the one that takes effect
    when no option selects any. `device_name_key`: the metadata under which its devices have the
    names that a device option of onnxruntime-genai is looked for in. `context_magic`: what a
    compiled binary begins with, where its format is the one that `bundle.epcontext` reads.
    `cache_properties`: properties inside `properties_option` that make it keep files of its own
    while compiling. `exact_*` are what makes its arithmetic exact: session options, or properties
    inside the JSON provider option `properties_option`, and `exact_on` the devices that can.
    `options` are those that are known, `all_options_known` whether another one deserves a warning.
    `memory`: see `Memory`. `target`: how it compiles for a device that is elsewhere, None if it
    cannot. `backends`: what
    `backend_options` say -> the stem of the library, beside the plugin's own, that does the work.
    `spellings` are the names that onnxruntime-genai 0.18 knows it by, where it does not take any
    of them in any case (measured). `whole_option`: with "True" in it the EP runs a whole decoder
    with its cache, and nothing less. `slides_caches`: it drops what a window leaves behind from
    caches of any type. `refuses_links`: it reads no weights behind a link out of the graph's
    folder. `hardware_of`: the maker whose hardware alone it offers as devices, None for any.
    """

    name: str
    alias: str
    aliases: tuple[str, ...] = ()
    genai_name: str = ""
    spellings: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    compile_only_on: tuple[str, ...] = ()
    builtin: bool = False
    takes_options: bool = True
    compiles: bool = False
    shares_weights: bool = False
    memory: Memory = "host"
    options: tuple[Option, ...] = ()
    all_options_known: bool = False
    required_options: tuple[str, ...] = ()
    exclusive_options: tuple[str, ...] = ()
    device_options: tuple[str, ...] = ()
    device_words: Mapping[str, str] = field(default_factory=dict)
    default_device: str | None = None
    device_name_key: str | None = None
    context_magic: bytes | None = None
    cache_properties: tuple[str, ...] = ()
    defaults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    whole_option: str | None = None
    slides_caches: bool = False
    refuses_links: bool = False
    hardware_of: str | None = None
    properties_option: str | None = None
    exact_properties: Mapping[str, str] = field(default_factory=dict)
    exact_session_options: Mapping[str, str] = field(default_factory=dict)
    exact_unpacked_options: Mapping[str, str] = field(default_factory=dict)
    exact_on: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    otherwise: str | None = None
    target: OfflineTarget | None = None
    backend_options: tuple[str, ...] = ()
    backends: Mapping[str, str] = field(default_factory=dict)

    @property
    def known_contexts(self) -> bool:
        """Whether what it compiles can be read, and it takes only nodes of its very name."""
        return bool(self.context_magic)

    @property
    def written_name(self) -> str:
        """The spelling written into a `genai_config.json`."""
        return self.genai_name or self.name

    def serves(self, device: str) -> bool:
        """Whether it can run (not just compile) on that kind of device."""
        return device in self.devices

    def package_for(self, platform: str) -> Package | None:
        """The package to install on `platform`, None if there is none."""
        return next((p for p in self.packages if platform in p.platforms), None)

    def runs_on(self, platform: str) -> bool:
        """Whether it can run on `platform` with what its packages bring there."""
        package = self.package_for(platform)
        return package is None or platform not in package.compile_only

    def simulates_on(self, platform: str) -> bool:
        """Whether what it compiled runs on `platform` in a simulator of its devices."""
        package = self.package_for(platform)
        return package is not None and platform in package.simulates

    @property
    def selecting_options(self) -> tuple[str, ...]:
        """The options whose values say which kind of device to use."""
        return tuple(dict.fromkeys(key for chosen in self.defaults.values() for key in chosen))

    def option(self, name: str, generation: str = PLUGIN) -> Option | None:
        """What is known of an option in a generation; None if nothing is."""
        return next(
            (o for o in self.options if o.name == name and generation in o.generations), None
        )

    def generation(self, source: str | None) -> str:
        """The generation that an inventory's `source` is of; a plugin where there is none."""
        return BUILT_IN if source == BUILT_IN else PLUGIN

    def device_of(self, options: Mapping[str, str], generation: str = PLUGIN) -> str | None:
        """The kind of device that provider options select; None if left open (`AUTO:GPU,CPU`).

        Options that the generation does not read select nothing.
        """
        open_to_choice = False
        for name in self.device_options:
            option = self.option(name, generation)
            if name not in options or (option is not None and option.ignored is not None):
                continue
            device = self._device_in(option, options[name])
            if device is not None:
                return device
            open_to_choice = open_to_choice or name in self.selecting_options
        return None if open_to_choice else self.default_device

    def _device_in(self, option: Option | None, text: str) -> str | None:
        if option is not None and isinstance(option.grammar, Device):
            selection = meant(text)
            return selection.kind if selection is not None else None
        return self.device_words.get(_device_word(text))


def _device_word(value: str) -> str:
    """`C:\\x\\QnnHtp.dll`, `libQnnHtp.so`, `CPUOnly` -> qnnhtp, qnnhtp, cpuonly."""
    word = value.strip().replace("\\", "/").rpartition("/")[2].lower().removeprefix("lib")
    return word.partition(".")[0].partition("_")[0]
