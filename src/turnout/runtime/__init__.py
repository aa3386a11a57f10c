"""Loading a bundle along a route, and generating text from it."""

from turnout.runtime.conversation import Conversation
from turnout.runtime.generation import Generation, GenerationResult
from turnout.runtime.options import SearchOptions
from turnout.runtime.session import InEffect, Session
from turnout.runtime.timing import LoadSpans, RequestSpans

__all__ = [
    "Conversation",
    "Generation",
    "GenerationResult",
    "InEffect",
    "LoadSpans",
    "RequestSpans",
    "SearchOptions",
    "Session",
]
