"""The process of one route: loads a session once, and answers requests one by one."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.errors import UsageError
from turnout.memory import measure

if TYPE_CHECKING:
    from turnout.compiling.options import CompileOptions
    from turnout.processes import Heard
    from turnout.routing import Route
    from turnout.runtime import GenerationResult, Session

SERVING = f"{__name__}:Serving"


def load_question(
    bundle: Path,
    route: Path | None,
    preparing: CompileOptions,
    *,
    allow_native_code: bool,
    memory: bool,
) -> dict[str, Any]:
    """What a child is asked first; `route` is a saved one, None for the bundle as it is."""
    options = asdict(preparing)
    options["target"] = dict(preparing.target)
    return {
        "do": "load",
        "bundle": str(bundle.absolute()),
        "route": None if route is None else str(route),
        "preparing": options,
        "allow_native_code": allow_native_code,
        "memory": memory,
    }


def request_question(
    said: str | Sequence[int],
    *,
    raw: bool,
    max_new_tokens: int,
    ignore_eos: bool,
    memory: bool,
    tell_every_s: float | None,
) -> dict[str, Any]:
    """What a child is asked for one request; `tell_every_s` is how often it says how far it is."""
    return {
        "do": "request",
        "said": said if isinstance(said, str) else list(said),
        "raw": raw,
        "max_new_tokens": max_new_tokens,
        "ignore_eos": ignore_eos,
        "memory": memory,
        "tell_every_s": tell_every_s,
    }


CLOSE_QUESTION = {"do": "close"}


class Serving:
    """Answers questions of the kinds above."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def __call__(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        """The answer, as plain data."""
        answers = {"load": self._load, "request": self._request, "close": self._close}
        return answers[question["do"]](question, tell)

    def _load(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        from turnout.bundle import Bundle
        from turnout.compiling.options import CompileOptions
        from turnout.routing import Route
        from turnout.runtime import Session

        _import_runtime()
        bundle = Bundle.open(question["bundle"])
        route: Route | None = None
        if question["route"] is not None:
            route = Route.load(question["route"], bundle)
        baseline = measure() if question["memory"] else None
        jobs = _Jobs(tell)
        session = Session(
            bundle,
            route,
            preparing=CompileOptions(**question["preparing"]),
            progress=jobs,
            say=lambda line: tell({"note": line}),
            allow_native_code=question["allow_native_code"],
        )
        load = session.load()
        self._session = session
        # What was made until now is kept for long: no collection has to look at it again.
        gc.collect()
        gc.freeze()
        prepared = session.prepared
        return {
            "load": load.to_json(),
            "prepared": None
            if prepared is None
            else {**prepared.to_json(), "compiled_now": jobs.compiled},
            "baseline": baseline.to_json() if baseline is not None else None,
            "loaded": measure().to_json() if question["memory"] else None,
        }

    def _request(self, question: Mapping[str, Any], tell: Heard) -> dict[str, Any]:
        from turnout.runtime.generation import FreshGenerators, Measuring

        session = self._loaded()
        request = session.request(
            question["said"],
            raw=question["raw"],
            max_new_tokens=question["max_new_tokens"],
            greedy=True,
            ignore_eos=question["ignore_eos"],
        )
        source = Measuring(FreshGenerators(session.loaded.model)) if question["memory"] else None
        stop = _telling(tell, question["tell_every_s"])
        # Not within a request: a collection would be taken for the runtime's time.
        gc.collect()
        result = session.run(request, source=source, stop=stop, stream=False).result()
        memory = source.memory if source is not None else None
        return {
            **_figures(result),
            "prompt_ids_sha256": ids_sha256(request.token_ids),
            "templated": request.templated,
            "notes": list(result.notes),
            "memory": memory.to_json() if memory is not None else None,
        }

    def _close(self, _question: Mapping[str, Any], _tell: Heard) -> dict[str, Any]:
        if self._session is not None:
            self._session.unload()
        return {}

    def _loaded(self) -> Session:
        if self._session is None:
            raise UsageError("Nothing is loaded yet.")
        return self._session


def ids_sha256(token_ids: Sequence[int]) -> str:
    """A hash of token ids: each as a little-endian 32-bit integer."""
    return hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in token_ids)).hexdigest()


def _figures(result: GenerationResult) -> dict[str, Any]:
    """A request of the report, but for what only the parent knows."""
    timing = result.timing.to_json()
    # These are for conversations and for prompts that are stopped halfway.
    for name in ("prefilled_tokens", "continued_tokens"):
        timing.pop(name)
    return {
        **timing,
        "prompt_tokens": result.prompt_tokens,
        "finish_reason": result.finish_reason,
        "text": result.text,
        "token_ids_sha256": ids_sha256([int(token) for token in result.token_ids]),
    }


def _import_runtime() -> None:
    """So that neither the baseline of memory nor the load's time has the imports in it."""
    from importlib import import_module

    for name in ("numpy", "onnxruntime", "onnxruntime_genai", "turnout.compiling.prepare"):
        import_module(name)


class _Jobs:
    """Says of stages that are compiled what becomes of them."""

    def __init__(self, tell: Heard) -> None:
        self._tell = tell
        self.compiled: list[str] = []

    def started(self, name: str, expected_s: float | None) -> None:
        """A job begins."""
        self._tell({"compiling": name, "expected_s": expected_s})

    def ended(self, name: str, outcome: str) -> None:
        """It ended."""
        if outcome == "compiled":
            self.compiled.append(name)
        self._tell({"compiled": name, "outcome": outcome})


def _telling(tell: Heard, every_s: float | None) -> Callable[[], bool]:
    """Never stops a text; says how many tokens there are. It is asked before every token, and
    outside of all spans.
    """
    if every_s is None:
        return lambda: False
    asked, told = 0, time.perf_counter()

    def stop() -> bool:
        nonlocal asked, told
        now = time.perf_counter()
        if now - told >= every_s:
            tell({"tokens": asked})
            told = now
        asked += 1
        return False

    return stop
