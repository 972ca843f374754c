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
@click.option("--json", "as_json", is_flag=True, help="The whole plan as one JSON object, with the warnings.")
def plan_command(
    file: Path, cluster: str | None, sets: tuple[str, ...], rehearse: bool, strict: bool, as_json: bool
) -> int:
    """Show what recipe FILE would run where: nodes and GPUs, the points, every command.

    Nothing is contacted. What only the nodes can know (addresses, ports, GPU ids, the run folder) stands in
    <brackets>, and as objects such as {"$port": ...} with --json.
    """
    from recipe_toolkit.cli.planning import plan_files

    profile = cluster or os.environ.get("RECIPE_CLUSTER") or "local"
    planned = plan_files(file, profile, sets, rehearse=rehearse, strict=strict)
    answered = {**planned.recipe.recipe.lint, **planned.cluster.cluster.lint}
    if as_json:
        told = {"warnings": [problem.to_json() for problem in planned.warnings], "lint": answered}
        click.echo(json.dumps({**planned.plan.to_json(), **told}, indent=2, ensure_ascii=False))
        return 0
    from recipe_toolkit.plan.draw import draw

    click.echo(draw(planned.plan, planned.memory, answered), nl=False)
    return 0
