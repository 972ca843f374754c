"""``recipe report``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.opening import Opened, open_run
from recipe_toolkit.cli.runs import sweep_option, where_options
from recipe_toolkit.errors import RecipeError, UnknownRun
from recipe_toolkit.report.material import Material
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import roots
from recipe_toolkit.text_file import user_path

if TYPE_CHECKING:
    from recipe_toolkit.report.figures.model import Figure
    from recipe_toolkit.report.figures.predicted import Predicted
    from recipe_toolkit.submit.state import RunState
    from recipe_toolkit.submit.sweeps import Sweep

PORT = 8642


@click.command("report")
@click.argument("names", metavar="[RUN|SWEEP...]", nargs=-1, shell_complete=completing.runs)
@sweep_option
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, a run a line; no page unless -o.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Write the page here, that of several RUNs as one; report.html in the run folder if not given.",
)
@click.option("--png", metavar="DIR", type=click.Path(), help="Write each figure as a PNG file into DIR.")
@click.option("--csv", metavar="DIR", type=click.Path(), help="Write what each figure shows as a CSV file into DIR.")
@click.option("--plot", is_flag=True, help="Print the frontier too, in characters.")
@click.option(
    "--frontier",
    metavar="FILE",
    type=click.Path(),
    help="Draw the predicted points of `recipe frontier` beside what was measured.",
)
@click.option(
    "--published",
    "beside",
    metavar="FILE",
    type=click.Path(),
    help="Show these beside ours too: a results.json, or InferenceX's rows (JSON).",
)
@click.option(
    "--serve", is_flag=True, help="Show the runs in DIR (or of --runs, --cluster) in a browser, until Ctrl-C."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"With --serve: the port on 127.0.0.1 ({PORT}; 0: any that is free)."
)
def report_command(
    names: tuple[str, ...],
    sweep: str | None,
    runs: str | None,
    cluster: str | None,
    as_json: bool,
    output: str | None,
    png: str | None,
    csv: str | None,
    plot: bool,
    frontier: str | None,
    beside: str | None,
    serve: bool,
    port: int | None,
) -> int:
    """Print the table of results of each RUN and write its page.

    RUN may also be an archive of `recipe collect`: then a page is written with -o alone. Of a SWEEP one table is
    printed, with what was swept as columns, and one page written beside its runs. With --serve the word is a folder of
    runs: its pages are made as they are asked for, and follow runs that go on.
    """
    if serve:
        if sweep is not None or as_json or output or png or csv or plot or frontier or beside or len(names) > 1:
            raise click.UsageError("--serve takes a folder of runs, and --port alone")
        from recipe_toolkit.cli.serving import serve as serve_folders

        return serve_folders(_served(names, runs, cluster), PORT if port is None else port)
    if port is not None:
        raise click.UsageError("--port goes with --serve")
    if (sweep is None) == (not names):
        raise click.UsageError("name RUNs, or a sweep with --sweep" if sweep is None else "--sweep takes no RUN")
    wanted = Wanted(as_json, plot, *(user_path(word) if word else None for word in (output, png, csv)))
    predicted = _predicted(frontier)
    folders = roots(runs, cluster)
    opened, found = _named(names, sweep, folders)
    if found is not None:
        from recipe_toolkit.cli.report_many import report_sweep

        if beside:
            raise click.UsageError("--published goes with RUNs")
        return report_sweep(found, wanted, predicted)
    return _report(opened, wanted, predicted, _published(beside))


class Wanted:
    """What is to be printed and written."""

    def __init__(self, as_json: bool, plot: bool, output: Path | None, png: Path | None, csv: Path | None) -> None:
        self.as_json, self.plot, self.output, self.png, self.csv = as_json, plot, output, png, csv

    def write_figures(self, figures: Sequence[Figure], folder: str = "") -> None:
        """The figures' files; ``folder``: one of their own in DIR."""
        from recipe_toolkit.report.figures.draw import write

        for target, kind in ((self.png, "png"), (self.csv, "csv")):
            if target is not None:
                written = write(figures, target / folder, kind)
                click.echo(f"{kind}: {len(written)} files in {target / folder}", err=True)


def _served(names: Sequence[str], runs: str | None, cluster: str | None) -> list[Path]:
    if not names:
        return roots(runs, cluster)
    folder = user_path(names[0]).absolute()
    if not folder.is_dir():
        raise RecipeError(f"{folder}: is no folder", hint="recipe report --serve DIR takes a folder of runs")
    return [folder]


