"""The options of `turnout perf`: what is asked, how it is measured, and where the report goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.cli.output import JsonOption

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.perf.measuring import Plan
    from turnout.perf.page import Section
    from turnout.perf.report import Report
    from turnout.perf.workloads import Ask


@dataclass(frozen=True)
class AskOptions:
    """The options that say what is asked, for `turnout.cli.taking`."""

    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="Ask this. Default: a prompt of Turnout's, or made-up tokens where the "
            "context is short.",
        ),
    ] = None
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", help="Read the prompt from it.")
    ] = None
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            "--prompt-tokens",
            metavar="N[,N...]",
            help="Prompts of that many made-up tokens, always the same ones; implies --ignore-eos.",
        ),
    ] = None
    max_new_tokens: Annotated[
        str | None,
        typer.Option(
            "--max-new-tokens",
            metavar="N[,N...]",
            help="Most tokens of an answer, 64 unless said otherwise. Each length is asked with "
            "each prompt.",
        ),
    ] = None
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on after the end of a text, to its full length."),
    ] = False
    no_template: Annotated[
        bool,
        typer.Option(
            "--no-template", help="Use the prompt as it is, without the bundle's chat template."
        ),
    ] = False

    def asks(self, bundle: Bundle) -> tuple[Ask, ...]:
        """What is asked. Raises `UsageError`."""
        from turnout.errors import UsageError
        from turnout.perf.workloads import (
            DEFAULT_NEW_TOKENS,
            DEFAULT_PROMPT,
            by_default,
            sweep,
            texts,
        )

        lengths = _lengths("--max-new-tokens", self.max_new_tokens)
        counts = _lengths("--prompt-tokens", self.prompt_tokens)
        if not counts:
            text = self._text()
            if text is None and not self.no_template:
                return by_default(bundle.config, lengths)
            said = DEFAULT_PROMPT if text is None else text
            return texts(said, lengths or [DEFAULT_NEW_TOKENS], raw=self.no_template)
        given = {
            "--prompt": self.prompt is not None,
            "--prompt-file": self.prompt_file is not None,
            "--no-template": self.no_template,
        }
        others = [name for name, is_given in given.items() if is_given]
        if others:
            raise UsageError(
                "Prompts are asked for in two ways.",
                found=f"--prompt-tokens, and {', '.join(others)}",
                fix="leave out one of them",
            )
        return sweep(bundle.config, counts, lengths or [DEFAULT_NEW_TOKENS])

    def ignores_eos(self, asks: tuple[Ask, ...]) -> bool:
        """Whether texts go on to their full length: what made-up tokens say has no end."""
        return self.ignore_eos or any(ask.prompt is None for ask in asks)

    def _text(self) -> str | None:
        from turnout.cli.text import prompt_text

        if self.prompt is None and self.prompt_file is None:
            return None
        return prompt_text(self.prompt, self.prompt_file)


@dataclass(frozen=True)
class HowOptions:
    """The options that say how it is measured, for `turnout.cli.taking`."""

    iterations: Annotated[
        int, typer.Option("--iterations", metavar="N", help="Timed requests of each kind.")
    ] = 10
    warmup: Annotated[
        int, typer.Option("--warmup", metavar="N", help="Requests before them that do not count.")
    ] = 1
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure memory as well.")
    ] = True
    placement: Annotated[
        bool,
        typer.Option(
            "--placement/--no-placement",
            help="See at the end where nodes really ran, which loads every route once more.",
        ),
    ] = True
    request_timeout: Annotated[
        float,
        typer.Option("--request-timeout", metavar="SECONDS", help="How long one request may take."),
    ] = 600.0
    load_timeout: Annotated[
        float,
        typer.Option(
            "--load-timeout", metavar="SECONDS", help="How long loading one route may take."
        ),
    ] = 1800.0

    def plan(self, asks: tuple[Ask, ...], *, ignore_eos: bool, native_code: bool) -> Plan:
        """The plan to ask that. Raises `UsageError`."""
        from turnout.perf.lane import Limits
        from turnout.perf.measuring import Plan

        return Plan(
            asks,
            iterations=self.iterations,
            warmup=self.warmup,
            ignore_eos=ignore_eos,
            memory=self.memory,
            placement=self.placement,
            allow_native_code=native_code,
            limits=Limits(load_s=self.load_timeout, request_s=self.request_timeout),
        )


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
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with charts, in one file."),
    ] = None
    verified: Annotated[
        Path | None,
        typer.Option(
            "--verified",
            metavar="FILE",
            help="Put on that page what turnout verify -o wrote of the same bundle.",
        ),
    ] = None
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the results as Markdown.")] = (
        False
    )
    as_json: JsonOption = False

    def check(self, bundle: Bundle) -> None:
        """Raise `UsageError` for what cannot be, before anything is measured."""
        from turnout.cli.reports import check_outputs
        from turnout.errors import UsageError

        if self.markdown and self.as_json:
            raise UsageError("Only one document can be printed.", found="--markdown and --json")
        if self.verified is not None and self.html is None:
            raise UsageError(
                "What was verified is shown on a page.", found="--verified", expected="--html"
            )
        check_outputs(
            (self.output, self.html),
            overwrite=self.overwrite,
            bundles=(bundle.path,),
            inputs=(self.verified,),
        )
        if self.html is not None:
            from turnout.perf.page import require

            require()
        if self.verified is not None:
            from turnout.cli.verified import read_for
            from turnout.perf.environment import identity

            read_for(self.verified, identity(bundle).content_sha256)

    def page(self, report: Report) -> bytes:
        """The page."""
        from turnout.perf.page import render

        return render(report, self.sections(report)).encode("utf-8")

    def sections(self, report: Report) -> tuple[Section, ...]:
        """What was verified, for the page. Raises `UsageError` for that of another bundle."""
        if self.verified is None:
            return ()
        from turnout.cli.verified import section_of

        return (section_of(self.verified, report.bundle.content_sha256),)


def _lengths(option: str, text: str | None) -> list[int]:
    """`32,128,512`. Raises `UsageError`."""
    from turnout.errors import UsageError

    if text is None:
        return []
    try:
        return [_length(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            "A list of lengths is malformed.",
            found=f"{option} {text!r}",
            expected="whole numbers above 0, with commas between them",
            fix=f"for example {option} 32,128",
        ) from None


def _length(text: str) -> int:
    if not text.strip().isdecimal() or not text.isascii() or not int(text):
        raise ValueError(text)
    return int(text)
