"""``recipe capacity``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing

if TYPE_CHECKING:
    from recipe_toolkit.capacity.assess import Capacity


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
@click.option("--gpu-memory", type=click.FloatRange(min=0, min_open=True), metavar="GIB", help="Memory of a GPU.")
@click.option(
    "--topologies", type=click.IntRange(1, 1024), metavar="N", help="Compare all layouts of N GPUs for one instance."
)
@click.option("--answers", is_flag=True, help="Without the arithmetic.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with the arithmetic.")
def capacity_command(
    file: Path,
    cluster: str | None,
    sets: tuple[str, ...],
    model: Path | None,
    gpu_memory: float | None,
    topologies: int | None,
    answers: bool,
    as_json: bool,
) -> int:
    """Show what fits into the GPUs of recipe FILE: weights, KV cache, requests at once.

    Nothing is contacted and no GPU is touched: the model's config.json is enough. What follows from no config is a
    range, from what is counted to what has been measured. Exit code 1 where a role cannot load.
    """
    from recipe_toolkit.capacity import text
    from recipe_toolkit.capacity.advice import changes, layouts
    from recipe_toolkit.capacity.document import layout_json, role_json
    from recipe_toolkit.cli.fitting import assess_recipe, load_for_capacity, pair_checks

    recipe, site = load_for_capacity(file, cluster or os.environ.get("RECIPE_CLUSTER") or "local", sets)
    answer = assess_recipe(recipe, site, model, gpu_memory)
    between = pair_checks(recipe, answer.roles)
    if topologies is not None:
        rows = [(found, list(layouts(recipe, found, topologies))) for found in answer.roles]
        if as_json:
            tables = {
                found.role.name: [layout_json(row, found.longest_benchmark.length) for row in table]
                for found, table in rows
            }
            click.echo(json.dumps({"gpus": topologies, "roles": tables}, indent=2))
        else:
            click.echo("\n\n".join(text.topologies(found, table, topologies) for found, table in rows))
        return 0
    extra = {
        found.role.name: [*answer.checks, *(between if found.role.name == "decode" else ())] for found in answer.roles
    }
    told = [(found, changes(recipe, found), extra[found.role.name]) for found in answer.roles]
    if as_json:
        document = {"model": answer.source, "roles": [role_json(*one) for one in told]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        click.echo("\n\n".join(text.render(*one, answer.source, ledger=not answers) for one in told))
    return 1 if cannot(answer.roles) or any(check.verdict == "bad" for check in between) else 0


def cannot(roles: list[Capacity]) -> bool:
    """Whether one of the roles cannot load."""
    return any(found.loads == "no" for found in roles)
