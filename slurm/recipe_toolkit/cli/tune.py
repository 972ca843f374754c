"""``recipe tune``."""

from __future__ import annotations

from pathlib import Path

import click

from recipe_toolkit.cli import completing

STAGES = ("capacity", "prefill", "decode", "frontier", "confirm")


@click.command("tune")
@click.argument(
    "file", metavar="RECIPE", type=click.Path(readable=False, path_type=Path), shell_complete=completing.recipe_files
)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="The cluster profile (default: $RECIPE_CLUSTER).",
)
@click.option("-s", "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Change a field; repeatable.")
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the tuning's state is and goes on from; tune-NAME if not given.",
)
@click.option("--stage", type=click.Choice(STAGES), help="This stage alone.")
@click.option("--confirm", is_flag=True, help="Also run what confirms the frontier.")
@click.option("--plan", "plan_only", is_flag=True, help="Say what each stage costs at most, and submit nothing.")
@click.option("--at-once", type=click.IntRange(min=1), metavar="N", help="At most N runs at a time.")
@click.option("--max-nodes", type=click.IntRange(min=1), metavar="N", help="Refuse to hold more nodes at a time.")
@click.option(
    "--max-node-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="H",
    help="Refuse what could take more: nodes x time limit, over all runs that are left.",
)
@click.option("--follow", is_flag=True, help="Print what happens in the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the frontier, or with --plan the cost, as JSON.")
def tune_command(
    file: Path,
    cluster: str | None,
    sets: tuple[str, ...],
    folder: Path | None,
    stage: str | None,
    confirm: bool,
    plan_only: bool,
    at_once: int | None,
    max_nodes: int | None,
    max_node_hours: float | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Find the best prefill/decode split of the GPUs that `tune` in RECIPE names.

    Says what fits, measures prefill alone and decode alone for each topology, combines them into a frontier, and
    writes the recipes that confirm it; --confirm runs those. What has been measured stays measured: the same command
    goes on where it was interrupted, or where runs have failed. Exit codes are those of `recipe wait`.
    """
    from recipe_toolkit.cli.tuning import Limits, Tuning

    if confirm and stage not in (None, "confirm"):
        raise click.UsageError(f"--confirm is a stage of its own, and not of --stage {stage}")
    limits = Limits(at_once, max_nodes, max_node_hours, follow)
    tuning = Tuning(file, cluster, sets, folder, limits)
    if plan_only:
        tuning.print_cost(as_json=as_json)
        return 0
    return tuning.run(stage, confirm=confirm or stage == "confirm", as_json=as_json)
