"""Waiting for runs in front of a person or a script."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import click

from recipe_toolkit.errors import printable
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.events import EventReader, render_event
from recipe_toolkit.submit.state import STUCK, RunState
from recipe_toolkit.submit.wait import Waiter


class Follower:
    """Waits for runs and prints their states as they end, and with ``follow`` what happens on the way.

    ``several``: each line says of which run it is. ``further``: by folder, more fields of a run's JSON.
    """

    def __init__(
        self,
        timeout_s: float | None,
        *,
        follow: bool,
        as_json: bool,
        several: bool = False,
        further: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self._further = {} if further is None else further
        self._follow = follow
        self._as_json = as_json
        self._several = several
        self._waiter = Waiter(timeout_s=timeout_s, tick=self._tick)
        self._events: dict[str, EventReader] = {}
        self._shown: dict[str, str] = {}
        self._codes: dict[str, int | None] = {}  # in the order in which the runs were added

    def has_ended(self, run: RunDir) -> bool:
        """Whether the run's end has been seen."""
        return self._codes.get(str(run.root)) is not None

    def add(self, run: RunDir) -> None:
        """Wait for this run too."""
        self._events[str(run.root)] = EventReader(run)
        self._codes[str(run.root)] = None
        self._waiter.add(run)

    def next_end(self) -> None:
        """Wait for the end of one of the runs and print its state."""
        state = self._waiter.next_end()
        self._codes[state.folder] = state.exit_code
        if self._as_json:
            click.echo(json.dumps({**state.to_json(), **self._further.get(state.folder, {})}))
        else:
            click.echo(summary(state), err=not state.final)

    def wait(self, runs: Iterable[RunDir], at_once: int | None = None) -> int:
        """Wait for all runs, taking the next of them while fewer than ``at_once`` go on; the exit code.

        It is that of ``recipe wait``: of several runs, the first in their order that is not 0.
        """
        for run in runs:
            self.add(run)
            while at_once is not None and len(self._waiter) >= at_once:
                self.next_end()
        while len(self._waiter):
            self.next_end()
        return next((code for code in self._codes.values() if code), 0)

    def _tick(self, run: RunDir, state: RunState) -> None:
        key = str(run.root)
        # Waiting in the queue writes no events; and who waits for what never starts must be told.
        line = summary(state)
        told = self._follow or STUCK in (state.message or "")
        if told and state.state == "pending" and self._shown.get(key) != line:
            self._shown[key] = line
            click.echo(line, err=True)
        if not self._follow:
            return
        mark = f"{run.id[-4:]} " if self._several else ""
        for event in self._events[key].new():
            click.echo(mark + render_event(event), err=True)


def summary(state: RunState) -> str:
    """One line, and the message on the next ones."""
    head = f"{state.id}: {'rehearsal ' if state.rehearsal else ''}{state.state}"
    if state.state == "running" and state.phase:
        head += f", phase {state.phase}"
    if state.state == "done" and state.valid is False:
        head += ", but its results are invalid"
    # A message may hold lines of a program's log, with its colours.
    return "\n  ".join(map(printable, [head, *(state.message or "").splitlines()]))
