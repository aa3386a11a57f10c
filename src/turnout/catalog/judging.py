"""What an EP makes of the provider options that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from turnout.catalog.ep import Ep
from turnout.catalog.options import PLUGIN, Option

# "refused": the session fails. "valueless": the value has no effect, or not the one it seems to
# have. "ignored": the option has none. "deprecated": it works, and another way is preferred.
# "unknown": the table does not know the option. "missing": the EP may need one that is not there.
Fate = Literal["refused", "valueless", "ignored", "deprecated", "unknown", "missing"]


@dataclass(frozen=True)
class Verdict:
    """What happens to one option; `problem` is a sentence without its end.

    `option` is None for one that is missing.
    """

    option: str | None
    fate: Fate
    problem: str
    found: str | None = None
    expected: str | None = None
    fix: str | None = None


def judge(
    ep: Ep, options: Mapping[str, str], generation: str = PLUGIN, *, complete: bool = True
) -> tuple[Verdict, ...]:
    """A verdict on every option that will not do what it says; none for those that will.

    `complete` is false where other options may still be added, so that none can be missing.
    """
    if not ep.takes_options:
        return tuple(
            Verdict(name, "refused", f"{ep.alias} takes no options", found=f"{name}={value[:80]}")
            for name, value in options.items()
        )
    device = ep.device_of(options, generation)
    verdicts: list[Verdict] = []
    for name, value in options.items():
        option = ep.option(name, generation)
        if option is None:
            verdicts += _unknown(ep, name, value, generation)
        else:
            verdicts += _known(ep, option, value, device, generation)
    verdicts += _exclusive(ep, options)
    if complete and ep.required_options and not any(o in options for o in ep.required_options):
        needed = " or ".join(ep.required_options)
        verdicts.append(
            Verdict(None, "missing", f"{ep.alias} needs the option {needed}", expected=needed)
        )
    return tuple(verdicts)


def _known(
    ep: Ep, option: Option, value: str, device: str | None, generation: str
) -> Iterator[Verdict]:
    name, said = option.name, f"{option.name}={value[:80]}"
    if option.ignored is not None:
        yield Verdict(
            name,
            "ignored",
            f"{ep.alias} does not read the option {name}{_whose(ep, generation)}",
            found=said,
            fix=_advice(option.ignored, value),
        )
        return
    grammar = option.grammar_on(device)
    if not grammar.takes(value):
        does = "does not take this value of" if option.refuses else "passes over this value of"
        yield Verdict(
            name,
            "refused" if option.refuses else "valueless",
            f"{ep.alias} {does} {name}{_whose(ep, generation)}",
            found=said,
            expected=grammar.expected,
            fix=grammar.fix(value),
        )
        return
    doubt = grammar.doubt(value)
    if doubt is not None:
        yield Verdict(
            name,
            "valueless",
            f"{name} of {ep.alias}: {doubt}",
            found=said,
            expected=grammar.expected,
            fix=grammar.fix(value),
        )
    if option.deprecated is not None:
        yield Verdict(
            name,
            "deprecated",
            f"the option {name} of {ep.alias} is deprecated",
            found=said,
            fix=_advice(option.deprecated, value),
        )


def _advice(text: str, value: str) -> str | None:
    """What to write instead, with the number that was written."""
    number = value if value.isdecimal() and len(value) < 10 else "1"
    return text.replace("$value", number) or None


def _unknown(ep: Ep, name: str, value: str, generation: str) -> Iterator[Verdict]:
    if not ep.all_options_known:
        return
    from difflib import get_close_matches

    known = [
        option.name
        for option in ep.options
        if generation in option.generations and option.ignored is None
    ]
    near = get_close_matches(name[:80], known, n=1, cutoff=0.8)
    yield Verdict(
        name,
        "unknown",
        f"the option {name[:80]} of {ep.alias} is not known to Turnout; the EP may ignore it",
        found=f"{name[:80]}={value[:80]}",
        fix=f"did you mean {near[0]}?" if near else None,
    )


def _exclusive(ep: Ep, options: Mapping[str, str]) -> Iterator[Verdict]:
    both = [name for name in ep.exclusive_options if name in options]
    if len(both) > 1:
        yield Verdict(
            both[1],
            "refused",
            f"{ep.alias} takes only one of the options {' and '.join(both)}",
            found=", ".join(f"{name}={options[name][:80]}" for name in both),
            expected=f"one of {', '.join(both)}",
            fix=f"remove {' or '.join(both)}",
        )


def _whose(ep: Ep, generation: str) -> str:
    """Which generation is meant, where the EP's generations differ."""
    if all(len(option.generations) > 1 for option in ep.options):
        return ""
    return f" (as a {generation})" if generation == PLUGIN else f" ({generation})"
