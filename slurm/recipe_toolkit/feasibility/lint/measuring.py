"""What the figures of a benchmark can carry."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recipe_toolkit.faults import Fault
from recipe_toolkit.feasibility.lint.registry import rule
from recipe_toolkit.feasibility.search import least_requests
from recipe_toolkit.feasibility.serving import effective_args, where_set
from recipe_toolkit.recipe import Benchmark, Recipe

_PERCENTILE = re.compile(r"_p(\d+(?:\.\d+)?)(?:_|$)")


@rule(
    "stream-interval-hides-itl",
    "note",
    "`stream-interval` above 1",
    "Tokens come in chunks: the gaps between them (ITL) say nothing of the engine. TPOT holds: the first token comes "
    "at once.",
    do="Judge by TPOT, or `stream-interval: 1`.",
)
def stream_interval(recipe: Recipe) -> Iterator[Fault]:
    """Chunks of several tokens."""
    for role in recipe.roles:
        value = effective_args(recipe, role).get("stream-interval")
        if role.name != "prefill" and isinstance(value, int) and value > 1:
            at = where_set(recipe, role, "stream-interval")
            yield Fault(at, f"{value} tokens come at once: read TPOT, not ITL", None, key=True)


@rule(
    "percentile-of-few",
    "warning",
    "a percentile is published or asked of a point with fewer requests than it needs, 10 / (1 - q)",
    "The 99th percentile of 80 requests is their slowest, or nearly: it changes from run to run.",
    do="`requests_per_concurrency: 100` at concurrency 10 is enough for the 99th percentile.",
)
def percentiles(recipe: Recipe) -> Iterator[Fault]:
    """Requests of the smallest point against the highest percentile that is looked at."""
    asked = [float(item) for entry in recipe.published for name in entry.metrics for item in _PERCENTILE.findall(name)]
    # A search is refused for it.
    bounds = [float(item) for name, value in vars(recipe.slo).items() if value for item in _PERCENTILE.findall(name)]
    for index, benchmark in enumerate(recipe.benchmarks):
        given = str(benchmark.args.get("metric-percentiles", "")).split(",")
        own = [float(item) for item in given if re.fullmatch(r"\d+(\.\d+)?", item.strip())]
        highest = max([*asked, *own, *(bounds if benchmark.search is None else ())], default=0.0)
        fewest = _fewest(benchmark)
        if fewest is None or not 0 < highest < 100:
            continue
        needed = round(10 / (1 - highest / 100))
        if fewest < needed:
            rules = ("requests", "requests_per_concurrency")
            field = next(name for name in rules if getattr(benchmark, name) is not None)
            yield Fault(
                ("benchmarks", index, field),
                f"p{highest:g} of a point of {fewest} requests is one or two of them",
                f"{needed} requests or more",
            )


def _fewest(benchmark: Benchmark) -> int | None:
    if benchmark.requests is not None:
        return benchmark.requests
    if benchmark.search is not None:
        return least_requests(benchmark)
    if benchmark.requests_per_concurrency is None or not benchmark.concurrency:
        return None
    return benchmark.requests_per_concurrency * min(benchmark.concurrency)
