"""Whether a benchmark's search has a range, a bound to look for, and points that can show it."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.recipe import Benchmark, Recipe, Search, Slo
from recipe_toolkit.slo import AGGREGATES

_REQUESTS = ("ttft_s", "tpot_ms", "e2e_s")


def check_search(recipe: Recipe, benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    """What is wrong with it, of a benchmark that has one."""
    search = benchmark.search
    if search is None:
        return
    for name in ("concurrency", "request_rate"):
        if getattr(benchmark, name):
            yield Fault((*at, name), "the search chooses the loads", "leave out this, or search", key=True)
    if benchmark.repeats > 1:
        yield Fault((*at, "repeats"), "the search repeats where it has to", "search.repeats: NUMBER", key=True)
    yield from _range(search, (*at, "search"))
    yield from _bounds(recipe.slo, search, (*at, "search"))
    yield from _rules(benchmark, search, at)
    yield from _percentiles(recipe.slo, benchmark, search, at)
    if search.deadline_s is not None and search.deadline_s > recipe.time_limit_s:
        message = f"{search.deadline_s:g} s are more than the time_limit of the job, {recipe.time_limit_s} s"
        yield Fault((*at, "search", "deadline"), message, "a shorter deadline, or a longer time_limit")


def least_requests(benchmark: Benchmark) -> int | None:
    """Requests of the smallest point of a search; None where the rule is missing."""
    if benchmark.requests is not None or benchmark.search is None:
        return benchmark.requests
    if benchmark.requests_per_concurrency is None or benchmark.search.over != "concurrency":
        return None
    return benchmark.requests_per_concurrency * round(benchmark.search.least)


def _range(search: Search, at: FieldPath) -> Iterator[Fault]:
    if search.most <= search.least:
        message = f"the range from {search.least:g} to {search.most:g} is empty"
        yield Fault((*at, "to"), message, f"to: more than {search.least:g}")
    if search.over != "concurrency":
        return
    for key, value in (("from", search.least), ("to", search.most)):
        if value != round(value):
            yield Fault((*at, key), f"{value:g} is no number of requests in flight", "a whole number")


def _bounds(slo: Slo, search: Search, at: FieldPath) -> Iterator[Fault]:
    given = {name for name, bound in vars(slo).items() if bound is not None}
    if search.maximize == "goodput" and not given.intersection(_REQUESTS):
        message = "goodput counts the requests that meet slo.ttft_s, slo.tpot_ms or slo.e2e_s, and none is given"
        yield Fault((*at, "maximize"), message, "slo: {ttft_s: 2.5, tpot_ms: 20}")
    if search.maximize != "goodput" and not given.intersection(AGGREGATES):
        message = "there is no bound to look for: slo bounds no mean and no percentile"
        yield Fault(at, message, "slo: {ttft_mean_s: 2.5, tpot_mean_ms: 20}", key=True)


def _rules(benchmark: Benchmark, search: Search, at: FieldPath) -> Iterator[Fault]:
    if search.over == "concurrency":
        if benchmark.max_concurrency is not None:
            message = "the search sets how many are in flight"
            yield Fault((*at, "max_concurrency"), message, f"leave it out, or search to {search.most:g}", key=True)
        if benchmark.requests is not None and benchmark.requests < search.most:
            message = f"{benchmark.requests} requests never reach concurrency {search.most:g}"
            hint = "requests_per_concurrency: 10 keeps all points alike"
            yield Fault((*at, "requests"), message, hint, severity="warning")
        return
    for name in ("requests_per_concurrency", "warmup_per_concurrency"):
        if getattr(benchmark, name) is not None:
            plain = name.removesuffix("_per_concurrency")
            yield Fault((*at, name), "there is no concurrency to multiply", f"{plain}: NUMBER", key=True)
    if benchmark.requests is not None and benchmark.requests / search.least > benchmark.timeout_s:
        took = benchmark.requests / search.least
        yield Fault(
            (*at, "search", "from"),
            f"{benchmark.requests} requests at {search.least:g} a second take {took:g} s, and the point may take "
            f"{benchmark.timeout_s:g} s",
            "fewer requests, a higher rate, or a longer timeout",
        )


def _percentiles(slo: Slo, benchmark: Benchmark, search: Search, at: FieldPath) -> Iterator[Fault]:
    fewest = least_requests(benchmark)
    if fewest is None:
        return
    for name, figure in AGGREGATES.items():
        if getattr(slo, name) is not None and fewest < figure.requests:
            field = "requests" if benchmark.requests is not None else "requests_per_concurrency"
            where = f"at {'concurrency' if search.over == 'concurrency' else 'rate'} {search.least:g}"
            hint = "more requests"
            if field == "requests_per_concurrency":
                hint += f", or search from {-(-figure.requests // (benchmark.requests_per_concurrency or 1))}"
            message = f"{fewest} requests {where} cannot show slo.{name}, which needs {figure.requests}"
            yield Fault((*at, field), message, hint)
