"""What is known of one provider option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnout.catalog.grammars import Grammar

# An EP as a plugin library, and one that a runtime's package has built in. They read options
# differently: most clearly OpenVINO's, from the packages onnxruntime-ep-openvino and
# onnxruntime-openvino.
PLUGIN, BUILT_IN = "plugin", "built-in"
GENERATIONS = (PLUGIN, BUILT_IN)

_ANYTHING = Grammar()


@dataclass(frozen=True)
class Option:
    """One option of an EP, in the generations that have it.

    `refuses`: with a value outside `grammar` the session fails; otherwise the value has no
    effect. `by_device` narrows the grammar for a kind of device. `ignored`: the EP reads the
    option no more, `deprecated`: it still does; each says what to write instead, `$value` being
    the number that was written. `is_path`: its value is the path of a file or folder.
    `is_native`: the EP loads native code from where its value says; a bare name is looked for
    among the EP's own libraries. `for_genai`: onnxruntime-genai reads it, and does not pass it on
    to the EP.
    """

    name: str
    grammar: Grammar = _ANYTHING
    refuses: bool = False
    by_device: Mapping[str, Grammar] = field(default_factory=dict)
    ignored: str | None = None
    deprecated: str | None = None
    is_path: bool = False
    is_native: bool = False
    for_genai: bool = False
    generations: tuple[str, ...] = GENERATIONS

    def grammar_on(self, device: str | None) -> Grammar:
        """The grammar on a kind of device (None: not known)."""
        return self.by_device.get(device or "", self.grammar)
