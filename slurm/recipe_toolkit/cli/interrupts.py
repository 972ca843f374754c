"""Ctrl-C in front of runs: once leaves them alone, twice cancels them."""

from __future__ import annotations

import json
import shlex
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from recipe_toolkit.errors import SubmitError
from recipe_toolkit.rundir import RunDir

SECOND_S = 3.0  # for the second Ctrl-C
INTERRUPTED = 130


class Presses:
    """Counts Ctrl-C while it is entered; the first one raises KeyboardInterrupt, further ones are only counted."""

    def __init__(self) -> None:
        self.count = 0
        self._previous: Any = None

    def __enter__(self) -> Presses:
        # Who ignores it (a shell's background job) goes on ignoring it.
        if threading.current_thread() is threading.main_thread():
            current = signal.getsignal(signal.SIGINT)
            if current is not signal.SIG_IGN:
                self._previous = current
                signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _pressed(self, _number: int, _frame: Any) -> None:
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt

    def add(self, count: int) -> None:
        """Count those that somebody else has caught; the first one raises KeyboardInterrupt."""
        before, self.count = self.count, self.count + count
        if count and not before:
            raise KeyboardInterrupt

    def again(self) -> bool:
        """Whether a second one comes within a few seconds."""
        until = time.monotonic() + SECOND_S
        while self.count < 2 and time.monotonic() < until:
            time.sleep(0.05)
        return self.count >= 2


def detach(presses: Presses, runs: Sequence[RunDir], unsent: Sequence[str], *, as_json: bool) -> int:
    """After a Ctrl-C: tell how to come back to the runs, and cancel them after another; the exit code.

    ``unsent``: recipes that were to be submitted after them. Raises SubmitError if a run cannot be cancelled.
    """
    if unsent:
        click.echo(f"\nnot submitted: {', '.join(unsent)}", err=True)
    if runs:
        goes, it = ("the run goes on", "it") if len(runs) == 1 else (f"{len(runs)} runs go on", "them")
        words = " ".join(_word(run) for run in runs)
        click.echo(
            f"\ndetached: {goes}; Ctrl-C again within {SECOND_S:g} s cancels {it}\n"
            f"  come back: recipe wait --follow {words}\n  end {it}:{' ' * (6 - len(it))}recipe cancel {words}",
            err=True,
        )
        if presses.again():
            _cancel(runs)
    if as_json:
        from recipe_toolkit.submit.state import run_states

        for state in run_states(runs):
            click.echo(json.dumps(state.to_json()))
    return INTERRUPTED


def _word(run: RunDir) -> str:
    """What names the run in the next command, from here."""
    return shlex.quote(run.id if run.root.parent == Path("runs").absolute() else str(run.root))


def _cancel(runs: Sequence[RunDir]) -> None:
    from recipe_toolkit.submit.cancel import ask

    refused = []
    for run in runs:
        try:
            ask(run)
        except SubmitError as error:
            refused.append(f"{run.id} goes on: {error.render()}")
        else:
            click.echo(f"cancelled: {run.id} is told to end; `recipe wait {_word(run)}` says when it has", err=True)
    if refused:
        raise SubmitError("\n".join(refused))
