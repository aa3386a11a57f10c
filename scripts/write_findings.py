"""Write `docs/findings.md` from the rules of the checks."""

from pathlib import Path

from turnout.checking.documentation import render
from turnout.files import write_atomic

if __name__ == "__main__":
    page = Path(__file__).parents[1] / "docs" / "findings.md"
    write_atomic(page, render().encode("utf-8"))
