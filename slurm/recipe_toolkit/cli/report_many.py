"""The page of several runs, and of a sweep."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from recipe_toolkit.cli.opening import Opened
from recipe_toolkit.cli.report import Wanted, material_in, write_page
from recipe_toolkit.report.figures.draw import bundle
from recipe_toolkit.report.figures.predicted import Predicted
from recipe_toolkit.report.many import Item, figure, labelled, render_many
from recipe_toolkit.report.material import Material
from recipe_toolkit.report.sweep_table import Part
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.sweeps import Sweep


def write_runs(opened: Sequence[Opened], found: Sequence[Material], target: Path, predicted: Predicted | None) -> None:
    """One page of several runs. Raises RecipeError."""
    labels = labelled([report.results for report in found])
    items = [
        Item(report.results, label, _relative(report.run, target) if item.archive is None else None)
        for item, report, label in zip(opened, found, labels, strict=True)
    ]
    title = ", ".join(labels) if len(labels) <= 3 else f"{len(labels)} runs"
    more = predicted.beside([report.results for report in found]) if predicted is not None else ()
    write_page(target, render_many(title, items, figure(items, more), vega=bundle()))


def report_sweep(found: Sweep, wanted: Wanted, predicted: Predicted | None) -> int:
    """The table and the page of a sweep."""
    from recipe_toolkit.report.figures.frontier import entries
    from recipe_toolkit.report.plot import render_plot
    from recipe_toolkit.report.sweep_table import render, to_json
    from recipe_toolkit.report.text import unit_of_work

    parts = _parts(found)
    more = predicted.beside([part.results for part in parts]) if predicted is not None else ()
    if wanted.as_json:
        click.echo(json.dumps(to_json(found.id, parts), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(render(found.id, parts), nl=False)
        if wanted.plot:
            drawn = [entry for part in parts for entry in entries(part.results, points=part.points)]
            click.echo("\n" + render_plot([*drawn, *more], unit_of_work(parts[0].results)), nl=False)
    target = wanted.output or (None if wanted.as_json else found.runs[0].root.parent / f"{found.id}.html")
    items = _items(parts, (lambda run: _relative(run, target)) if target is not None else (lambda run: None))
    drawn_figure = figure(items, more) if target is not None or wanted.png or wanted.csv else None
    if drawn_figure is not None:
        wanted.write_figures([drawn_figure])
    if target is not None:
        write_page(target, render_many(_title(found), items, drawn_figure, vega=bundle()))
    return 0


def sweep_page(found: Sweep, base: Callable[[RunDir], str], look: float | None = None) -> str:
    """The page of a sweep. ``base``: where the folder of a run is, seen from it."""
    items = _items(_parts(found), base)
    return render_many(_title(found), items, figure(items), vega=bundle(), look=look)


def _title(found: Sweep) -> str:
    return f"Sweep {found.id}"


def _parts(found: Sweep) -> list[Part]:
    results: dict[str, Any] = {}
    parts = []
    for state, record in found.latest():
        if state.folder not in results:
            results[state.folder] = material_in(RunDir(Path(state.folder)), state).results
        parts.append(Part(record, results[state.folder], state.folder))
    return parts


def _items(parts: Sequence[Part], base: Callable[[RunDir], str | None]) -> list[Item]:
    return [
        Item(
            part.results,
            str(part.record["id"]),
            base(RunDir(Path(part.folder))),
            part.points,
            part.record["columns"],
            part.wanted,
        )
        for part in parts
    ]


def _relative(run: RunDir, target: Path) -> str:
    path = os.path.relpath(run.root, target.absolute().parent)
    return path if path.startswith(".") else f"./{path}"
