"""``recipe status``, ``wait`` and ``cancel``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.rows import table, word
from recipe_toolkit.errors import UnknownRun, printable
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import find_run, find_runs, roots

Command = TypeVar("Command", bound=Callable[..., Any])
UNKNOWN = 102


def where_options(command: Command) -> Command:
    """``--runs`` and ``--cluster``: where the runs are."""
    for option in (
        click.option(
            "-c",
            "--cluster",
            metavar="NAME|FILE",
            shell_complete=completing.profiles,
            help="Look in the run folder of this profile.",
        ),
        click.option("--runs", metavar="DIR", type=click.Path(file_okay=False), help="Look in this folder only."),
    ):
        command = option(command)
    return command


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
run_argument = click.argument("run", metavar="RUN", shell_complete=completing.runs)
runs_argument = click.argument("names", metavar="[RUN...]", nargs=-1, shell_complete=completing.runs)
sweep_option = click.option(
    "--sweep", metavar="SWEEP", help="The runs of this sweep in place of RUNs: its id, a part of it, or last."
)


def named_runs(names: Sequence[str], sweep: str | None, folders: Sequence[Path]) -> list[RunDir]:
    """The runs that the words name, or those of a sweep. Raises UnknownRun; UsageError for both or neither."""
    if sweep is None and not names:
        raise click.UsageError("Missing argument 'RUN...'.")
    if sweep is None:
        return find_runs(names, folders)
    if names:
        raise click.UsageError("--sweep takes no RUN")
    from recipe_toolkit.submit.sweeps import find_sweep

    return find_sweep(sweep, folders).runs


@click.command("status")
@run_argument
@where_options
@as_json_option
def status_command(run: str, runs: str | None, cluster: str | None, as_json: bool) -> int:
    """Show the state of RUN, its nodes, its processes and its points.

    RUN is an id, a part of one, a path, or `last`.
    """
    from recipe_toolkit.submit.state import run_state

    found = find_run(run, roots(runs, cluster))
    state = run_state(found)
    if as_json:
        click.echo(json.dumps(state.to_json(), indent=2))
        return 0
    from recipe_toolkit.cli.following import summary

    click.echo(summary(state))
    job = "no job" if state.job_id is None else f"{state.scheduler} job {state.job_id}"
    job += f" ({state.job_state})" if state.job_state else ""
    at = f", submitted {_time(state.submitted)}" if state.submitted else ""
    click.echo(f"{job}, attempt {state.attempt}{at}\n{state.folder}")
    for line in state.trouble:
        click.echo(f"unreadable: {line}", err=True)
    if state.stale and (state.nodes or state.processes):
        click.echo("\nlast known, before the run ended without a word:")
    nodes = [(str(n.get("index")), str(n.get("name")), str(n.get("address")), str(n.get("state"))) for n in state.nodes]
    processes = [
        (name, str(view.get("state")), word(view.get("node")), word(view.get("pid")), word(view.get("exit_code")))
        for name, view in state.processes.items()
    ]
    for name, said in state.searches.items():
        click.echo(f"search {name}: {printable(said)}")
    for head, rows in (
        (("NODE", "NAME", "ADDRESS", "STATE"), nodes),
        (("PROCESS", "STATE", "NODE", "PID", "EXIT"), processes),
        (("POINT", "STATE"), list(state.points.items())),
    ):
        if rows:
            click.echo()
            table([head, *rows])
    return 0


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


@click.command("wait")
@runs_argument
@sweep_option
@where_options
@as_json_option
@click.option("--timeout", metavar="DURATION", help="Give up after 90, 30m or 1h30m, with exit code 101.")
@click.option("--follow", is_flag=True, help="Print what happens.")
def wait_command(
    names: tuple[str, ...],
    sweep: str | None,
    runs: str | None,
    cluster: str | None,
    as_json: bool,
    timeout: str | None,
    follow: bool,
) -> int:
    """Wait until each RUN has ended.

    Exit codes: 0 done, 100 failed, 101 not finished in time, 102 lost or unknown, 103 cancelled,
    104 done with invalid results, 105 ended by its time limit, 106 preempted, 130 interrupted; of several
    runs the first in their order that is not 0. Ctrl-C leaves the runs alone; a second one cancels them.
    """
    from recipe_toolkit.cli.following import Follower
    from recipe_toolkit.cli.interrupts import Presses, detach
    from recipe_toolkit.durations import parse_duration

    limit = None
    if timeout is not None:
        try:
            limit = parse_duration(float(timeout) if timeout.replace(".", "", 1).isdigit() else timeout)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--timeout") from error
    try:
        found = named_runs(names, sweep, roots(runs, cluster))
    except UnknownRun as error:
        error.exit_code = UNKNOWN
        raise
    follower = Follower(limit, follow=follow, as_json=as_json, several=len(found) > 1)
    with Presses() as presses:
        try:
            return follower.wait(found)
        except KeyboardInterrupt:
            return detach(presses, [run for run in found if not follower.has_ended(run)], [], as_json=as_json)


@click.command("cancel")
@runs_argument
@sweep_option
@where_options
@as_json_option
def cancel_command(
    names: tuple[str, ...], sweep: str | None, runs: str | None, cluster: str | None, as_json: bool
) -> int:
    """Cancel each RUN and wait for its end, for less than a minute; safe to repeat."""
    from recipe_toolkit.cli.following import summary
    from recipe_toolkit.submit.cancel import cancel, who_kills

    for state, asked in cancel(named_runs(names, sweep, roots(runs, cluster))):
        if as_json:
            click.echo(json.dumps(state.to_json()))
        elif not asked:
            click.echo(f"{summary(state)}\nit had ended already")
        elif state.final:
            click.echo(summary(state))
        else:
            then = who_kills(RunDir(Path(state.folder)))
            click.echo(f"{summary(state)}\nasked to end, but it has not yet: {then}")
    return 0
