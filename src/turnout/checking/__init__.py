"""Rules that say what is wrong with a bundle, on a machine, before anything is loaded.

    report = checking.check(bundle)          # or check_config(path) for a lone config
    for finding in report.findings: ...

Every check is a module with `RULES` and `check(subject)`; `RULES` here is the table of all,
of which `docs/findings.md` is made.
"""

from __future__ import annotations

from turnout.checking import (
    data,
    files,
    machines,
    parsing,
    providers,
    sizes,
    tokenizers,
    wiring,
)
from turnout.checking.findings import Finding, Place, Rule
from turnout.checking.subject import Subject

__all__ = ["RULES", "Finding", "Place", "Rule", "Subject"]

_CHECKS = (wiring, sizes, files, data, tokenizers, providers, machines)

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for module in (parsing, *_CHECKS) for rule in module.RULES),
        key=lambda rule: rule.code,
    )
)
