"""What `turnout verify` found, on the page of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.perf.page import Section
    from turnout.verify.report import Report as Verified


def read_for(path: Path, content_sha256: str) -> Verified:
    """The verification in the file `path`, of the bundle with that content.

    Raises `UsageError` for a file that is none, and for that of another bundle.
    """
    from turnout.errors import UsageError
    from turnout.verify.report import read

    verified = read(path)
    if verified.bundle.content_sha256 != content_sha256:
        raise UsageError(
            "What was verified is another bundle than what is measured.",
            found=f"{verified.bundle.name}, content {verified.bundle.content_sha256}",
            expected=f"content {content_sha256}",
            where=path,
            fix="verify this bundle, with turnout verify BUNDLE -o FILE",
        )
    return verified


def section_of(path: Path, content_sha256: str) -> Section:
    """It as a part of a page. Raises `UsageError`."""
    from turnout.verify.section import section

    return section(read_for(path, content_sha256))
