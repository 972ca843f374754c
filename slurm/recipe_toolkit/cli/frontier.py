"""``recipe frontier``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.runs import where_options
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.text_file import user_path

if TYPE_CHECKING:
    from recipe_toolkit.frontier.pareto import Axis
    from recipe_toolkit.report.combining import Part

AXES = ("output_tps_per_user", "total_tps_per_gpu")
_MOST = 1024


@click.command("frontier")
@click.argument("names", metavar="[RUN...]", nargs=-1, shell_complete=completing.runs)
@click.option("--sweep", "sweeps", metavar="SWEEP", multiple=True, help="All runs of this sweep too; repeatable.")
@where_options
@click.option("--gpus", type=click.IntRange(2, _MOST), metavar="N", required=True, help="Splits of up to N GPUs.")
@click.option("--exactly", is_flag=True, help="Only splits that take all of them.")
@click.option(
    "--axis",
    "axes",
    metavar="METRIC[:max|min]",
    multiple=True,
    help=f"What points are held against each other on; repeatable. Default: {' and '.join(AXES)}.",
)
@click.option(
    "--transfer-gb-per-s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="Rate of one KV transfer at one decode GPU, in GB/s; else that of a run's counters.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the frontier as JSON.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(), help="Also write it as JSON here.")
def frontier_command(
    names: tuple[str, ...],
    sweeps: tuple[str, ...],
    runs: str | None,
    cluster: str | None,
    gpus: int,
    exactly: bool,
    axes: tuple[str, ...],
    transfer_gb_per_s: float | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Predict prefill/decode points from RUNs that measured prefill alone and decode alone.

    RUN may also be an archive of `recipe collect`. How many instances of each, at which load, and what comes of it:
    every figure is a prediction, and docs/frontier.md has the formula and what it leaves out. Runs of prefill and
    decode together are put beside their prediction. Invalid points are never used; runs of different models,
    engines, hardware or lengths are refused.
    """
    from recipe_toolkit.frontier.document import Asked
    from recipe_toolkit.submit.find import roots

    if not names and not sweeps:
        raise click.UsageError("Missing argument 'RUN...'.")
    asked = Asked(gpus, exactly, axes_of(axes))
    data = frontier_of(opened(names, sweeps, roots(runs, cluster)), asked, transfer_gb_per_s)
    if output is not None:
        write(data, user_path(output))
    show(data, as_json=as_json)
    return 0 if data["points"] else 1


def axes_of(words: Sequence[str]) -> tuple[Axis, ...]:
    """The axes that the words name. Raises BadParameter."""
    from recipe_toolkit.frontier.pareto import axis

    try:
        return tuple(axis(word) for word in words or AXES)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--axis") from error


def opened(names: Sequence[str], sweeps: Sequence[str], folders: Sequence[Path]) -> list[Part]:
    """The runs by name, and the last that counts of each variant of the sweeps. Raises UnknownRun, RecipeError."""
    from recipe_toolkit.cli.opening import open_run
    from recipe_toolkit.rundir import RunDir
    from recipe_toolkit.submit.sweeps import find_sweep

    found = [open_run(name, folders).run for name in names]
    for sweep in sweeps:
        found += [RunDir(Path(state.folder)) for state, _ in find_sweep(sweep, folders).latest()]
    return [part_of(run) for run in dict.fromkeys(found)]


def part_of(run: Any) -> Part:
    """A run with its plan and results. Raises RecipeError."""
    from recipe_toolkit.cli.report import material_of
    from recipe_toolkit.report.combining import Part

    found = material_of(run)
    return Part(run, found.plan, found.results)


def frontier_of(parts: Sequence[Part], asked: Any, gb_per_s: float | None) -> dict[str, Any]:
    """The document of the runs. Raises RecipeError."""
    from recipe_toolkit.frontier.document import to_json
    from recipe_toolkit.report.combining import combined

    return to_json(combined(parts, asked, gb_per_s), parts[0].results)


def show(data: dict[str, Any], *, as_json: bool) -> None:
    """Print the frontier."""
    from recipe_toolkit.report.frontier_text import render

    if as_json:
        click.echo(json.dumps(data, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(render(data), nl=False)


def write(data: dict[str, Any], target: Path) -> None:
    """Write the document, whole or not at all. Raises RecipeError."""
    from recipe_toolkit.rundir import write_json

    try:
        write_json(target, data)
    except OSError as error:
        raise RecipeError(f"cannot write {target}: {error.strerror or error}", hint="name another file") from error
    click.echo(f"frontier: {target}", err=True)
