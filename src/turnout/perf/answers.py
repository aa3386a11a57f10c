"""Whether routes gave the same answers, judged by the hashes of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.perf.report import Report


def agreement(report: Report, workload: int) -> str:
    """In a sentence, whether routes agree on a workload; "" where nothing can be compared.

    Answers are equal when their tokens are. A route that gave several different ones is named.
    """
    answers = of_workload(report, workload)
    unsteady = [f"{name} gave {len(given)}" for name, given in answers if len(given) > 1]
    steady = [(name, given[0]) for name, given in answers if len(given) == 1]
    said = []
    if len(steady) > 1:
        said.append(_among([name for name, _ in steady], [given for _, given in steady]))
    if unsteady:
        said.append(f"Different answers to one prompt: {', '.join(unsteady)}.")
    return " ".join(said)


def differ(report: Report, workload: int) -> bool:
    """Whether there are different answers to one workload, of one route or of several."""
    return len({answer for _, given in of_workload(report, workload) for answer in given}) > 1


def of_workload(report: Report, workload: int) -> list[tuple[str, tuple[str, ...]]]:
    """Names of routes that answered, and the hashes of the different answers that each gave."""
    return [
        (route.name, result.token_ids_sha256)
        for route in report.routes
        for result in route.workloads
        if result.workload == workload and result.token_ids_sha256
    ]


def _among(names: list[str], given: list[str]) -> str:
    if len(set(given)) == 1:
        return f"All {len(names)} routes gave the same tokens."
    groups: dict[str, list[str]] = {}
    for name, answer in zip(names, given, strict=True):
        groups.setdefault(answer, []).append(name)
    first, *others = [", ".join(group) for group in groups.values()]
    return f"Answers differ: {first}; otherwise {'; otherwise '.join(others)}."
