"""What to measure next, or why to stop: a function of the points so far, and of nothing else.

The range is climbed from its least load by doubling until a load misses a bound; then the gap between the highest
load that meets every bound and the lowest that misses one is narrowed, where their figures say that the knee is, until
it is within the resolution. Up to there each load is measured once, and one bad point may mislead. Then both ends are
repeated until their verdicts are sure. A verdict that changes opens the gap again: it is always that of all points so
far. Where the noise hides a verdict after every repeat, the load is at the bound as far as can be told, and repeats in
any number that is worth their time would tell no more: the ends are looked for a step of the resolution from the knee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from recipe_toolkit.plan.model import Search
from recipe_toolkit.results.search.loads import OBJECTIVE, Loads, Sample

_FALLING = 0.9  # goodput below this share of the best, twice in a row, has passed its peak
_BESIDE = 0.08  # of the gap: how far beyond the likely knee the next load is, for that to be off by a little
_BELOW, _ABOVE = 0.75, 1.0  # steps of the resolution from the likely knee to ends that are told from it
_STEPS = 2.0  # between the ends, where loads at the bound lie between them


@dataclass(frozen=True)
class Measure:
    """Measure a point at ``load``; ``repeat`` counts those of the load from 1."""

    load: float
    repeat: int


@dataclass(frozen=True)
class Stop:
    """The end. ``outcome`` and ``why`` as in the results."""

    outcome: str
    why: str


@dataclass(frozen=True)
class Bracket:
    """``met``: the highest load that meets every bound; ``missed``: the lowest that misses one, or gives no point that
    counts; None: there is none."""

    met: float | None
    missed: float | None


def decide(search: Search, history: Sequence[Sample]) -> Measure | Stop:
    """The next point, or the end."""
    loads = Loads(search, history)
    step = _next(search, loads)
    if isinstance(step, Stop):
        return step
    limit = _limit(search, history, step)
    if limit is not None:
        return Stop("stopped", limit)
    item = loads.tried.get(step)
    return Measure(step, 1 if item is None else item.asked + 1)


def bracket(loads: Loads) -> Bracket:
    """Between which loads the knee is, leaving those aside of which the noise hides the verdict."""
    clear = [load for load in loads.tried if not loads.grey(load)]
    missed = min((load for load in clear if not loads.met(load)), default=None)
    met = [load for load in clear if loads.met(load) and (missed is None or load < missed)]
    return Bracket(max(met, default=None), missed)


def close(search: Search, low: float, high: float, times: float = 1.0) -> bool:
    """Whether two loads are within the resolution, or so many times it."""
    reach = low * (math.pow(1 + search.resolution, times) - 1) * 1.001
    return high - low <= (max(times, math.floor(reach)) if search.over == "concurrency" else reach)


def crossing(loads: Loads, met: float, missed: float) -> float:
    """Where the knee seems to be between two loads, on a line through the figures next to it, in logarithms."""
    inside = [load for load, item in loads.tried.items() if item.count and met <= load <= missed]
    low = max((load for load in inside if loads.met(load)), default=met)
    high = min((load for load in inside if not loads.met(load)), default=missed)
    below, above = loads.worst(low), loads.worst(high)
    part = -math.log(below) / math.log(above / below) if low < high and 0 < below <= 1 < above else 0.5
    return low * math.pow(high / low, part)


def narrow(search: Search, loads: Loads, met: float, missed: float) -> bool:
    """Whether the ends are as near as was asked; around loads at a bound each may be a step away from where it is."""
    hidden = any(met < load < missed and loads.grey(load) for load in loads.tried)
    return close(search, met, missed, _STEPS if hidden else 1.0)


def best(loads: Loads) -> float | None:
    """The load with the most of the objective among those that meet every bound."""
    met = [load for load in loads.tried if loads.tried[load].count and loads.met(load) and not loads.grey(load)]
    return max(met, key=lambda load: (loads.tried[load].mean(OBJECTIVE) or 0.0, -load), default=None)


def _next(search: Search, loads: Loads) -> float | Stop:
    if not loads.tried:
        return search.least
    for load, item in loads.tried.items():
        if not item.count and not loads.hopeless(load):
            return load
    # What was begun is finished first: a bad point among two spoils what is known of the noise at all loads.
    again = _unsettled(loads, [load for load, item in loads.tried.items() if item.count > 1])
    if again is not None:
        return again
    step = _knee(search, loads)
    if isinstance(step, Stop) and search.maximize == "goodput" and step.outcome in ("found", "all_met", "unsure"):
        return _peak(search, loads) or step
    return step


def _knee(search: Search, loads: Loads) -> float | Stop:
    ends = bracket(loads)
    grey = [load for load in loads.tried if loads.grey(load)]
    if ends.missed is None:
        return _climb(search, loads, grey)
    again = _contradiction(loads, ends.missed)
    if again is not None:
        return again
    if ends.met is None:
        return _bottom(search, loads, ends.missed, [load for load in grey if load < ends.missed])
    hidden = [load for load in grey if ends.met < load < ends.missed]
    if hidden:
        return _apart(search, loads, ends.met, ends.missed, hidden)
    if not close(search, ends.met, ends.missed):
        return _between(search, loads, ends.met, ends.missed)
    again = _unsettled(loads, [ends.met, ends.missed])
    return again if again is not None else _found(search, loads, ends.met, ends.missed)


def _between(search: Search, loads: Loads, met: float, missed: float) -> float:
    """A load just beyond where the knee seems to be, as seen from the nearer end, so that the wider part falls away;
    the middle, where that has led no nearer so far than halving would have."""
    width = math.log(missed / met)
    halved = sum(load < met * 2.1 and missed < load * 2.1 for load in loads.tried) - 2
    if width > 1.5 * math.log(2) * 0.5**halved:
        return middle(search, met, missed)
    at = math.log(crossing(loads, met, missed) / met)
    margin = max(_BESIDE * width, min(math.log(1 + search.resolution), width) / 2)
    return _rounded(search, met * math.exp(at + margin if at < width / 2 else at - margin), met, missed)


def _climb(search: Search, loads: Loads, grey: Sequence[float]) -> float | Stop:
    """No load misses a bound so far."""
    top = max(loads.tried)
    if search.maximize == "goodput" and _falling(loads):
        return Stop("found", "goodput falls beyond its peak, and every load up to there meets the bounds")
    if top < search.most:
        times = 2.0 if top not in grey else 1 + search.resolution * 2 ** len(grey)
        return _rounded(search, min(max(top * times, top + _least_step(search, top)), search.most))
    again = _unsettled(loads, [top])
    if again is not None:
        return again
    if loads.grey(top):
        return _top(search, loads, top)
    return Stop("all_met", f"{_load(search, top)}, the highest of the range, still meets every bound")


def _top(search: Search, loads: Loads, top: float) -> float | Stop:
    """The highest load of the range lies at a bound within the noise: what is the highest that certainly meets it?"""
    clear = max((load for load in loads.tried if not loads.grey(load)), default=None)
    if clear is not None:
        hidden = min(load for load in loads.tried if load > clear)
        lower = _under(search, hidden, 1.0, clear, hidden)
        again = _unsettled(loads, [clear]) if lower is None else lower
        if again is not None:
            return again
    return Stop("unsure", f"the noise hides whether {_load(search, top)}, the highest, meets every bound")


def _bottom(search: Search, loads: Loads, missed: float, grey: Sequence[float]) -> float | Stop:
    """No load below ``missed`` meets every bound for certain."""
    low = min([missed, *grey])
    if low > search.least:
        return _below(search, low, len(grey) + 1)
    again = _unsettled(loads, [missed])
    if again is not None:
        return again
    if grey:
        return Stop("unsure", f"the noise hides whether {_load(search, low)}, the lowest, meets every bound")
    if loads.hopeless(missed):
        return Stop("unsure", f"{_load(search, missed)}, the lowest of the range, {_misses(loads, missed)}")
    return Stop("none_met", f"{_load(search, missed)}, the lowest of the range, {_misses(loads, missed)}")


def _apart(search: Search, loads: Loads, met: float, missed: float, hidden: Sequence[float]) -> float | Stop:
    """The loads between lie at a bound within the noise: the ends move a step away from the knee, or as far as they
    have to; the more loads are hidden, the farther at once."""
    at, wide = crossing(loads, met, missed), max(1.0, 2.0 ** (len(hidden) - 2))
    lower = _under(search, at, wide, met, hidden[0])
    if lower is not None:
        return lower
    times = wide
    while (above := _away(search, at, _ABOVE * times)) <= hidden[-1]:
        times *= 2
    if above < missed and not close(search, at, missed, times):
        return above
    if not narrow(search, loads, met, missed) and wide == 1:
        for low, high in ((met, hidden[0]), (hidden[-1], missed)):
            if not close(search, low, high):
                return middle(search, low, high)
    again = _unsettled(loads, [met, missed])
    return again if again is not None else _found(search, loads, met, missed)


def _under(search: Search, at: float, wide: float, met: float, hidden: float) -> float | None:
    """A load below those that are hidden, ``wide`` steps below the knee or more; None: ``met`` is near enough."""
    times = wide
    while (below := _away(search, at, -_BELOW * times)) >= hidden:
        times *= 2
    return below if met < below and not close(search, met, at, times) else None


def _found(search: Search, loads: Loads, met: float, missed: float) -> Stop:
    if loads.hopeless(missed):
        return Stop(
            "unsure", f"{_load(search, met)} meets every bound, and {_load(search, missed)} {_misses(loads, missed)}"
        )
    between = f"between {_load(search, met)} and {_load(search, missed)}, which {_misses(loads, missed)}"
    hidden = [f"{load:g}" for load in loads.tried if met < load < missed and loads.grey(load)]
    if search.repeats == 1:
        return Stop("found", f"the knee is {between}; nothing was repeated")
    if not narrow(search, loads, met, missed):
        return Stop("unsure", f"the knee is {between}; the noise hides where")
    return Stop("found", f"the knee is {between}{_at_bound(hidden)}")


def _at_bound(hidden: Sequence[str]) -> str:
    if not hidden:
        return ""
    return f"; {' and '.join(hidden)} {'is' if len(hidden) == 1 else 'are'} at the bound within the noise"


def _peak(search: Search, loads: Loads) -> float | None:
    """The next load on the way to the most goodput; None if it is found."""
    top = best(loads)
    if top is None:
        return None
    tried = list(loads.tried)
    at = tried.index(top)
    above = tried[at + 1] if at + 1 < len(tried) else None
    if above is not None and loads.met(above) and not close(search, top, above):
        return middle(search, top, above)
    if at and not close(search, tried[at - 1], top):
        return middle(search, tried[at - 1], top)
    return None if loads.exhausted(top) else top


def _falling(loads: Loads) -> bool:
    rates = [item.mean(OBJECTIVE) or 0.0 for item in loads.tried.values()]
    return len(rates) > 2 and max(rates[-2:]) < _FALLING * max(rates)


def _contradiction(loads: Loads, missed: float) -> float | None:
    """The load to repeat, where one above a missed one was met: one of the two may be a bad point."""
    above = [load for load in loads.tried if load > missed and loads.met(load) and not loads.grey(load)]
    return _unsettled(loads, [missed, *above[:1]]) if above else None


def _unsettled(loads: Loads, ends: Sequence[float]) -> float | None:
    """Of the loads that want another repeat, the one with the fewest."""
    left = [load for load in ends if not loads.settled(load)]
    return min(left, key=lambda load: loads.tried[load].count, default=None)


def _limit(search: Search, history: Sequence[Sample], load: float) -> str | None:
    """The limit that forbids another point at this load."""
    if len(history) >= search.points:
        return f"the search may take {search.points} points, and has"
    if search.deadline_s is None or not history:
        return None
    left = search.deadline_s - sum(sample.seconds for sample in history)
    nearest = min(history, key=lambda sample: abs(math.log(sample.load / load)))
    if nearest.seconds > left:
        return (
            f"{max(left, 0):.0f} s are left of the deadline of {search.deadline_s:g} s, "
            f"and a point near {_load(search, load)} takes {nearest.seconds:.0f} s"
        )
    return None


def middle(search: Search, low: float, high: float) -> float:
    """A load between, as far from each by ratio as can be."""
    return _rounded(search, math.sqrt(low * high), low, high)


def _below(search: Search, load: float, steps: int) -> float:
    step = max(_least_step(search, load), load * (1 - 1 / (1 + search.resolution * 2 ** (steps - 1))))
    return _rounded(search, max(search.least, load - step))


def _away(search: Search, load: float, steps: float) -> float:
    """So many steps of the resolution from a load; a concurrency is rounded towards it, and one off at least."""
    away = load * math.pow(1 + search.resolution, steps)
    if search.over != "concurrency":
        return _rounded(search, away)
    if steps < 0:
        return float(min(math.ceil(away), math.ceil(load + steps)))
    return float(max(math.floor(away), math.floor(load + steps)))


def _least_step(search: Search, load: float) -> float:
    return 1.0 if search.over == "concurrency" else search.resolution * load


def _rounded(search: Search, load: float, low: float | None = None, high: float | None = None) -> float:
    """A whole concurrency; a rate in four digits. With ``low`` and ``high`` strictly between them."""
    if search.over == "concurrency":
        whole = round(load)
        return float(whole if low is None or high is None else min(max(whole, int(low) + 1), int(high) - 1))
    short = float(f"{load:.4g}")
    return short if low is None or high is None or low < short < high else load


def _load(search: Search, load: float) -> str:
    return f"concurrency {load:g}" if search.over == "concurrency" else f"{load:g} requests/s"


def _misses(loads: Loads, load: float) -> str:
    if loads.hopeless(load):
        return f"gives no point that counts: see {' and '.join(loads.tried[load].points)}"
    return f"misses {', '.join(loads.missed_bounds(load))}"
