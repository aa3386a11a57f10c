"""`docs/findings.md`, made of the rules themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator

from turnout.checking import rules
from turnout.checking.findings import KINDS, Rule

_HEAD = """# Findings

`turnout check BUNDLE` (or a `genai_config.json` alone, `-` for one from standard input) says what \
would fail, or silently go wrong, before anything is loaded. Every finding has a code; this page \
explains each. It is made of the same table that the checks use: `make docs` writes it.

| severity | means |
|---|---|
| error | it fails, or answers are wrong; the exit code is 1 |
| warning | it fails in some uses, or something is silently ignored |
| info | worth knowing |

In `--json`, `findings[]` has `code`, `severity`, `kind`, `path` (a JSON path of the config, or a \
file of the bundle), `found`, `expected`, `message`, `fix`, and `line` and `column` of the config. \
`accepted_by_parser`, in Python `Report.accepted`, says whether onnxruntime-genai's parser takes \
the config: it does where no error is of the kind `parser`. Whether the bundle then runs is what \
the other errors say.
"""
_WIDEST = 100  # characters of an example that stays on one line
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
    """Prose as it is; JSON as a block, and below it what is said of it in prose."""
    if not text.startswith("{"):
        return f" {text}\n"
    try:
        document, end = json.JSONDecoder().raw_decode(text)
    except ValueError:  # an example of what is no JSON
        return f"\n\n```json\n{text}\n```\n"
    code, rest = text[:end], text[end:].lstrip(" ,")
    if len(code) > _WIDEST:
        code = json.dumps(document, indent=2, ensure_ascii=False)
    return f"\n\n```json\n{code}\n```\n" + (f"\n({rest})\n" if rest else "")
