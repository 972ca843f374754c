"""Waiting for a run in front of a person or a script."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.events import EventReader, render_event
from recipe_toolkit.submit.state import RunState
from recipe_toolkit.submit.wait import wait_for


def await_run(run: RunDir, timeout_s: float | None, *, follow: bool, as_json: bool) -> int:
    """Wait for the run's end and print its state; returns the exit code of ``recipe wait``."""
    events = EventReader(run)
    shown: list[str] = []

    def tick(state: RunState) -> None:
        if not follow:
            return
        # Waiting in the queue writes no events.
        line = summary(state)
        if state.state == "pending" and shown[-1:] != [line]:
            shown.append(line)
            click.echo(line, err=True)
        for event in events.new():
            click.echo(render_event(event), err=True)

    try:
        state = wait_for(run, timeout_s, tick)
    except KeyboardInterrupt:
        return say_detached(run)
    if as_json:
        click.echo(json.dumps(state.to_json()))
    else:
        click.echo(summary(state), err=not state.final)
    return state.exit_code


def say_detached(run: RunDir) -> int:
    """Tell how to come back to a run that goes on; returns the exit code of an interruption."""
    word = shlex.quote(run.id if run.root.parent == Path("runs").absolute() else str(run.root))
    click.echo(
        f"\ndetached: the run goes on\n  come back: recipe wait --follow {word}\n  end it:    recipe cancel {word}",
        err=True,
    )
    return 130


def summary(state: RunState) -> str:
    """One line, and the message on the next ones."""
    head = f"{state.id}: {'rehearsal ' if state.rehearsal else ''}{state.state}"
    if state.state == "running" and state.phase:
        head += f", phase {state.phase}"
    if state.state == "done" and state.valid is False:
        head += ", but its results are invalid"
    return f"{head}\n  " + state.message.replace("\n", "\n  ") if state.message else head
