"""Ending a run on request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe_toolkit.errors import SubmitError
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit import controller, slurm_commands
from recipe_toolkit.submit.folder import write_end
from recipe_toolkit.submit.record import read_record
from recipe_toolkit.submit.state import RunState, run_states
from recipe_toolkit.submit.wait import Waiter

PATIENCE_S = 45.0


def cancel(runs: Sequence[RunDir], patience_s: float = PATIENCE_S) -> Iterator[tuple[RunState, bool]]:
    """Ask the scheduler to end the runs and wait for it; yields each state, and whether anybody was asked.

    Safe to repeat. A run that has not ended after ``patience_s`` is on its way: Slurm kills it KillWait
    seconds after asking. Raises SubmitError if the scheduler refuses, after all have been asked.
    """
    states = run_states(runs)
    asked = []
    refused: list[SubmitError] = []
    for run, state in zip(runs, states, strict=True):
        if state.final:
            yield state, False
            continue
        try:
            ask(run)
            asked.append(run)
        except SubmitError as error:
            refused.append(error)
    waiter = Waiter(asked, patience_s)
    while len(waiter):
        state = waiter.next_end()
        _keep(state)
        yield state, True
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise SubmitError("\n".join(error.render() for error in refused))


def _keep(state: RunState) -> None:
    """Write down the end of a job that never started: where Slurm keeps no accounts it is soon forgotten."""
    run = RunDir(Path(state.folder))
    if state.state != "cancelled" or run.attempts() or read_record(run).final:
        return
    with contextlib.suppress(OSError):  # the job is gone all the same
        write_end(run, "cancelled", "cancelled before it started")


def ask(run: RunDir) -> None:
    """Ask the scheduler to end the run. Raises SubmitError if it refuses, or if there is no job yet."""
    job = read_record(run).job
    if job is None:
        raise SubmitError(f"{run.id} is being submitted: its job is not known yet", hint="try again in a moment")
    if job.get("scheduler") == "slurm":
        slurm_commands.scancel(str(job["job_id"]), job.get("cluster"))
        _remember(run)
        return
    host = controller.elsewhere(job)
    if host:
        raise SubmitError(f"{run.id} runs on {host}", hint=f"ssh {host} recipe cancel {run.root}")
    if controller.terminate(job):
        _remember(run)


def who_kills(run: RunDir) -> str:
    """What becomes of a run that was asked to end and has not: Slurm kills it, and elsewhere whoever reads this."""
    job = read_record(run).job or {}
    if job.get("scheduler") == "slurm":
        return "Slurm will kill it"
    pids = " ".join(map(str, controller.members(job)))
    return f"kill -9 {pids} ends what does not listen" if pids else "it is ending"


def _remember(run: RunDir) -> None:
    """Agents that have not begun, or that are killed, write no end; and Slurm without accounts soon forgets it."""
    with contextlib.suppress(OSError):
        run.cancelled.touch()
