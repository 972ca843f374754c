"""A point's result as a search sees it."""

from __future__ import annotations

from recipe_toolkit.plan.model import Search
from recipe_toolkit.results.model import PointResult
from recipe_toolkit.results.search.loads import Sample
from recipe_toolkit.slo import AGGREGATES


def sample(search: Search, load: float, result: PointResult) -> Sample:
    """The figures that the search bounds, and the one that it maximises."""
    seen = {}
    for name in search.bounds:
        figure = AGGREGATES[name]
        value = getattr(getattr(result, figure.stat), figure.key, None)
        seen[name] = None if value is None else value * figure.scale
    objective = result.goodput_rps if search.maximize == "goodput" else result.total_tps_per_gpu.working
    return Sample(result.id, load, result.valid, seen, objective, result.client_s or 0.0)
