"""Write `docs/report.md` and `docs/perf-report.schema.json` from the report's structs."""

from pathlib import Path

from turnout.files import write_atomic
from turnout.perf.documentation import render, render_schema

if __name__ == "__main__":
    docs = Path(__file__).parents[1] / "docs"
    write_atomic(docs / "report.md", render().encode("utf-8"))
    write_atomic(docs / "perf-report.schema.json", render_schema().encode("utf-8"))
