"""The short summary of `--stats`, and the same figures as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.compiling.prepare import Prepared
    from turnout.compiling.shared import Shared
    from turnout.memory import Memory
    from turnout.runtime import GenerationResult, LoadSpans, Session
    from turnout.runtime.generation import Request

MISSING = "-"


def request_line(request: Request) -> str:
    """What is computed: tokens, and what is set beyond the bundle's own search options."""
    return (
        f"prompt of {len(request.token_ids)} tokens, at most {request.length.new_tokens} new ones,"
        f" max_length {request.length.max_length}, {request.search}"
    )


def lines(session: Session, result: GenerationResult, memory: Memory | None) -> Iterator[str]:
    """The summary, a line a figure: load, prefill, TTFT, decode, memory, route, stages."""
    load = session.load()
    yield f"load     {_seconds(load.total_s)} ({_load_parts(load)})"
    yield from answer_lines(result)
    if memory is not None:
        yield (
            f"memory   RSS {_megabytes(memory.rss)}, PSS {_megabytes(memory.pss)},"
            f" private {_megabytes(memory.private)}"
        )
    in_effect = session.in_effect
    yield f"route    requested {in_effect.requested}, effective {in_effect.effective}"
    yield "placed   not measured (turnout explain --measure)"
    yield "stages   " + ", ".join(f"{name} {ep}" for name, ep in in_effect.stages.items())
    if session.prepared is not None:
        yield from prepared_lines(session.prepared)


def prepared_lines(prepared: Prepared) -> Iterator[str]:
    """What was compiled and shared ahead of time, and what was not."""
    size = sum(entry.manifest.nbytes for entry in prepared.entries)
    stages = ", ".join(prepared.compiled)
    yield f"compiled {f'{stages} ({_megabytes(size)} on disk)' if stages else 'nothing'}"
    if prepared.uncompiled:
        yield f"left     {', '.join(prepared.uncompiled)} as they are"
    yield f"shared   {shared_words(prepared.shared)}"


def shared_words(shared: Shared) -> str:
    """Which stages share one copy of their weights, how, and what that saves on disk."""
    words = [f"{stage} in the session of {into}" for stage, into in shared.merged.items()]
    words += [f"{'+'.join(group)} by their EP" for group in shared.ep]
    if shared.prepacked:
        words.append(f"{'+'.join(shared.prepacked)} packed in one file")
    if not words:
        return "nothing"
    saved = f" ({_megabytes(shared.bytes_saved)} saved on disk)" if shared.bytes_saved else ""
    return ", ".join(words) + saved


def answer_lines(result: GenerationResult) -> Iterator[str]:
    """What one answer took."""
    timing = result.timing
    kept = timing.continued_tokens
    known = kept + timing.prefilled_tokens
    of_all = "" if known == result.prompt_tokens else f" of {result.prompt_tokens}"
    continued = f" ({kept} kept from the last turn)" if kept else ""
    yield (
        f"prefill  {known}{of_all} tokens{continued} in {_seconds(timing.prefill_s)},"
        f" {_rate(timing.prefill_tokens_per_second)}"
    )
    yield f"TTFT     {_seconds(timing.request_ttft_s)}"
    yield (
        f"decode   {len(result.token_ids)} tokens ({result.finish_reason}),"
        f" {_seconds(timing.tpot_s)} a token, {_rate(timing.decode_tokens_per_second)}"
    )


def document(session: Session, result: GenerationResult, memory: Memory | None) -> dict[str, Any]:
    """What `generate --json` prints. Seconds and bytes, as the names say."""
    route = route_document(session)
    if session.route is not None:
        route["decisions"] = session.route.to_json()["stages"]
        route["warnings"] = list(session.route.warnings)
    return {
        "schema_version": 1,
        "bundle": str(session.bundle.path),
        **result.to_json(),
        "load": session.load().to_json(),
        "route": route,
        "prepared": prepared_document(session),
        "memory": memory.to_json() if memory is not None else None,
    }


def prepared_document(session: Session) -> dict[str, Any] | None:
    """What was compiled and shared ahead of time; None where nothing was asked to be."""
    return session.prepared.to_json() if session.prepared is not None else None


def route_document(session: Session) -> dict[str, Any]:
    """What was asked, what took effect, and where nodes ran: not measured, hence null."""
    return {**session.in_effect.to_json(), "placed": None}


def _load_parts(load: LoadSpans) -> str:
    parts = ("registration", "preparation", "config", "model", "tokenizer")
    spans = load.to_json()
    return ", ".join(f"{part} {_seconds(spans[f'{part}_s'])}" for part in parts)


def _seconds(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def _rate(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f} tokens/s"


def _megabytes(value: int | None) -> str:
    return MISSING if value is None else f"{value / 1e6:.0f} MB"
