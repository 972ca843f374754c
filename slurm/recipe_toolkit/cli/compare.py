"""``recipe compare``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.opening import open_run
from recipe_toolkit.cli.runs import sweep_option, where_options
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.submit.find import roots
from recipe_toolkit.text_file import user_path

if TYPE_CHECKING:
    from recipe_toolkit.report.compare import Comparison
    from recipe_toolkit.report.metrics import Metric
    from recipe_toolkit.report.side import Side

MOST = 26
_SCORES = "accuracy"


@click.command("compare")
@click.argument("names", metavar="RUN [RUN...]", nargs=-1, shell_complete=completing.runs)
@sweep_option
@where_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every metric.")
@click.option("--html", metavar="FILE", type=click.Path(), help="Also write a page.")
@click.option(
    "--metric",
    "wanted",
    metavar="NAME",
    multiple=True,
    help="Only this one, as ttft_ms.p90, or accuracy: all scores; repeatable.",
)
@click.option(
    "--fail-if-worse",
    "limit",
    metavar="PERCENT",
    type=click.FloatRange(min=0),
    help="Exit with 1 if a figure is worse than the first run's by more.",
)
@click.option("--published", is_flag=True, help="Hold one RUN against what its recipe says was published.")
def compare_command(
    names: tuple[str, ...],
    sweep: str | None,
    runs: str | None,
    cluster: str | None,
    as_json: bool,
    html: str | None,
    wanted: tuple[str, ...],
    limit: float | None,
    published: bool,
) -> int:
    """Put the results of two or more RUNs side by side; each is held against the first.

    RUN is also an archive of `recipe collect` or a results.json. What differs in their conditions comes
    first. Invalid points are named and their figures left out; rehearsals and simulated runs are not
    compared with measurements.

    Exit codes: 0 compared, whatever the differences; 1 refused, nothing could be compared, or (with
    --fail-if-worse) a figure is worse, or a valid point of the first run is invalid or missing.
    """
    if sweep is not None:
        names = _of_sweep(names, sweep, roots(runs, cluster))
    elif not names:
        raise click.UsageError("Missing argument 'RUN [RUN...]'.")
    if published:
        if len(names) > 1 or html is not None or wanted:
            raise click.UsageError("--published takes one RUN, and neither --html nor --metric")
        return _published(_side(names[0], roots(runs, cluster)), as_json, limit)
    from recipe_toolkit.report import compare_text
    from recipe_toolkit.report.compare import compare, to_json, worse
    from recipe_toolkit.report.metrics import METRICS
    from recipe_toolkit.report.side import conditions

    if not 2 <= len(names) <= MOST:
        raise click.UsageError(f"2 to {MOST} runs can be compared, not {len(names)}")
    shown = METRICS if as_json else [metric for metric in METRICS if metric.shown]
    metrics = _metrics(wanted) if wanted else shown
    folders = roots(runs, cluster)
    sides = [_side(name, folders) for name in names]
    found = compare(
        [side.results for side in sides], *conditions(sides), metrics, scores=not wanted or _SCORES in wanted
    )
    if as_json:
        click.echo(json.dumps(to_json(found), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(compare_text.render(found), nl=False)
    if html is not None:
        _write(found, user_path(html))
    losses = [] if limit is None else worse(found, limit)
    for loss in losses:
        click.echo(f"worse: {loss.label}: {loss.point}: {loss.what}", err=True)
    if not found.compared:
        click.echo("nothing could be compared: no valid point of the first run has its like in another", err=True)
    return 1 if losses or not found.compared else 0


def _of_sweep(names: Sequence[str], sweep: str, folders: Sequence[Path]) -> tuple[str, ...]:
    """The folders of the runs that a report of the sweep would take its points from."""
    from recipe_toolkit.submit.sweeps import find_sweep

    if names:
        raise click.UsageError("--sweep takes no RUN")
    return tuple(dict.fromkeys(state.folder for state, _ in find_sweep(sweep, folders).latest()))


def _published(side: Side, as_json: bool, limit: float | None) -> int:
    from recipe_toolkit.report import published

    verdicts = published.against(side.results)
    if as_json:
        data = published.to_json(side.results, verdicts)
        click.echo(json.dumps(data, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(published.render(side.results, verdicts), nl=False)
    losses = [item for item in verdicts if item.verdict == "worse" and abs(item.percent or 0) > (limit or 0)]
    if not any(item.percent is not None for item in verdicts):
        click.echo("nothing could be compared", err=True)
        return 1
    return 1 if losses and limit is not None else 0


def _metrics(wanted: Sequence[str]) -> list[Metric]:
    from recipe_toolkit.faults import did_you_mean
    from recipe_toolkit.report.metrics import BY_NAME, PER_USER, WAIT

    known = (*BY_NAME, _SCORES)
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f"one of {', '.join(known)}"
            raise click.BadParameter(f"no metric {name!r}: {hint}", param_hint="--metric")
    chosen = [name for name in dict.fromkeys(wanted) if name != _SCORES]
    if any(name.startswith(PER_USER) for name in chosen) and not any(name.startswith("ttft_ms.") for name in chosen):
        chosen.insert(0, WAIT)
    return [BY_NAME[name] for name in chosen]


def _side(name: str, folders: Sequence[Path]) -> Side:
    from recipe_toolkit.cli.report import material_of
    from recipe_toolkit.report.side import side_of_results, side_of_run

    path = user_path(name)
    if name.endswith(".json") and path.is_file():
        return side_of_results(path)
    run = open_run(name, folders).run
    return side_of_run(run, material_of(run).results)


def _write(found: Comparison, target: Path) -> None:
    from recipe_toolkit.report.compare_page import render_page
    from recipe_toolkit.rundir import write_atomic

    try:
        write_atomic(target, render_page(found))
    except OSError as error:
        raise RecipeError(f"cannot write the page {target}: {error.strerror or error}") from error
    click.echo(f"page: {target}", err=True)
