"""Every figure of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.report.figures import frontier, latencies, search, series
from recipe_toolkit.report.figures.frontier import Entry
from recipe_toolkit.report.figures.model import Figure
from recipe_toolkit.rundir import RunDir


def figures_of_run(
    run: RunDir, results: Mapping[str, Any], events: Sequence[Mapping[str, Any]], predicted: Sequence[Entry] = ()
) -> list[Figure]:
    """The figures that can be drawn of a run, from its results and what its folder holds."""
    return [figure for figure in _all(run, results, events, predicted) if figure is not None]


def _all(
    run: RunDir, results: Mapping[str, Any], events: Sequence[Mapping[str, Any]], predicted: Sequence[Entry]
) -> Iterator[Figure | None]:
    yield frontier.figure([*frontier.entries(results), *predicted], [results])
    yield from search.figures(results)
    yield latencies.figure(results, run.root)
    yield series.figure(events, run.metrics)
