"""How far a compiled job was proven: in the EP's simulator, or by its structure alone.

What is compiled for a device that is elsewhere cannot run here. Where the EP has a simulator on
this machine, a context that stands alone runs in it, and must answer as the CPU EP does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.errors import CompileError, ProcessError

if TYPE_CHECKING:
    from turnout.compiling.jobs import Job, Member

# The most that is taken for rounding: root mean square of the differences, as a part of that of
# the values. Measured on QNN (docs/qnn.md): up to 0.008 for 16-bit activations, 0.05 for
# well-scaled 8-bit ones, 0.08 for 30 layers in 16-bit floats; wrong answers were at 1.0 and more.
TOLERANCE = 0.2
STRUCTURE = "structure"
_WORKER = "turnout.compiling.worker_simulate:simulate_here"


@dataclass(frozen=True)
class Proof:
    """How the artifacts of a job were checked, in words for people and for the manifest.

    `ratio` is the difference from the CPU EP's answer, see `TOLERANCE`; None where nothing was
    run.
    """

    checked: str
    ratio: float | None = None


def prove(
    job: Job,
    folder: Path,
    graphs: Mapping[str, str],
    libraries: Mapping[str, str],
    *,
    timeout: float,
) -> Proof:
    """Compare the compiled graphs in `folder` (name by stage) with the CPU EP's answer.

    `timeout` in seconds is for one stage. Raises `CompileError` where an answer differs by more
    than `TOLERANCE`, or does not come though the simulator runs.
    """
    reason = why_not(job)
    if reason is not None:
        return Proof(f"{STRUCTURE}; not run here: {reason}" if job.target else STRUCTURE)
    worst = 0.0
    for member in job.members:
        answer = _simulated(job, member, folder / graphs[member.stage], libraries, timeout)
        if "reason" in answer:
            return Proof(f"{STRUCTURE}; not run here: {answer['reason']}")
        ratio = float(answer["ratio"])
        if not ratio <= TOLERANCE:
            raise CompileError(
                f"What was compiled of {member.stage} answers otherwise than the CPU EP.",
                found=f"a difference of {ratio:.3g} of the values in the simulator",
                expected=f"at most {TOLERANCE:g}",
                where=folder / graphs[member.stage],
                fix="check the quantization of the graph, or leave the stage on the CPU EP",
            )
        worst = max(worst, ratio)
    said = f"simulator; differs from the CPU EP by {worst:.2g} (at most {TOLERANCE:g})"
    return Proof(said, worst)


def why_not(job: Job) -> str | None:
    """Why a job is not run in a simulator, as a phrase; None where it is."""
    from turnout.machine.plugins import platform_word

    known = catalog.find(job.ep)
    if known is None or job.kind != "context" or not known.simulates_on(platform_word()):
        return f"{catalog.alias_of(job.ep)} has no simulator on this machine"
    if job.shared and len(job.members) > 1:
        return "contexts that share weights load on the device alone"
    described = known.target.options if known.target is not None else ()
    if any("," in job.provider_options.get(name, "") for name in described):
        return "contexts for several devices load on one of them alone"
    return None


def _simulated(
    job: Job, member: Member, graph: Path, libraries: Mapping[str, str], timeout: float
) -> dict[str, Any]:
    from turnout.bundle import INITIALIZER_FOLDER
    from turnout.compiling.targets import provider_options
    from turnout.processes import call

    known = catalog.find(job.ep)
    dropped = known.target.compiling_options if known is not None and known.target else ()
    options = provider_options(job.ep, job.provider_options, job.target)
    argument: dict[str, Any] = {
        "ep": job.ep,
        "libraries": dict(libraries),
        "provider_options": {name: options[name] for name in options if name not in dropped},
        "source": str(member.graph),
        "compiled": str(graph),
        "source_options": {},
    }
    if member.graph.parent != job.data_folder:
        argument["source_options"] = {INITIALIZER_FOLDER: str(job.data_folder)}
    try:
        answer: dict[str, Any] = call(
            _WORKER, argument, timeout=timeout, doing=f"simulating {member.stage}"
        )
    except ProcessError as error:
        # The simulator is not the device: that it crashes, or takes too long, proves nothing.
        return {"reason": error.problem}
    return answer
