"""``recipe submit``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from recipe_toolkit.cli import completing


@click.command("submit")
@click.argument("file", type=click.Path(readable=False, path_type=Path), shell_complete=completing.recipe_files)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="The cluster profile (default: $RECIPE_CLUSTER).",
)
@click.option("-s", "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Change a field; repeatable.")
@click.option("--rehearse", is_flag=True, help="With the simulated engine in place of vLLM: no GPU, no model.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, byte for byte; needs no Slurm.")
@click.option("--wait", is_flag=True, help="Wait for the end; the exit code says how the run ended.")
@click.option("--follow", is_flag=True, help="Wait, and print what happens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def submit_command(
    file: Path,
    cluster: str | None,
    sets: tuple[str, ...],
    rehearse: bool,
    dry_run: bool,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """Write the run folder of recipe FILE and submit its job.

    Prints the run's id. With --wait or --follow the exit code is that of `recipe wait`. Ctrl-C leaves the
    run alone and says how to come back to it.
    """
    from recipe_toolkit.cli.following import await_run, say_detached
    from recipe_toolkit.cli.planning import plan_files
    from recipe_toolkit.plan.rehearsal import notice
    from recipe_toolkit.rundir import RunDir
    from recipe_toolkit.submit import dry_run as dry
    from recipe_toolkit.submit import submit

    planned = plan_files(file, cluster, sets, rehearse=rehearse)
    if rehearse:
        click.echo(notice(planned.plan), err=True)
    if dry_run:
        click.echo(dry(planned.cluster, planned.plan), nl=False)
        return 0
    submitted = submit(planned.recipe, planned.cluster, planned.plan)
    if not as_json:
        click.echo(submitted.run_id)
        kind = "job" if submitted.scheduler == "slurm" else "process"
        click.echo(f"{kind} {submitted.job_id}, in {submitted.folder}", err=True)
    if as_json and not (wait or follow):
        click.echo(json.dumps(submitted.to_json()))
    run = RunDir(submitted.folder)
    if submitted.interrupted:
        return say_detached(run)
    if not (wait or follow):
        return 0
    return await_run(run, None, follow=follow, as_json=as_json)
