"""Finding an EP by any of its spellings."""

from __future__ import annotations

from turnout.catalog.ep import Ep
from turnout.catalog.table import CPU, EPS, IDLE

_SUFFIX = "executionprovider"


def find(name: str) -> Ep | None:
    """The EP of that alias or full name, in any case; None if the table does not know it."""
    return _BY_WORD.get(_normalised(name))


def canonical(name: str) -> str:
    """The full name of an EP; a name that the table does not know is returned as it is."""
    ep = find(name)
    return ep.name if ep is not None else name


def alias_of(name: str) -> str:
    """The short name of an EP; a name that the table does not know is returned as it is."""
    ep = find(name)
    return ep.alias if ep is not None else name


def takes_compiled(ep: str, source: str) -> bool:
    """Whether an EP (canonical) takes nodes that say that `source` compiled them."""
    known = find(ep)
    if known is not None and known.known_contexts:
        return source == known.name
    return ep != CPU.name and (not source or canonical(source) == ep)


def is_idle(name: str) -> bool:
    """Whether it is an EP, as the runtime spells it, that is everywhere and computes nothing."""
    return name in IDLE


def device_advice(name: str) -> str:
    """What to do about an EP that is installed and finds no device."""
    ep = find(name)
    if ep is None or ep.hardware_of is None:
        return "check the device's driver"
    return f"its plugin offers {ep.hardware_of}'s hardware alone; if that is here, check its driver"


def order_of(name: str) -> int:
    """The EP's place in the table; those that it does not know come after all others."""
    ep = find(name)
    return EPS.index(ep) if ep is not None else len(EPS)


def _normalised(name: str) -> str:
    word = name.strip().lower()
    # A plugin may list variants of itself as NAME.VARIANT ("OpenVINOExecutionProvider.AUTO").
    full, dot, _ = word.partition(_SUFFIX + ".")
    if dot:
        word = full
    word = word.replace("-", "").replace("_", "").replace(" ", "")
    return word.removesuffix(_SUFFIX) or word


_BY_WORD = {
    _normalised(word): ep
    for ep in EPS
    for word in (ep.name, ep.alias, *ep.aliases, ep.genai_name)
    if word
}
