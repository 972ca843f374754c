"""``recipe collect``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.opening import open_run
from recipe_toolkit.cli.report import material_of, page_of
from recipe_toolkit.cli.runs import where_options
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import find_run, roots
from recipe_toolkit.text_file import user_path

if TYPE_CHECKING:
    from recipe_toolkit.results.archive import Difference


@click.command("collect")
@click.argument("run", metavar="RUN", required=False, shell_complete=completing.runs)
@where_options
@click.option(
    "-o",
    "--output",
    metavar="FILE.tar.gz|DIR",
    type=click.Path(),
    help="Where to; ./RUN.tar.gz if not given. An earlier copy is replaced.",
)
@click.option(
    "--verify",
    metavar="ARCHIVE|DIR",
    type=click.Path(),
    help="Check an earlier copy instead, here or on another machine; its results.json against the schema too.",
)
def collect_command(
    run: str | None, runs: str | None, cluster: str | None, output: str | None, verify: str | None
) -> int:
    """Pack the results, report, plan, logs and artifacts of RUN, with a manifest; never its secret.

    Checks the run's files against its own manifest first, and reads back what was written. Works on runs
    that were killed or still go on. Prints where the copy is; exits with 1 if a file is not as the
    manifest says.
    """
    if verify is not None:
        if run is not None or output is not None:
            raise click.UsageError("--verify takes a copy, and neither RUN nor -o")
        return _verify(user_path(verify))
    if run is None:
        raise click.UsageError("Missing argument 'RUN'.")
    return _collect(find_run(run, roots(runs, cluster)), output)


def _collect(found: RunDir, output: str | None) -> int:
    from recipe_toolkit.report.text import size
    from recipe_toolkit.results.gather import gather

    target = user_path(output) if output else Path(f"{found.id}.tar.gz")
    extra: dict[str, str] = {}
    try:
        report = material_of(found)
        if not found.report.is_file():
            extra["report.html"] = page_of(report, found.report)
        if report.results["state"] in ("pending", "running"):
            click.echo("the run has not ended: this is what there is now", err=True)
    except RecipeError as error:
        click.echo(f"no report: {error.render()}", err=True)
    try:
        gathered = gather(found, target, extra)
    except OSError as error:
        raise RecipeError(f"cannot collect {found.id}: {error}") from error
    click.echo(gathered.path)
    said = f"{gathered.files} files, {size(gathered.bytes)}, read back"
    if gathered.differences is None:
        click.echo(f"{said}; not checked: the run left no manifest", err=True)
        return 0
    return _differing(gathered.differences, said, "the run's manifest")


def _verify(path: Path) -> int:
    from recipe_toolkit.report.text import size
    from recipe_toolkit.results.archive import verify_copy

    verified = verify_copy(path)
    said = f"{path}: run {verified.run}, {verified.files} files, {size(verified.bytes)}"
    code = _differing(verified.differences, said, "its manifest")
    try:
        checked = _check_results(path)
    except RecipeError as error:
        click.echo(error.render(), err=True)
        return 1
    if checked:
        click.echo("results.json is as its schema says", err=True)
    return code


def _check_results(path: Path) -> bool:
    """Hold a copy's results.json against its schema; False where there is none. Raises RecipeError."""
    from recipe_toolkit.report.material import read_results

    run = open_run(str(path), ()).run if path.is_file() else RunDir(path)
    if not run.results.exists():
        return False
    read_results(run.results)
    return True


def _differing(differences: Sequence[Difference], said: str, manifest: str) -> int:
    for difference in differences:
        click.echo(f"{difference.what}: {difference.path}", err=True)
    if not differences:
        click.echo(f"{said}; as {manifest} says", err=True)
        return 0
    verb = "is" if len(differences) == 1 else "are"
    click.echo(f"{said}; {len(differences)} {verb} not as {manifest} says", err=True)
    return 1
