"""Write what docs/ says of the reports of perf and verify, from the reports' structs."""

from pathlib import Path

from turnout.files import write_atomic
from turnout.perf import documentation as perf
from turnout.verify import documentation as verify

if __name__ == "__main__":
    docs = Path(__file__).parents[1] / "docs"
    write_atomic(docs / "report.md", perf.render().encode("utf-8"))
    write_atomic(docs / "perf-report.schema.json", perf.render_schema().encode("utf-8"))
    write_atomic(docs / "verify-report.schema.json", verify.render_schema().encode("utf-8"))
