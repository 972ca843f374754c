"""Ending a run on request."""

from __future__ import annotations

from recipe_toolkit.errors import SubmitError
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit import controller, slurm_commands
from recipe_toolkit.submit.record import read_record
from recipe_toolkit.submit.state import RunState, run_state
from recipe_toolkit.submit.wait import wait_for

PATIENCE_S = 45.0


def cancel(run: RunDir, patience_s: float = PATIENCE_S) -> tuple[RunState, bool]:
    """Ask the scheduler to end the run and wait for it; returns the state, and whether anybody was asked.

    Safe to repeat. A run that has not ended after ``patience_s`` is on its way: Slurm kills it KillWait
    seconds after asking. Raises SubmitError if the scheduler refuses.
    """
    state = run_state(run)
    if state.final:
        return state, False
    job = read_record(run).job
    if job is None:
        raise SubmitError(f"{run.id} is being submitted: its job is not known yet", hint="try again in a moment")
    if job.get("scheduler") == "slurm":
        slurm_commands.scancel(str(job["job_id"]), job.get("cluster"))
    else:
        host = controller.elsewhere(job)
        if host:
            raise SubmitError(f"{run.id} runs on {host}", hint=f"ssh {host} recipe cancel {run.root}")
        controller.terminate(job)
    return wait_for(run, patience_s), True
