"""`docs/report.md` and the published JSON Schema, made of the report's own structs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from turnout.perf.report import DOCUMENT, SCHEMA_VERSION, schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_HEAD = f"""# The report

`turnout perf BUNDLE -o FILE` writes one JSON document, in UTF-8. \
[perf-report.schema.json](perf-report.schema.json) is its JSON Schema. This page and the schema \
are made of the structs that write and read it: `make docs` writes them.

All times are seconds (`_s`), all sizes bytes (`_bytes`), and rates tokens per second. `null` is \
what was not measured, or what a platform does not tell. Every timed request is in the report \
with all its spans, so that every statistic can be worked out again.

```python
from pathlib import Path
from turnout.perf import report

measured = report.read(Path("report.json"))
for route in measured.routes:
    print(route.name, [request.tpot_s for request in route.requests if request.kind == "timed"])
```

## What a reader may rely on

- `document` is `"{DOCUMENT}"`, and `schema_version` a whole number, now {SCHEMA_VERSION}. \
A reader looks at both before anything else.
- Within one `schema_version`, no field goes away, changes its type or unit, comes to mean \
something else, or has a value that is not among those listed for it. Fields may be added, each \
with a default that stands for reports without it: **ignore fields that you do not know**.
- Anything else gets a new `schema_version`. Turnout then goes on reading reports of the older \
ones; it refuses those of newer ones, and says which version it reads.
- `tests/data/report-v1.json` is a report as version 1 had it. Tests keep every later version \
reading it.
- Names and texts in a report are those of bundles, models and command lines. They may hold \
anything: escape them before they are shown.

## Fields

The document is a [Report](#report). *Default* is what a field is taken for where it is absent; \
one without must be there.
"""


def render() -> str:
    """The page, as Markdown."""
    known = schema()["$defs"]
    return "\n".join([_HEAD, *("".join(_section(name, known[name])) for name in known)])


def render_schema() -> str:
    """The JSON Schema, as a document of its own."""
    return schema_document(f"A report of turnout perf, version {SCHEMA_VERSION}", schema())


def schema_document(title: str, described: dict[str, Any]) -> str:
    """A JSON Schema of that title, as a document of its own."""
    described = {"$schema": DIALECT, "title": title, **described}
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def _section(name: str, struct: dict[str, Any]) -> Iterator[str]:
    says = re.sub(r"(?<!\n)\n(?!\n)", " ", struct["description"])
    yield f"### {name}\n\n{says}\n\n"
    yield "| field | type | default | what it is |\n|---|---|---|---|\n"
    for field, described in struct["properties"].items():
        default = f"`{json.dumps(described['default'])}`" if "default" in described else ""
        yield f"| `{field}` | {_type(described)} | {default} | {described['description']} |\n"


def _type(described: dict[str, Any]) -> str:
    """The type in words: `list of [Request](#request)`, `number or null`."""
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in described:
        return " or ".join(map(_type, described["anyOf"]))
    if "enum" in described:
        return ", ".join(f"`{json.dumps(value)}`" for value in described["enum"])
    if "prefixItems" in described:
        return f"list of {len(described['prefixItems'])} {_several(described['prefixItems'][0])}"
    kind: str = described["type"]
    if kind == "array":
        return f"list of {_several(described['items'])}"
    values = described.get("additionalProperties")
    return f"object of {_several(values)}" if isinstance(values, dict) else kind


def _several(described: dict[str, Any]) -> str:
    return _type(described) if "$ref" in described else f"{_type(described)}s"
