"""Turnout: route, compile, share and measure language model bundles on ONNX Runtime.

The names below are the whole public API; they are imported when first used, because
the runtimes behind them are heavy.
"""

from __future__ import annotations

# Type checkers take it for true. The import of typing is what a command would wait for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from turnout.building import build
    from turnout.bundle import Bundle, GenaiConfig
    from turnout.checking import check
    from turnout.errors import TurnoutError
    from turnout.machine import Inventory
    from turnout.routing import Route, RouteRequest, route
    from turnout.runtime import Session

__version__ = "0.1.0"

__all__ = [
    "Bundle",
    "GenaiConfig",
    "Inventory",
    "Route",
    "RouteRequest",
    "Session",
    "TurnoutError",
    "__version__",
    "build",
    "check",
    "route",
]

_HOMES = {
    "Bundle": "turnout.bundle",
    "GenaiConfig": "turnout.bundle",
    "Inventory": "turnout.machine",
    "Route": "turnout.routing",
    "RouteRequest": "turnout.routing",
    "Session": "turnout.runtime",
    "TurnoutError": "turnout.errors",
    "build": "turnout.building",
    "check": "turnout.checking",
    "route": "turnout.routing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'turnout' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
