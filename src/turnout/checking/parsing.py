"""Checks of what onnxruntime-genai's parser refuses (codes T1x)."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.checking.findings import Finding, Rule
from turnout.checking.subject import Subject

RULES: tuple[Rule, ...] = ()


def check(subject: Subject) -> Iterator[Finding]:  # noqa: ARG001
    """Findings about what onnxruntime-genai's parser refuses."""
    yield from ()
