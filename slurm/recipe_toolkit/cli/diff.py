"""``recipe diff``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.opening import open_run
from recipe_toolkit.errors import InputError, RecipeError
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import roots
from recipe_toolkit.text_file import user_path

if TYPE_CHECKING:
    from recipe_toolkit.plan.model import Plan
    from recipe_toolkit.report.changes import Change

TROUBLE = 2


@dataclass(frozen=True)
class _Side:
    """A recipe: from a file, or from a run's lock. ``path``: of that file."""

    path: Path
    run: RunDir | None


@click.command("diff")
@click.argument("one", metavar="A", shell_complete=completing.runs)
@click.argument("other", metavar="B", shell_complete=completing.runs)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="Look for runs in the run folder of this profile, and plan recipes with it.",
)
@click.option("--runs", metavar="DIR", type=click.Path(file_okay=False), help="Look for runs in this folder only.")
@click.option("--plan", "plans", is_flag=True, help="Compare what would run, process by process, flag by flag.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def diff_command(one: str, other: str, cluster: str | None, runs: str | None, plans: bool, as_json: bool) -> int:
    """Show what differs between two recipes, two runs, or a recipe and a run: field by field, as resolved.

    A and B are each a recipe (a .yaml file) or a run (an id, a path, `last`, an archive). Of two runs the
    profile, the versions and the nodes are compared too. With --plan a recipe is planned with --cluster, else
    with the other run's own profile; a run has its plan.

    Exit codes, as those of diff: 0 nothing differs, 1 something does, 2 trouble.
    """
    try:
        folders = roots(runs, cluster)
        sides = [_side(word, folders) for word in (one, other)]
        found = _plan_changes(sides, cluster) if plans else _changes(sides)
    except RecipeError as error:
        error.exit_code = TROUBLE
        raise
    if as_json:
        data = {"schema": 1, "a": one, "b": other, "differences": [change.to_json() for change in found]}
        click.echo(json.dumps(data, ensure_ascii=False))
    else:
        from recipe_toolkit.report.changes import shown

        for change in found:
            click.echo(f"{change.field}: {shown(change.values[0])} → {shown(change.values[1])}")
    return 1 if found else 0


def _side(word: str, folders: Sequence[Path]) -> _Side:
    path = user_path(word)
    if path.suffix in (".yaml", ".yml") and not path.is_dir():
        return _Side(path, None)
    run = open_run(word, folders).run
    return _Side(run.recipe_lock, run)


def _changes(sides: Sequence[_Side]) -> list[Change]:
    from recipe_toolkit.report.changes import changes

    documents = [_recipe(side) for side in sides]
    for document, side in zip(documents, sides, strict=True):
        if all(item.run is not None for item in sides) and side.run is not None:
            document.update(_of_run(side.run))
    return changes(documents)


def _recipe(side: _Side) -> dict[str, Any]:
    """The recipe with all its defaults; of a lock that this version refuses, what stands there."""
    from recipe_toolkit.cli.foreign import load_any
    from recipe_toolkit.document import read_document

    try:
        return load_any(side.path).data
    except InputError:
        data = read_document(side.path).data if side.run is not None else None
        if not isinstance(data, dict):
            raise
        click.echo(
            f"{side.path}: is refused by this version (`recipe validate` says why); compared as written", err=True
        )
        return data


def _of_run(run: RunDir) -> dict[str, Any]:
    from recipe_toolkit.report.side import conditions_of_run

    return conditions_of_run(run)


def _plan_changes(sides: Sequence[_Side], cluster: str | None) -> list[Change]:
    from recipe_toolkit.report.plan_changes import plan_changes

    other = next((side.run for side in sides if side.run is not None), None)
    plans = [_plan(side, cluster, other) for side in sides]
    return plan_changes(plans[0], plans[1])


def _plan(side: _Side, cluster: str | None, other: RunDir | None) -> Plan:
    from recipe_toolkit.cli.planning import plan_files
    from recipe_toolkit.report.material import read_plan

    if side.run is not None:
        return read_plan(side.run)
    own = str(other.cluster_lock) if other is not None and other.cluster_lock.is_file() else None
    rehearse = other is not None and read_plan(other).rehearsal
    if rehearse:
        click.echo(f"{side.path}: planned as a rehearsal, which the run is", err=True)
    profile = cluster or own or os.environ.get("RECIPE_CLUSTER") or "local"
    return plan_files(side.path, profile, (), rehearse=rehearse).plan
