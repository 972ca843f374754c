"""``recipe plan``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from recipe_toolkit.cli import completing


@click.command("plan")
@click.argument("file", type=click.Path(readable=False, path_type=Path), shell_complete=completing.recipe_files)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="The cluster profile (default: $RECIPE_CLUSTER, else local).",
)
@click.option("-s", "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Change a field; repeatable.")
@click.option("--rehearse", is_flag=True, help="With the simulated engine in place of vLLM: no GPU, no model.")
@click.option("--strict", is_flag=True, help="Refuse for a warning too.")
@click.option("--sweep", is_flag=True, help="List the variants of the recipe's sweep, and what they cost at most.")
@click.option("--only", metavar="PATTERN", help="With --sweep: only the variants whose ids match.")
@click.option(
    "--json", "as_json", is_flag=True, help="The whole plan (or the list) as one JSON object, with the warnings."
)
def plan_command(
    file: Path,
    cluster: str | None,
    sets: tuple[str, ...],
    rehearse: bool,
    strict: bool,
    sweep: bool,
    only: str | None,
    as_json: bool,
) -> int:
    """Show what recipe FILE would run where: nodes and GPUs, the points, every command.

    Nothing is contacted. What only the nodes can know (addresses, ports, GPU ids, the run folder) stands in
    <brackets>, and as objects such as {"$port": ...} with --json.
    """
    from recipe_toolkit.cli.planning import plan_files

    profile = cluster or os.environ.get("RECIPE_CLUSTER") or "local"
    if sweep or only is not None:
        return _list_variants(file, profile, sets, rehearse, strict, only, as_json)
    planned = plan_files(file, profile, sets, rehearse=rehearse, strict=strict)
    if "sweep" in planned.recipe.document.data:
        from recipe_toolkit.sweep.expand import variants

        count = len(variants(planned.recipe.document))
        click.echo(f"this is the recipe without its sweep of {count} variants, which --sweep lists", err=True)
    answered = {**planned.recipe.recipe.lint, **planned.cluster.cluster.lint}
    if as_json:
        told = {"warnings": [problem.to_json() for problem in planned.warnings], "lint": answered}
        click.echo(json.dumps({**planned.plan.to_json(), **told}, indent=2, ensure_ascii=False))
        return 0
    from recipe_toolkit.plan.draw import draw

    click.echo(draw(planned.plan, planned.memory, answered), nl=False)
    return 0


def _list_variants(
    file: Path, cluster: str, sets: tuple[str, ...], rehearse: bool, strict: bool, only: str | None, as_json: bool
) -> int:
    from recipe_toolkit.cli import sweeping
    from recipe_toolkit.cli.planning import plan_all
    from recipe_toolkit.cli.rows import table
    from recipe_toolkit.errors import RecipeError

    planned = plan_all([file], cluster, sets, rehearse=rehearse, strict=strict, only=only)
    if planned[0].swept is None:
        raise RecipeError(f"{file}: has no sweep", hint="`sweep` in a recipe: docs/sweep.md")
    if as_json:
        click.echo(json.dumps(sweeping.to_json(planned), indent=2, ensure_ascii=False))
        return 0
    table(sweeping.table(planned))
    click.echo(sweeping.total(planned))
    return 0
