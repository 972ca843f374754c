"""``recipe capacity``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.errors import RecipeError

if TYPE_CHECKING:
    from recipe_toolkit.capacity.assess import Capacity, Check
    from recipe_toolkit.capacity.budget import Term
    from recipe_toolkit.fitting import Answer
    from recipe_toolkit.recipe import Recipe


@click.command("capacity")
@click.argument("file", type=click.Path(readable=False, path_type=Path), shell_complete=completing.recipe_files)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="The cluster profile: where the model's folder is (default: $RECIPE_CLUSTER, else local).",
)
@click.option("-s", "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Change a field; repeatable.")
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    metavar="DIR|FILE",
    help="The model's folder or config.json, in place of the profile's.",
)
@click.option("--hub", is_flag=True, help="Fetch config.json from the hub ($HF_ENDPOINT, $HF_TOKEN).")
@click.option("--gpu-memory", type=click.FloatRange(min=0, min_open=True), metavar="GIB", help="Memory of a GPU.")
@click.option(
    "--topologies", type=click.IntRange(1, 1024), metavar="N", help="Compare all layouts of N GPUs for one instance."
)
@click.option(
    "--calibrate",
    metavar="RUN",
    shell_complete=completing.runs,
    help="Take what the engines of this run logged in place of what is assumed.",
)
@click.option("--answers", is_flag=True, help="Without the arithmetic.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with the arithmetic.")
def capacity_command(
    file: Path,
    cluster: str | None,
    sets: tuple[str, ...],
    model: Path | None,
    hub: bool,
    gpu_memory: float | None,
    topologies: int | None,
    calibrate: str | None,
    answers: bool,
    as_json: bool,
) -> int:
    """Show what fits into the GPUs of recipe FILE: weights, KV cache, requests at once.

    No GPU is touched, and nothing contacted but with --hub: the model's config.json is enough. What follows from no
    config is a range, from what is counted to what has been measured. Exit code 1 where a role cannot load, or
    prefill and decode cannot shake hands.
    """
    from recipe_toolkit.cli.foreign import load_any
    from recipe_toolkit.cluster_loader import load_cluster
    from recipe_toolkit.fitting import assess_recipe, pair_checks

    profile = cluster or os.environ.get("RECIPE_CLUSTER") or "local"
    site = load_cluster(profile).cluster
    recipe = load_any(file, sets).recipe
    answer = assess_recipe(recipe, site, model, gpu_memory, hub=hub)
    rows: dict[str, list[tuple[str, str, str]]] = {}
    if calibrate is not None:
        terms, rows = _calibrated(answer, calibrate, cluster)
        answer = assess_recipe(recipe, site, model, gpu_memory, hub=hub, terms=terms)
    if topologies is not None:
        _show_layouts(recipe, answer.roles, topologies, as_json)
        return 0
    between = pair_checks(recipe, answer.roles)
    _show(recipe, answer, between, rows, ledger=not answers, as_json=as_json)
    return 1 if cannot(answer.roles) or any(check.verdict == "bad" for check in between) else 0


def _calibrated(
    answer: Answer, name: str, cluster: str | None
) -> tuple[dict[str, tuple[Term, ...]], dict[str, list[tuple[str, str, str]]]]:
    """(terms, what is predicted and logged) of each role, from the engines' logs of a run.

    Raises RecipeError where none of them says anything of memory.
    """
    from recipe_toolkit.capacity.logs import calibrated, compared
    from recipe_toolkit.report.material import read_plan
    from recipe_toolkit.report.memory import engine_logs
    from recipe_toolkit.submit.find import find_run, roots

    run = find_run(name, roots(None, cluster))
    logs = engine_logs(run, read_plan(run))
    mine = {found.role.name: logs[found.role.name] for found in answer.roles if found.role.name in logs}
    if not mine:
        wanted = ", ".join(found.role.name for found in answer.roles)
        raise RecipeError(f"{run.root}: no log of {wanted} says anything of memory", hint=f"recipe logs {run.id}")
    source = f"run {run.id}"
    found_terms = {
        found.role.name: calibrated(found, mine[found.role.name], source)
        for found in answer.roles
        if found.role.name in mine
    }
    terms = {role: found for role, found in found_terms.items() if found is not None}
    return terms, {
        found.role.name: list(compared(found, mine[found.role.name]))
        for found in answer.roles
        if found.role.name in mine
    }


def _show_layouts(recipe: Recipe, roles: list[Capacity], gpus: int, as_json: bool) -> None:
    from recipe_toolkit.capacity import text
    from recipe_toolkit.capacity.advice import layouts
    from recipe_toolkit.capacity.document import layout_json

    tables = [(found, list(layouts(recipe, found, gpus))) for found in roles]
    if as_json:
        data = {
            found.role.name: [layout_json(row, found.longest_benchmark.length) for row in table]
            for found, table in tables
        }
        click.echo(json.dumps({"gpus": gpus, "roles": data}, indent=2))
    else:
        click.echo("\n\n".join(text.topologies(found, table, gpus) for found, table in tables))


def _show(
    recipe: Recipe,
    answer: Answer,
    between: list[Check],
    rows: dict[str, list[tuple[str, str, str]]],
    *,
    ledger: bool,
    as_json: bool,
) -> None:
    from recipe_toolkit.capacity import text
    from recipe_toolkit.capacity.advice import changes
    from recipe_toolkit.capacity.document import role_json

    told = []
    for found in answer.roles:
        extra = [*answer.checks, *(between if found.role.name == "decode" else ())]
        told.append((found, changes(recipe, found), extra))
    if as_json:
        roles = [{**role_json(*one), "logged": _logged(rows.get(one[0].role.name, ()))} for one in told]
        click.echo(json.dumps({"model": answer.source, "roles": roles}, indent=2, ensure_ascii=False))
        return
    parts = [
        "\n".join([text.render(*one, answer.source, ledger=ledger), *text.logged(rows.get(one[0].role.name, ()))])
        for one in told
    ]
    click.echo("\n\n".join(parts))


def _logged(rows: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [{"what": what, "predicted": predicted, "logged": logged} for what, predicted, logged in rows]


def cannot(roles: list[Capacity]) -> bool:
    """Whether one of the roles cannot load."""
    return any(found.loads == "no" for found in roles)
