"""Measuring routes: requests that take turns, kept one by one, and what follows from them.

report = measure(Bundle.open("smollm2"), parse("config; ep=openvino"), Plan(texts("Hello", [64])))
print(report.routes[0].aggregate.decode_tokens_per_second.mean)
"""

from turnout.perf.measuring import Plan, measure
from turnout.perf.report import Report, read
from turnout.perf.routeset import Candidate, parse
from turnout.perf.workloads import sweep, texts

__all__ = ["Candidate", "Plan", "Report", "measure", "parse", "read", "sweep", "texts"]
