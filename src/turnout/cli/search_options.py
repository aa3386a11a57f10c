"""Options that choose tokens, the same for every command that generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnout.runtime.options import SearchOptions

_BUNDLE = "Default: what the bundle says."

MaxNewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", metavar="N", help="Most tokens of an answer.")
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", metavar="T", help=f"Above 0 to sample; 0 is greedy. {_BUNDLE}"),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        "--top-k", metavar="K", help=f"Sample among the K likeliest tokens; 0 for all. {_BUNDLE}"
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p", metavar="P", help=f"Sample among the likeliest that make up P. {_BUNDLE}"
    ),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty", metavar="R", help=f"Above 1 to repeat less; 1 is none. {_BUNDLE}"
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Sample, the same way every time.")
]
GreedyOption = Annotated[bool, typer.Option("--greedy", help="Take the likeliest token each time.")]
SystemOption = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="A system message.")
]
StatsOption = Annotated[
    bool, typer.Option("--stats", help="Print times, memory and EPs to stderr at the end.")
]


@dataclass(frozen=True)
class AnswerOptions:
    """The options that choose tokens, for `turnout.cli.taking`."""

    system: SystemOption = None
    max_new_tokens: MaxNewTokensOption = 256
    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    repetition_penalty: RepetitionPenaltyOption = None
    seed: SeedOption = None
    greedy: GreedyOption = False

    def options(self) -> SearchOptions:
        """What is asked for. Raises `UsageError`."""
        from turnout.runtime.options import SearchOptions

        return SearchOptions(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            greedy=self.greedy,
        )
