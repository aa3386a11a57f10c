"""Options that choose tokens, the same for every command that generates."""

from __future__ import annotations

from typing import Annotated

import typer

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
