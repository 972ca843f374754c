"""``recipe collect`` and ``recipe report``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.opening import open_run
from recipe_toolkit.cli.runs import sweep_option, where_options
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report.material import Material
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import find_run, roots
from recipe_toolkit.text_file import user_path

if TYPE_CHECKING:
    from recipe_toolkit.results.archive import Difference
    from recipe_toolkit.submit.state import RunState


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
            extra["report.html"] = _page(report, found.report)
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


@click.command("report")
@click.argument("names", metavar="[RUN...]", nargs=-1, shell_complete=completing.runs)
@sweep_option
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, a run a line; no page unless -o.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Write the page here; report.html in the run folder if not given.",
)
def report_command(
    names: tuple[str, ...],
    sweep: str | None,
    runs: str | None,
    cluster: str | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Print the table of results of each RUN and write its page.

    RUN may also be an archive of `recipe collect`: then a page is written with -o alone. Of a sweep one table
    is printed, with what was swept as columns.
    """
    from recipe_toolkit.report.table import WIDTH, render_table

    if (sweep is None) == (not names):
        raise click.UsageError("name RUNs, or a sweep with --sweep" if sweep is None else "--sweep takes no RUN")
    if sweep is not None:
        if output:
            raise click.UsageError("-o takes the page of one run")
        return _report_sweep(sweep, roots(runs, cluster), as_json)
    if output and len(names) > 1:
        raise click.UsageError("-o takes the page of one run")
    folders = roots(runs, cluster)
    opened = [open_run(name, folders) for name in names]
    found = [material_of(item.run) for item in opened]
    for index, report in enumerate(found):
        if as_json:
            click.echo(json.dumps(report.results, ensure_ascii=False, allow_nan=False))
        else:
            click.echo("\n" * bool(index) + render_table(report.results, WIDTH), nl=False)
    if as_json and not output:
        return 0
    for item, report in zip(opened, found, strict=True):
        if output or item.archive is None:
            _write(report, user_path(output) if output else report.run.report, linked=item.archive is None)
    return 0


def _report_sweep(word: str, folders: Sequence[Path], as_json: bool) -> int:
    from recipe_toolkit.report.sweep_table import Part, render, to_json
    from recipe_toolkit.submit.sweeps import find_sweep

    found = find_sweep(word, folders)
    results: dict[str, Any] = {}
    parts = []
    for state, record in found.latest():
        if state.folder not in results:
            results[state.folder] = _material(RunDir(Path(state.folder)), state).results
        parts.append(Part(record, results[state.folder]))
    if as_json:
        click.echo(json.dumps(to_json(found.id, parts), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(render(found.id, parts), nl=False)
    return 0


def material_of(run: RunDir) -> Material:
    """The run's results with the state that the scheduler and the run agree on."""
    from recipe_toolkit.submit.state import run_state

    return _material(run, run_state(run))


def _material(run: RunDir, state: RunState) -> Material:
    from recipe_toolkit.report.material import material

    known = {"state": state.state, "message": state.message, "nodes": list(state.nodes)}
    return material(run, known)


def _page(report: Material, target: Path, *, linked: bool = True) -> str:
    from recipe_toolkit.plan.draw import draw
    from recipe_toolkit.report.material import page

    return page(report, target, draw(report.plan), linked=linked)


def _write(report: Material, target: Path, *, linked: bool) -> None:
    from recipe_toolkit.rundir import write_atomic

    try:
        write_atomic(target, _page(report, target, linked=linked))
    except OSError as error:
        raise RecipeError(
            f"cannot write the page {target}: {error.strerror or error}", hint="name another file with -o"
        ) from error
    click.echo(f"page: {target}", err=True)
