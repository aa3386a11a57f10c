"""`check`: every finding about a bundle, or about a lone config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.bundle import CONFIG_NAME, Bundle, GenaiConfig
from turnout.bundle.bundle import as_path
from turnout.checking import parsing
from turnout.checking.findings import MOST_OF_A_CODE, SEVERITIES, Finding
from turnout.checking.subject import Subject
from turnout.errors import BundleError, ConfigError, UsageError
from turnout.files import is_file, is_forbidden, kind_of

if TYPE_CHECKING:
    from types import ModuleType

    from turnout.machine import Inventory

SCHEMA_VERSION = 1
_GENAI = "onnxruntime-genai"
# How a config begins: blanks, a byte order mark of UTF-8 too, then an object; or as UTF-16.
_START = 256
_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

# In the order in which they are told within a severity; each has `RULES` and `check(subject)`.
CHECKS = (
    "stages",
    "wiring",
    "sizes",
    "graphs",
    "files",
    "data",
    "tokenizers",
    "providers",
    "machines",
)


def modules() -> Iterator[ModuleType]:
    """The modules that check a config which can be read."""
    for name in CHECKS:
        yield import_module(f"turnout.checking.{name}")


@dataclass(frozen=True)
class Report:
    """What was checked, and what was found, the worst first."""

    path: str
    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> bool:
        """Whether onnxruntime-genai's parser takes the config: no error of the kind "parser".

        That of the machine, where an inventory is given. It says nothing about files and graphs.
        """
        return not any(f.kind == "parser" and f.severity == "error" for f in self.findings)

    def count(self, severity: str) -> int:
        """How many findings have that severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "schema_version": SCHEMA_VERSION,
            "path": self.path,
            "accepted_by_parser": self.accepted,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "findings": [finding.to_json() for finding in self.findings],
        }


def check(
    bundle: Bundle | Path | str,
    *,
    config: GenaiConfig | None = None,
    inventory: Inventory | None = None,
) -> Report:
    """Everything that is wrong with a bundle; nothing is loaded, and no weights are read.

    Of a `genai_config.json` alone it says what `check_config` does. `config` takes the place of
    the bundle's own, as after a route. `inventory` is the machine that is to run it; None looks
    at no machine. Raises `NotABundleError` for a path that is none,
    and `BundleError` for a config that cannot be opened.
    """
    if not isinstance(bundle, Bundle):
        path = as_path(bundle)
        if config is None and is_config(path):
            return check_config(path, inventory=inventory)
        try:
            bundle = Bundle.open(path)
        except ConfigError:
            return check_config(path / CONFIG_NAME, inventory=inventory)
    path = bundle.path
    text = bundle.config.text if config is None else config.text
    found = parsing.check_bytes(text.encode("utf-8"), CONFIG_NAME, _genai(inventory))
    subject = Subject(config or bundle.config, bundle, inventory)
    shape = parsing.check_path(str(path))
    return _report(path, chain(shape, found, _beyond_the_parser(subject)))


def is_config(path: Path) -> bool:
    """Whether a regular file is there that is taken for a config: by its name or its beginning."""
    if not is_file(path):
        return False
    if path.suffix.lower() == ".json":
        return True
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError:
        return False
    return start.lstrip(_BEFORE_JSON).startswith(b"{") or start.startswith(_UTF_16)


def check_config(path: Path | str, *, inventory: Inventory | None = None) -> Report:
    """Everything that a config alone tells.

    Raises `UsageError` where nothing is, and `ConfigError` for what cannot be read.
    """
    path = as_path(path)
    if kind_of(path) == "nothing" and not is_forbidden(path):
        raise UsageError(
            f"{path} is no file.", expected="a genai_config.json, or a bundle's directory"
        )
    return check_document(GenaiConfig.read(path), path, inventory=inventory)


def check_document(data: bytes, path: Path, *, inventory: Inventory | None = None) -> Report:
    """Everything that a config alone tells, by its bytes; `path` is where they came from."""
    found = parsing.check_bytes(data, path.name, _genai(inventory))
    try:
        config = GenaiConfig.parse(data.decode("utf-8"), path.name)
    except (ConfigError, UnicodeDecodeError):
        return _report(path, found)
    return _report(path, chain(found, _beyond_the_parser(Subject(config, None, inventory))))


def _beyond_the_parser(subject: Subject) -> Iterator[Finding]:
    for module in modules():
        try:
            yield from module.check(subject)
        except BundleError:
            # Stages that cannot be told apart: `stages` has said why.
            continue


def _report(path: Path, found: Iterable[Finding]) -> Report:
    order = {severity: place for place, severity in enumerate(SEVERITIES)}
    findings = sorted(_bounded(found), key=lambda finding: order[finding.severity])
    return Report(str(path), tuple(findings))


def _bounded(found: Iterable[Finding]) -> Iterator[Finding]:
    """The first findings of every code, and one that says how many more there are."""
    seen: Counter[str] = Counter()
    last: dict[str, Finding] = {}
    for finding in found:
        seen[finding.code] += 1
        if seen[finding.code] <= MOST_OF_A_CODE:
            yield finding
        last[finding.code] = finding
    for code, count in seen.items():
        more = count - MOST_OF_A_CODE - 1
        if more == 0:
            yield last[code]  # it may itself be one that says how many more there are
        elif more > 0:
            yield replace(last[code], message=f"{last[code].message} ({more} more like it.)")


def _genai(inventory: Inventory | None) -> str:
    return inventory.runtimes.get(_GENAI, "") if inventory is not None else ""
