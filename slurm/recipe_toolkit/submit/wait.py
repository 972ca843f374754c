"""Waiting for runs: polls that a login node can bear."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.record import read_record
from recipe_toolkit.submit.state import RunState, run_states

STEP_S = 0.5  # between looks at the run folder
SLOWEST_S = 15.0  # between calls of squeue
GRACE_S = 3.0  # for a last state.json to cross a network file system
SILENCE_S = 600.0  # without an answer of the scheduler, or a word of the run itself

Tick = Callable[[RunDir, RunState], None]


@dataclass
class _Watched:
    run: RunDir
    since: float
    heard: float
    state: RunState | None = None
    updated: float | None = None


class Waiter:
    """Waits for several runs at once, with one call of squeue for all.

    ``tick`` is called for each several times a second with the last state known. A scheduler that does not
    answer for 10 minutes, while the run's folder does not change either, ends the wait for a run as *lost*. Not so
    where the scheduler is there and shows the job to its owner alone: it may wait in the queue for days.
    """

    def __init__(self, runs: Iterable[RunDir] = (), timeout_s: float | None = None, tick: Tick | None = None) -> None:
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._tick = tick
        self._open: list[_Watched] = []
        for run in runs:
            self.add(run)

    def add(self, run: RunDir) -> None:
        """Wait for this run too."""
        now = time.monotonic()
        self._open.append(_Watched(run, now, now))

    def __len__(self) -> int:
        return len(self._open)

    def next_end(self) -> RunState:
        """Wait until one of the runs has ended, and leave it; its last state.

        After ``timeout_s`` the first one as it stands. Raises IndexError if there is none to wait for.
        """
        while True:
            self._look()
            ended = [item for item in self._open if item.state is not None and item.state.final]
            if not ended and self._deadline is not None and time.monotonic() >= self._deadline:
                ended = self._open[:1]
            if ended or not self._open:
                item = (ended or self._open)[0]
                self._open.remove(item)
                assert item.state is not None
                return item.state
            self._rest()

    def _look(self) -> None:
        self._ask(self._open)
        unsure = [item for item in self._open if item.state is not None and item.state.final and not item.state.certain]
        if unsure:
            self._confirm(unsure)
            self._ask(unsure)
        now = time.monotonic()
        for item in self._open:
            state = item.state
            assert state is not None
            self._tell(item)
            spoken = state.updated is not None and state.updated != item.updated
            item.updated = state.updated
            if state.final or state.job_state is not None or state.scheduler is None or state.hidden or spoken:
                item.heard = now
            elif now - item.heard > SILENCE_S:
                message = f"waited {SILENCE_S:g} s for the scheduler; {state.message}"
                item.state = dataclasses.replace(state, state="lost", message=message)

    def _ask(self, items: list[_Watched]) -> None:
        for item, state in zip(items, run_states([item.run for item in items]), strict=True):
            item.state = state

    def _tell(self, item: _Watched) -> None:
        if self._tick and item.state is not None:
            self._tick(item.run, item.state)

    def _rest(self) -> None:
        """Sleep until the next call of the scheduler is due, or a run has written its end."""
        now = time.monotonic()
        until = now + min(_delay(item, now) for item in self._open)
        if self._deadline is not None:
            until = min(until, self._deadline)
        unwritten = [item for item in self._open if not read_record(item.run).final]
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(STEP_S, left))
            for item in self._open:
                self._tell(item)
            if any(read_record(item.run).final for item in unwritten):
                return

    def _confirm(self, items: list[_Watched]) -> None:
        """Their jobs have ended, yet the folders hold no end: it may only not have arrived here."""
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until:
            time.sleep(STEP_S)
            for item in items:
                self._tell(item)
            if all(read_record(item.run).final for item in items):
                return


def _delay(item: _Watched, now: float) -> float:
    if item.state is not None and item.state.scheduler in ("local", "ssh"):
        return 0.5
    return min(SLOWEST_S, 2.0 + (now - item.since) / 30)
