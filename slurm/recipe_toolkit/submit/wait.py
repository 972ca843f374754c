"""Waiting for a run: polls that a login node can bear."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.record import read_record
from recipe_toolkit.submit.state import RunState, run_state

STEP_S = 0.5  # between looks at the run folder
SLOWEST_S = 15.0  # between calls of squeue
GRACE_S = 3.0  # for a last state.json to cross a network file system
SILENCE_S = 600.0  # without an answer of the scheduler


def wait_for(run: RunDir, timeout_s: float | None, tick: Callable[[RunState], None] | None = None) -> RunState:
    """Wait until the run has ended or ``timeout_s`` is over; returns its last state.

    ``tick`` is called several times a second with the last state known. A scheduler that does not
    answer for 10 minutes ends the wait as *lost*.
    """
    started = time.monotonic()
    deadline = None if timeout_s is None else started + timeout_s
    heard = started
    while True:
        state = run_state(run)
        if state.final and not state.certain:
            state = _confirm(run, state, tick)
        if tick:
            tick(state)
        now = time.monotonic()
        if state.final or (deadline is not None and now >= deadline):
            return state
        if state.job_state is not None or state.scheduler is None:
            heard = now
        elif now - heard > SILENCE_S:
            message = f"waited {SILENCE_S:g} s for the scheduler; {state.message}"
            return dataclasses.replace(state, state="lost", message=message)
        _rest(run, state, min(_delay(state, now - started), (deadline or now + SLOWEST_S) - now), tick)


def _delay(state: RunState, waited_s: float) -> float:
    if state.scheduler == "local":
        return 0.5
    return min(SLOWEST_S, 2.0 + waited_s / 30)


def _rest(run: RunDir, state: RunState, delay_s: float, tick: Callable[[RunState], None] | None) -> None:
    """Sleep until the next call of the scheduler is due, or the run has written its end."""
    until = time.monotonic() + delay_s
    was_final = read_record(run).final
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(STEP_S, left))
        if tick:
            tick(state)
        if not was_final and read_record(run).final:
            return


def _confirm(run: RunDir, state: RunState, tick: Callable[[RunState], None] | None) -> RunState:
    """The job has ended, yet the folder holds no end: it may only not have arrived here."""
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        time.sleep(STEP_S)
        if tick:
            tick(state)
        if read_record(run).final:
            break
    return run_state(run)