def _named(names: Sequence[str], sweep: str | None, folders: Sequence[Path]) -> tuple[list[Opened], Sweep | None]:
    """The runs, or the sweep that the only word names where no run is called so."""
    from recipe_toolkit.submit.sweeps import find_sweep

    if sweep is not None:
        return [], find_sweep(sweep, folders)
    try:
        return [open_run(name, folders) for name in names], None
    except UnknownRun:
        if len(names) == 1:
            try:
                return [], find_sweep(names[0], folders)
            except UnknownRun:
                pass
        raise


def _predicted(path: str | None) -> Predicted | None:
    if path is None:
        return None
    from recipe_toolkit.report.figures.predicted import read_predicted

    return read_predicted(user_path(path))


def _published(beside: str | None) -> list[dict[str, Any]]:
    """What a file of others' results holds, as a recipe's ``published`` would."""
    if beside is None:
        return []
    from recipe_toolkit.report.side import read_any_results
    from recipe_toolkit.results.as_published import published

    path = user_path(beside)
    return published(read_any_results(path).to_json(), path.name)


def _report(
    opened: Sequence[Opened], wanted: Wanted, predicted: Predicted | None, published: Sequence[Mapping[str, Any]]
) -> int:
    from recipe_toolkit.report.table import WIDTH, render_table

    found = [material_of(item.run) for item in opened]
    for report in found if published else ():
        report.results["published"] = [*report.results["published"], *published]
    for index, report in enumerate(found):
        if wanted.as_json:
            click.echo(json.dumps(report.results, ensure_ascii=False, allow_nan=False))
        else:
            click.echo("\n" * bool(index) + render_table(report.results, WIDTH), nl=False)
            if wanted.plot:
                _plot(report, predicted)
    several = len(found) > 1
    if several and wanted.output:
        from recipe_toolkit.cli.report_many import write_runs

        write_runs(opened, found, wanted.output, predicted)
    for item, report in zip(opened, found, strict=True):
        _write_run(item, report, wanted, predicted, several)
    return 0


def _write_run(item: Opened, report: Material, wanted: Wanted, predicted: Predicted | None, several: bool) -> None:
    """A run's page and figures, as far as they are wanted."""
    from recipe_toolkit.report.material import figures

    target = wanted.output
    if target is None and not wanted.as_json and item.archive is None:
        target = report.run.report
    if several and wanted.output:
        target = None  # there is one page of all
    if target is None and not (wanted.png or wanted.csv):
        return
    drawn = figures(report, predicted.beside([report.results]) if predicted is not None else ())
    wanted.write_figures(drawn, report.run.id if several else "")
    if target is not None:
        write_page(target, page_of(report, target, linked=item.archive is None, drawn=drawn))


def _plot(report: Material, predicted: Predicted | None) -> None:
    from recipe_toolkit.report.figures.frontier import entries
    from recipe_toolkit.report.plot import render_plot
    from recipe_toolkit.report.text import unit_of_work

    more = predicted.beside([report.results]) if predicted is not None else ()
    drawn = render_plot([*entries(report.results), *more], unit_of_work(report.results))
    if drawn:
        click.echo(f"\n{drawn}", nl=False)


def material_of(run: RunDir) -> Material:
    """The run's results with the state that the scheduler and the run agree on."""
    from recipe_toolkit.submit.state import run_state

    return material_in(run, run_state(run))


def material_in(run: RunDir, state: RunState) -> Material:
    """The run's results with its state as it is known."""
    from recipe_toolkit.report.material import material

    known = {"state": state.state, "message": state.message, "nodes": list(state.nodes)}
    return material(run, known)


def page_of(
    report: Material,
    target: Path,
    *,
    linked: bool = True,
    drawn: Sequence[Figure] | None = None,
    look: float | None = None,
) -> str:
    """The page of a run that will be at ``target``."""
    from recipe_toolkit.plan.draw import draw
    from recipe_toolkit.report.material import page

    return page(report, target, draw(report.plan), linked=linked, drawn=drawn, look=look)


def write_page(target: Path, page: str) -> None:
    """Write a page, whole or not at all, and say where. Raises RecipeError."""
    from recipe_toolkit.rundir import write_atomic

    try:
        write_atomic(target, page)
    except OSError as error:
        raise RecipeError(
            f"cannot write the page {target}: {error.strerror or error}", hint="name another file with -o"
        ) from error
    click.echo(f"page: {target}", err=True)
