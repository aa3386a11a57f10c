"""Verifying routes: whether they give the same answers as a reference, by their logits.

from turnout.verify import Plan, verify

verify(Bundle.open("smollm2"), parse("config; ep=openvino"), Plan())
"""

from turnout.verify.plan import Plan, reference_route, thresholds
from turnout.verify.questions import Asking, Random
from turnout.verify.verifying import verify

__all__ = ["Asking", "Plan", "Random", "reference_route", "thresholds", "verify"]
