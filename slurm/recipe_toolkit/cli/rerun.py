"""``recipe rerun``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit import __version__
from recipe_toolkit.cli import completing
from recipe_toolkit.cli.opening import open_run
from recipe_toolkit.cli.runs import run_argument
from recipe_toolkit.cli.submit import check_form, submission_options, submit_planned
from recipe_toolkit.errors import InputError, RecipeError
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import roots

if TYPE_CHECKING:
    from recipe_toolkit.cli.planning import Planned
    from recipe_toolkit.report.changes import Change

_SHOWN = 12


@click.command("rerun")
@run_argument
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="Another profile (default: the run's own, as it was).",
)
@click.option("--runs", metavar="DIR", type=click.Path(file_okay=False), help="Look for RUN in this folder only.")
@click.option("--rehearse/--no-rehearse", default=None, help="As a rehearsal, or not (default: as RUN was).")
@submission_options
def rerun_command(
    run: str,
    cluster: str | None,
    runs: str | None,
    rehearse: bool | None,
    sets: tuple[str, ...],
    strict: bool,
    dry_run: bool,
    dependency: str | None,
    hold: bool,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """Submit RUN once more, from its recipe.lock.yaml and on its own profile.

    RUN may be an archive of `recipe collect`. Says what has changed since: the toolkit, the profile, and what
    follows for the plan. Prints the new run's id; exit codes are those of `recipe submit`.
    """
    from recipe_toolkit.cli.planning import plan_files
    from recipe_toolkit.submit.record import read_record

    check_form(dependency)
    found = open_run(run, roots(runs, cluster)).run
    if not found.recipe_lock.is_file():
        raise RecipeError(f"{found.root}: holds no {found.recipe_lock.name}, so it cannot be run again")
    profile = cluster or _own_profile(found)
    as_before = read_record(found).rehearsal
    rehearsed = as_before if rehearse is None else rehearse
    planned = plan_files(found.recipe_lock, profile, sets, rehearse=rehearsed, strict=strict)
    for line in _since(found, planned, cluster):
        click.echo(line, err=True)
    return submit_planned([planned], profile, None, dry_run, dependency, hold, wait, follow, as_json)


def _own_profile(run: RunDir) -> str:
    if run.cluster_lock.is_file():
        return str(run.cluster_lock)
    raise RecipeError(f"{run.root}: holds no {run.cluster_lock.name}", hint="name a profile: --cluster NAME")


def _since(run: RunDir, planned: Planned, cluster: str | None) -> Iterator[str]:
    """What is not as it was when the run was submitted."""
    from recipe_toolkit.submit.record import read_record

    yield f"again: {run.id}"
    then = (read_record(run).job or {}).get("toolkit")
    if isinstance(then, str) and then != __version__:
        yield f"recipe-toolkit was {then}, and is {__version__} now"
    yield from _profile_since(run, planned, cluster)
    from recipe_toolkit.report.material import read_plan
    from recipe_toolkit.report.plan_changes import plan_changes

    try:
        yield from _told("the plan differs", plan_changes(read_plan(run), planned.plan))
    except RecipeError as error:
        yield f"the plan cannot be compared: {error.message}"


def _profile_since(run: RunDir, planned: Planned, cluster: str | None) -> Iterator[str]:
    from recipe_toolkit.cluster_loader import load_cluster
    from recipe_toolkit.report.changes import changes

    if not run.cluster_lock.is_file():
        return
    try:
        before: Any = load_cluster(str(run.cluster_lock)).data
        now = planned.cluster.data if cluster else load_cluster(str(before["name"])).data
    except InputError:  # the profile's name is known on the machine that had it
        return
    differing = changes([before, now])
    if cluster:
        yield from _told("the profile differs", differing)
    elif differing:
        yield from _told(f"the profile {before['name']} has changed since", differing)
        yield f"  it is used as it was: --cluster {before['name']} takes it as it is"


def _told(head: str, found: list[Change]) -> Iterator[str]:
    from recipe_toolkit.report.changes import shown

    if found:
        yield f"{head}:"
    for change in found[:_SHOWN]:
        yield f"  {change.field}: {shown(change.values[0])} → {shown(change.values[1])}"
    if len(found) > _SHOWN:
        yield f"  and {len(found) - _SHOWN} more"
