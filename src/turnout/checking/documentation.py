"""`docs/findings.md`, made of the rules themselves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from turnout.checking import rules
from turnout.checking.findings import KINDS, Rule

_HEAD = """# Findings

`turnout check BUNDLE` (or a `genai_config.json` alone) says what would fail, or silently go \
wrong, before anything is loaded. Every finding has a code; this page explains each. It is made \
of the same table that the checks use: `make docs` writes it.

| severity | means |
|---|---|
| error | it fails, or answers are wrong; the exit code is 1 |
| warning | it fails in some uses, or something is silently ignored |
| info | worth knowing |

In `--json`, `findings[]` has `code`, `severity`, `kind`, `path` (a JSON path of the config, or a \
file of the bundle), `found`, `expected`, `message`, `fix`, and `line` and `column` of the config.
"""
_TITLES = {
    "parser": "What onnxruntime-genai refuses to read",
    "graph": "Stages and graphs",
    "files": "Files",
    "route": "EPs, their options, and the machine",
}


def render() -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD]
    table = rules()
    for kind in KINDS:
        chosen = [rule for rule in table if rule.kind == kind]
        if not chosen:
            continue
        parts.append(f"## {_TITLES[kind]}\n\nKind `{kind}`.\n")
        parts += ["".join(_section(rule)) for rule in chosen]
    return "\n".join(parts)


def _section(rule: Rule) -> Iterator[str]:
    yield f"### {rule.code}: {rule.title}\n\n"
    yield f"*{rule.severity}*. {rule.why}\n\n"
    yield f"Bad:{_example(rule.bad)}\nGood:{_example(rule.good)}"


def _example(text: str) -> str:
    """JSON as a block, prose as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return f" {text}\n"
    if _long(text):
        with contextlib.suppress(ValueError):  # an example of what is no JSON
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return f"\n\n```json\n{text}\n```\n"


def _long(text: str) -> bool:
    return len(text) > 100 and "\\u" not in text
