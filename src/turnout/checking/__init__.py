"""Rules that say what is wrong with a bundle, on a machine, before anything is loaded.

    report = checking.check("smollm2")        # or check_config(path) for a lone config
    for finding in report.findings: ...

A check is a module with `RULES` and `check(subject)`; `rules()` is the table of all of them, of
which `docs/findings.md` is made.
"""

from __future__ import annotations

from turnout.checking.findings import Finding, Place, Rule
from turnout.checking.report import Report, check, check_config, modules
from turnout.checking.subject import Subject

__all__ = ["Finding", "Place", "Report", "Rule", "Subject", "check", "check_config", "rules"]


def rules() -> tuple[Rule, ...]:
    """Every rule, by its code."""
    from turnout.checking import parsing

    tables = [parsing.RULES, *(module.RULES for module in modules())]
    return tuple(sorted((r for table in tables for r in table), key=lambda rule: rule.code))
