"""``recipe list``."""

from __future__ import annotations

import json
import time

import click

from recipe_toolkit.cli.rows import table
from recipe_toolkit.cli.runs import as_json_option, where_options
from recipe_toolkit.submit.find import roots


@click.command("list")
@where_options
@as_json_option
@click.option("--state", "states", metavar="STATE,...", help="Only runs in these states: running,failed.")
@click.option("--name", metavar="GLOB", help="Only runs whose name or id matches: 'glm-*'.")
@click.option("--since", metavar="SPAN|DATE", help="Only runs submitted since: 2d, 90m, 2026-11-29.")
@click.option("--model", metavar="GLOB", help="Only runs that serve this model.")
@click.option("--valid/--invalid", default=None, help="Only runs whose results count, or do not.")
@click.option("--sweep", metavar="SWEEP", help="Only the runs of this sweep: its id, a part of it, or last.")
@click.option("--sort", type=click.Choice(["time", "name", "state"]), default="time", help="By what (default: time).")
@click.option("-n", "--last", "count", type=click.IntRange(min=1), help="Only the last N of them.")
def list_command(
    runs: str | None,
    cluster: str | None,
    as_json: bool,
    states: str | None,
    name: str | None,
    since: str | None,
    model: str | None,
    valid: bool | None,
    sweep: str | None,
    sort: str,
    count: int | None,
) -> int:
    """List runs, the oldest first.

    Looks in the profile's run folder, in $RECIPE_RUNS and in ./runs. With --json: one object a line.
    """
    from recipe_toolkit.submit.select import Selection, select

    folders = roots(runs, cluster)
    found = select(folders, Selection(_states(states), name, _since(since), model, valid, sweep, sort, count))
    if as_json:
        for state in found:
            click.echo(json.dumps(state.to_json()))
        return 0
    if not found:
        filtered = any(item is not None for item in (states, name, since, model, valid))
        which = "no such runs" if filtered else "no runs"
        click.echo(f"{which} in {', '.join(str(folder) for folder in folders)}", err=True)
        return 0
    rows = [("RUN", "STATE", "PHASE", "JOB", "NOTE")]
    for state in found:
        marks = [word for word, holds in (("rehearsal", state.rehearsal), ("invalid", state.valid is False)) if holds]
        marked = f"{state.state} ({', '.join(marks)})" if marks else state.state
        note = (state.message or "").partition("\n")[0]
        rows.append((state.id, marked, state.phase or "-", state.job_id or "-", note))
    table(rows)
    return 0


def _states(text: str | None) -> tuple[str, ...]:
    from recipe_toolkit.faults import did_you_mean
    from recipe_toolkit.submit.select import STATES

    words = tuple(word.strip() for word in text.split(",")) if text is not None else ()
    for word in words:
        if word not in STATES:
            hint = did_you_mean(word, STATES) or f"one of {', '.join(STATES)}"
            raise click.BadParameter(f"no state {word!r}: {hint}", param_hint="--state")
    return words


def _since(text: str | None) -> float | None:
    from recipe_toolkit.submit.select import parse_since

    try:
        return None if text is None else parse_since(text, time.time())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
