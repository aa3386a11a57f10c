"""The published JSON Schema of a verification's report."""

from __future__ import annotations

from turnout.perf.documentation import schema_document
from turnout.verify.report import SCHEMA_VERSION, schema


def render_schema() -> str:
    """The JSON Schema, as a document of its own."""
    return schema_document(f"A report of turnout verify, version {SCHEMA_VERSION}", schema())
