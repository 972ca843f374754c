"""What a search has found so far, from its points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from recipe_toolkit.plan.model import Search
from recipe_toolkit.results.search.decide import Stop, best, bracket, decide
from recipe_toolkit.results.search.loads import OBJECTIVE, Loads, Sample
from recipe_toolkit.results.search.model import Answer, Knee, SearchResult

_BETTER = 0.02  # more of the objective at a lower load is worth a word


def found_so_far(benchmark: str, search: Search, history: Sequence[Sample], ended: str | None = None) -> SearchResult:
    """The search after these points. ``ended``: why it goes no further, where it did not end by itself."""
    loads = Loads(search, history)
    step = decide(search, history)
    stop = step if isinstance(step, Stop) else Stop("stopped", ended) if ended else None
    ends = bracket(loads)
    chosen = _chosen(search, loads)
    return SearchResult(
        benchmark=benchmark,
        over=search.over,
        least=search.least,
        most=search.most,
        maximize=search.maximize,
        resolution=search.resolution,
        repeats=search.repeats,
        confidence_wanted=search.confidence,
        bounds=dict(search.bounds),
        state="ended" if stop else "running",
        outcome=stop.outcome if stop else None,
        why=stop.why if stop else None,
        answer=None if chosen is None else _answer(search, loads, chosen),
        knee=Knee(ends.met, None if _unknown(loads, ends.missed) else ends.missed) if search.bounds else Knee(),
        confidence=_confidence(search, loads, ends.met, ends.missed),
        binding=tuple(loads.missed_bounds(ends.missed)) if ends.missed is not None else (),
        monotone=_monotone(loads),
        noise_ratio=_noise(search, loads, ends.missed),
        loads=loads.to_results(),
        points_measured=len(history),
        points_most=search.points,
        measuring_s=sum(sample.seconds for sample in history),
        notes=tuple(_notes(search, loads, chosen)),
    )


def _unknown(loads: Loads, load: float | None) -> bool:
    """Whether no point of it counts: it neither meets the bounds nor misses them."""
    return load is not None and loads.hopeless(load)


def _chosen(search: Search, loads: Loads) -> float | None:
    """The load to run at: the highest that meets every bound, or the one with the most goodput."""
    return best(loads) if search.maximize == "goodput" else bracket(loads).met


def _answer(search: Search, loads: Loads, load: float) -> Answer:
    item = loads.tried[load]
    low, high = loads.interval(load, OBJECTIVE)
    seen: Mapping[str, float | None] = {name: item.mean(name) for name in search.bounds}
    return Answer(load, item.mean(OBJECTIVE), low, high, seen, item.points)


def _confidence(search: Search, loads: Loads, met: float | None, missed: float | None) -> float | None:
    ends = [load for load in (met, missed) if load is not None]
    if not search.bounds or search.repeats == 1 or not ends or _unknown(loads, missed):
        return None
    # What each end has used of its share of the error that may be taken.
    used = sum(loads.doubt(load) / loads.error(load) for load in ends)
    return max(0.0, 1 - (1 - search.confidence) / 2 * used)


def _noise(search: Search, loads: Loads, missed: float | None) -> float | None:
    """Of the bound that binds, or else of the noisiest."""
    names = loads.missed_bounds(missed)[:1] if missed is not None else []
    known = [loads.noise[name].spread for name in names or search.bounds if loads.noise[name].dof]
    return max(known, default=None)


def _monotone(loads: Loads) -> bool:
    clear = [load for load in loads.tried if not loads.grey(load)]
    missed = min((load for load in clear if not loads.met(load)), default=None)
    return missed is None or not any(loads.met(load) for load in clear if load > missed)


def _notes(search: Search, loads: Loads, chosen: float | None) -> Iterator[str]:
    out = [point for item in loads.tried.values() if item.count for point in item.left_out]
    if out:
        yield f"left out, as they do not count or stand apart from the other points of their load: {', '.join(out)}"
    if not _monotone(loads):
        yield "the curve is not monotone: a load above a missed one meets every bound, and was not followed"
    for load in loads.tried:
        if loads.grey(load):
            yield f"the noise hides on which side of its bound {load:g} is: {_figures(search, loads, load)}"
    most = best(loads)
    if chosen is None or most is None or most == chosen:
        return
    here, there = loads.tried[chosen].mean(OBJECTIVE), loads.tried[most].mean(OBJECTIVE)
    if here and there and there > here * (1 + _BETTER):
        yield f"{search.maximize} is {there / here - 1:.0%} higher at the lower load {most:g}"


def _figures(search: Search, loads: Loads, load: float) -> str:
    item, near = loads.tried[load], loads.worst(load)
    figures = {name: item.mean(name) for name in search.bounds}
    return ", ".join(
        f"{name} {seen:.4g} for {search.bounds[name]:g} in {item.count} points"
        for name, seen in figures.items()
        if seen is not None and seen / search.bounds[name] == near
    )


def progress(result: SearchResult) -> str:
    """How far it is, in a line: ``7 of at most 28 points, between concurrency 32 and 64``."""
    line = f"{result.points_measured} of at most {result.points_most} points"
    if result.state == "ended":
        return f"{result.outcome} after {line}: {result.why}"
    unit = "concurrency " if result.over == "concurrency" else "rate "
    met, missed = result.knee.met, result.knee.missed
    if met is not None and missed is not None:
        return f"{line}, between {unit}{met:g} and {missed:g}"
    if met is not None:
        return f"{line}, above {unit}{met:g}"
    return line if missed is None else f"{line}, below {unit}{missed:g}"
