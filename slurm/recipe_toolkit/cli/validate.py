"""``recipe validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing

if TYPE_CHECKING:
    from recipe_toolkit.errors import Problem


@click.command("validate")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE...",
    shell_complete=completing.recipe_files,
)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="Also check against this cluster profile.",
)
@click.option(
    "-s", "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Set a field, e.g. roles.serve.instances=2."
)
@click.option("--strict", is_flag=True, help="Refuse a file for a warning too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file, on stdout.")
def validate_command(
    files: tuple[Path, ...], cluster: str | None, sets: tuple[str, ...], strict: bool, as_json: bool
) -> int:
    """Check recipes and cluster profiles: every error of every FILE, each with line and column.

    A folder stands for the recipes and profiles below it. Exit code 1 if any file is refused.
    """
    from recipe_toolkit.cli.verdicts import show, verdicts
    from recipe_toolkit.cluster_loader import load_cluster
    from recipe_toolkit.errors import printable

    loaded = load_cluster(cluster) if cluster is not None else None
    for warning in loaded.warnings if loaded is not None else ():
        click.echo(warning.render(), err=True)
    refused = count = 0
    given = {str(file) for file in files} if len(files) == 1 else ()
    told: set[Problem] = set()  # a base's warnings are those of every recipe that extends it
    for file in files:
        for verdict in verdicts(file, loaded, sets):
            said = verdict.strictly() if strict else verdict
            count += 1
            refused += said.facts is None
            show(said, as_json, () if said.facts is None else told)
            told.update(said.problems)
            own = any(problem.file == said.file or problem.file.startswith("--set") for problem in said.problems)
            if said.facts is None and not own and not as_json and said.file not in given:
                # Nothing else says which of many recipes cannot be used.
                click.echo(f"{printable(said.file)}: refused for what it extends", err=True)
    if count > 1 and refused and not as_json:
        click.echo(f"{refused} of {count} files refused", err=True)
    return 1 if refused else 0
