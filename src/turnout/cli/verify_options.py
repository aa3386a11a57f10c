"""The options of `turnout verify`: what is asked, what is compared with, where the report goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.output import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout.bundle import Bundle
    from turnout.perf.routeset import Candidate
    from turnout.verify.plan import Plan
    from turnout.verify.questions import Asking, Random
    from turnout.verify.report import Thresholds


@dataclass(frozen=True)
class QuestionOptions:
    """The options that say what is asked, for `turnout.cli.taking`."""

    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Ask these prompts, one a line or a JSON list of texts, instead of Turnout's own; "
            "- reads standard input.",
        ),
    ] = None
    random_tokens: Annotated[
        str | None,
        typer.Option(
            "--random-tokens",
            metavar="N[,LENGTH]",
            help="Ask N prompts of LENGTH made-up tokens (32), always the same ones; beside those "
            "of --prompts, or instead of Turnout's own.",
        ),
    ] = None
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="Take the perplexity of this text, and not of Turnout's; - reads standard input.",
        ),
    ] = None
    no_text: Annotated[bool, typer.Option("--no-text", help="Leave out the perplexity.")] = False
    text_tokens: Annotated[
        int, typer.Option("--text-tokens", metavar="N", help="Read at most N tokens of the text.")
    ] = 4096
    max_new_tokens: Annotated[
        int,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            help="Tokens at most by which the reference continues each prompt.",
        ),
    ] = 32
    no_template: Annotated[
        bool,
        typer.Option(
            "--no-template", help="Use prompts as they are, without the bundle's chat template."
        ),
    ] = False

    def asking(self) -> Asking:
        """What is asked. Raises `UsageError`."""
        from turnout.errors import UsageError
        from turnout.verify.passages import PROMPTS, TEXT
        from turnout.verify.questions import BUILT_IN, Asking, read_prompts, read_text, source

        if self.no_text and self.text is not None:
            raise UsageError(
                "A text is given, and is to be left out.", found="--text and --no-text"
            )
        if self.prompts is not None and self.prompts == self.text == Path("-"):
            raise UsageError(
                "Standard input is read once.",
                found="--prompts - and --text -",
                fix="give one of them as a file",
            )
        drawn = self._random()
        prompts: tuple[str, ...] = PROMPTS
        prompts_from = BUILT_IN
        if self.prompts is not None:
            prompts, prompts_from = read_prompts(self.prompts), source(self.prompts)
        elif drawn is not None:
            prompts, prompts_from = (), "random tokens"
        text: str | None = TEXT
        if self.no_text:
            text = None
        elif self.text is not None:
            text = read_text(self.text)
        return Asking(
            prompts=prompts,
            random=drawn,
            text=text,
            raw=self.no_template,
            new_tokens=self.max_new_tokens,
            text_tokens=self.text_tokens,
            prompts_from=prompts_from,
            text_from=BUILT_IN if self.text is None else source(self.text),
        )

    def _random(self) -> Random | None:
        from turnout.errors import UsageError
        from turnout.verify.questions import RANDOM_LENGTH, Random

        if self.random_tokens is None:
            return None
        count, comma, length = self.random_tokens.partition(",")
        try:
            return Random(int(count), int(length) if comma else RANDOM_LENGTH)
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                "Random prompts are asked for in a way that is not known.",
                found=f"--random-tokens {self.random_tokens!r}",
                expected="a number of prompts, or that and their length with a comma between",
                fix="for example --random-tokens 8,64",
            ) from None


@dataclass(frozen=True)
class JudgeOptions:
    """The options that say with what routes are compared, for `turnout.cli.taking`."""

    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="TEXT",
            help='The route to compare with, in the words of --route-set. Default: "ep=cpu '
            'reproducible", exact arithmetic on the CPU EP.',
        ),
    ] = None
    reference_bundle: Annotated[
        Path | None,
        typer.Option(
            "--reference-bundle",
            metavar="DIR",
            help="Take the reference from another bundle, of the same tokens.",
        ),
    ] = None
    max_kl: Annotated[
        float | None,
        typer.Option(
            "--max-kl",
            metavar="NATS",
            help="Most mean KL divergence from the reference, 0.01 unless said otherwise.",
        ),
    ] = None
    max_perplexity_ratio: Annotated[
        float | None,
        typer.Option(
            "--max-perplexity-ratio",
            metavar="RATIO",
            help="Most perplexity of the text, by the reference's; 1.03 unless said otherwise.",
        ),
    ] = None
    min_agreement: Annotated[
        float | None,
        typer.Option(
            "--min-agreement",
            metavar="SHARE",
            help="Least share of positions of one likeliest token, from 0 to 1; else not asked.",
        ),
    ] = None
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit", metavar="SECONDS", help="How long one question, or one load, may take."
        ),
    ] = 1800.0

    def plan(self, asked: Asking, *, native_code: bool) -> Plan:
        """The plan to ask that. Raises `UsageError`."""
        from turnout.verify.passages import TEXT
        from turnout.verify.plan import Plan

        return Plan(
            asked,
            self._reference(),
            self._bundle(),
            self._thresholds(),
            judge_text=self.max_perplexity_ratio is not None or asked.text not in {None, TEXT},
            time_limit_s=self.time_limit,
            allow_native_code=native_code,
        )

    def _thresholds(self) -> Thresholds:
        from turnout.verify.plan import MAX_KL, MAX_PERPLEXITY_RATIO, thresholds

        ratio = self.max_perplexity_ratio
        return thresholds(
            MAX_KL if self.max_kl is None else self.max_kl,
            MAX_PERPLEXITY_RATIO if ratio is None else ratio,
            self.min_agreement,
        )

    def _reference(self) -> Candidate:
        from turnout.errors import UsageError
        from turnout.perf.routeset import parse
        from turnout.verify.plan import reference_route

        if self.reference is None:
            return reference_route()
        found = parse(self.reference)
        if len(found) > 1:
            raise UsageError(
                "There is one reference.", found=f"{len(found)} routes", where="--reference"
            )
        return found[0]

    def _bundle(self) -> Bundle | None:
        from turnout.bundle import Bundle

        return None if self.reference_bundle is None else Bundle.open(self.reference_bundle)


@dataclass(frozen=True)
class ShowOptions:
    """The options that say where the report goes, for `turnout.cli.taking`."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the report, as JSON."),
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there.")
    ] = False
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page, in one file.")
    ] = None
    as_json: JsonOption = False

    def check(self, bundles: Sequence[Path], inputs: Sequence[Path | None]) -> None:
        """Raise `UsageError` for what cannot be, before anything is compared.

        Outputs replace neither files of the `bundles` nor `inputs`.
        """
        from turnout.cli.reports import check_outputs

        check_outputs(
            (self.output, self.html), overwrite=self.overwrite, bundles=bundles, inputs=inputs
        )
        if self.html is not None:
            from turnout.perf.page import require

            require()
