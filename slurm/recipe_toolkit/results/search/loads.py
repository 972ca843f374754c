"""The points of a search by load, and what they say of its bounds.

At each load a bound's figure over the repeats is taken as normal around its true mean, with a spread that is the same
share of it at all loads, so that a few repeats of each suffice to know it. A verdict is *sure* when a one-sided t test
says so: of the load's own repeats, or of the trend through the loads nearby, whose points tell of this load too. The
error that is allowed is shared by the two ends of the bracket, by the looks at each of them (one after every repeat
from the second on, of which the last has most of it), and by the two tests.

What differs between the requests of one point is not used: they share their batches and the state of the engines, and
a mean of many of them looks surer than a second point finds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recipe_toolkit.plan.model import Search
from recipe_toolkit.results.search.model import TriedBound, TriedLoad
from recipe_toolkit.results.search.stats import quantile, tail

# A point stands apart if it is this many times farther from the others than they from one another, and this share.
_APART_RANGES = 5.0
_APART_SHARE = 0.25
_EARLY = 0.2  # share of the error for all looks but the last
_TESTS = 2  # of a verdict: by its own repeats, and by the trend
_NEARBY = 3.0  # how many resolutions off a load may be that tells of this one
_LEAST_DOF = 2  # of a trend: four points
_EXTRA = 2  # points of a load beyond its repeats, in place of those that do not count
OBJECTIVE = ""


@dataclass(frozen=True)
class Sample:
    """One point. ``seen``: by bound, in its unit; ``seconds``: how long it took; ``valid``: whether it counts."""

    point: str
    load: float
    valid: bool
    seen: Mapping[str, float | None] = field(default_factory=dict)
    objective: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Noise:
    """Spread between repeats as a share of their mean, pooled over all loads, and its degrees of freedom."""

    spread: float = 0.0
    dof: int = 0


@dataclass(frozen=True)
class Tried:
    """A load. ``values``: of the points that count, by bound; the objective's are :data:`OBJECTIVE`'s."""

    load: float
    asked: int
    points: tuple[str, ...]
    left_out: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]

    @property
    def count(self) -> int:
        """Points that count."""
        return len(self.points) - len(self.left_out)

    def mean(self, name: str) -> float | None:
        """Of a bound's figure, or of the objective."""
        values = self.values[name]
        return sum(values) / len(values) if values else None


class Loads:
    """All loads that were tried, judged together."""

    def __init__(self, search: Search, history: Iterable[Sample]) -> None:
        self._search = search
        by_load: dict[float, list[Sample]] = {}
        for sample in history:
            by_load.setdefault(sample.load, []).append(sample)
        self.tried = {load: _tried(search, by_load[load]) for load in sorted(by_load)}
        names = [*search.bounds, OBJECTIVE]
        self.noise = {name: _noise(item.values[name] for item in self.tried.values()) for name in names}

    def error(self, load: float) -> float:
        """The chance of a wrong verdict that may be taken at this look at the load."""
        early = self._search.repeats - 2
        if early < 1:
            return (1 - self._search.confidence) / 2
        share = _EARLY / early if self.tried[load].count < self._search.repeats else 1 - _EARLY
        return (1 - self._search.confidence) / 2 * share

    def hopeless(self, load: float) -> bool:
        """Whether no point of it counts, and it was tried more than once."""
        return not self.tried[load].count and self.tried[load].asked > 1

    def met(self, load: float) -> bool:
        """Whether it looks as if every bound were met."""
        return not self.hopeless(load) and not self.missed_bounds(load)

    def missed_bounds(self, load: float) -> list[str]:
        """The bounds that look missed, the farthest first."""
        ratios = {name: self._ratio(load, name) for name in self._search.bounds}
        return sorted((name for name, ratio in ratios.items() if ratio > 1), key=lambda name: -ratios[name])

    def worst(self, load: float) -> float:
        """The figure of the bound that is nearest to be missed, as a share of it; 0 where none is known."""
        return max((self._ratio(load, name) for name in self._search.bounds), default=0.0)

    def exhausted(self, load: float) -> bool:
        """Whether it has had all its repeats."""
        item = self.tried[load]
        return item.count >= self._search.repeats or item.asked >= self._search.repeats + _EXTRA

    def doubt(self, load: float) -> float:
        """The chance of what was seen if the verdict were wrong; 1 after one point, 0 where no point counts."""
        if self.hopeless(load):
            return 0.0
        bounds = list(self._search.bounds)
        if not bounds:
            return 0.0
        if self.met(load):
            return max(self._doubt(load, name, -1) for name in bounds)
        return min(1.0, len(bounds) * min(self._doubt(load, name, 1) for name in bounds))

    def sure(self, load: float) -> bool:
        """Whether the verdict holds at the search's confidence."""
        return self.doubt(load) <= self.error(load)

    def settled(self, load: float) -> bool:
        """Whether nothing more can be learned of it."""
        return self.sure(load) or self.exhausted(load)

    def grey(self, load: float) -> bool:
        """Whether it lies so near a bound that the noise hides on which side, after every repeat."""
        return self._search.repeats > 1 and self.exhausted(load) and not self.sure(load)

    def interval(self, load: float, name: str) -> tuple[float | None, float | None]:
        """Where the true mean lies; (None, None) while nothing was repeated."""
        item, noise = self.tried[load], self.noise[name]
        mean = item.mean(name)
        if mean is None or item.count < 2 or not noise.dof:
            return None, None
        reach = quantile(self.error(load), noise.dof) * noise.spread * mean / math.sqrt(item.count)
        return mean - reach, mean + reach

    def to_results(self) -> tuple[TriedLoad, ...]:
        """As results.json says it."""
        return tuple(self._result(load) for load in self.tried)

    def _result(self, load: float) -> TriedLoad:
        item = self.tried[load]
        bounds = {}
        for name, bound in self._search.bounds.items():
            seen = item.mean(name)
            low, high = self.interval(load, name)
            bounds[name] = TriedBound(bound, seen, low, high, None if seen is None else seen <= bound)
        verdict = "met" if self.met(load) else "missed"
        if not item.count:
            verdict = "invalid"
        elif self.grey(load):
            verdict = "unsure"
        return TriedLoad(load, verdict, self.sure(load), item.mean(OBJECTIVE), bounds, item.points, item.left_out)

    def _ratio(self, load: float, name: str) -> float:
        mean = self.tried[load].mean(name)
        return 0.0 if mean is None else mean / self._search.bounds[name]

    def _doubt(self, load: float, name: str, side: int) -> float:
        """``side``: 1 for a bound that is missed, -1 for one that is met."""
        if self.tried[load].count < 2 or not self.noise[name].dof:
            return 1.0
        return min(1.0, _TESTS * min(self._by_repeats(load, name, side), self._by_trend(load, name, side)))

    def _by_repeats(self, load: float, name: str, side: int) -> float:
        ratio, noise = self._ratio(load, name), self.noise[name]
        error = noise.spread * ratio / math.sqrt(self.tried[load].count)
        return _beyond(side * (ratio - 1), error, noise.dof)

    def _by_trend(self, load: float, name: str, side: int) -> float:
        """On a line through the points nearby, in logarithms: where they follow none, their spread about it says so."""
        near = _NEARBY * math.log(1 + self._search.resolution) * 1.001
        bound = self._search.bounds[name]
        points = [
            (math.log(other / load), math.log(value / bound))
            for other, item in self.tried.items()
            for value in item.values[name]
            if value > 0 and abs(math.log(other / load)) <= near
        ]
        dof = len(points) - 2
        x = sum(x for x, _ in points) / len(points)
        y = sum(y for _, y in points) / len(points)
        square = sum((at - x) ** 2 for at, _ in points)
        if dof < _LEAST_DOF or not square:
            return 1.0
        slope = sum((at - x) * (seen - y) for at, seen in points) / square
        here = y - slope * x
        if slope <= 0:
            return 1.0
        rest = sum((seen - here - slope * at) ** 2 for at, seen in points)
        return _beyond(side * here, math.sqrt(rest / dof * (1 / len(points) + x * x / square)), dof)


def _beyond(distance: float, error: float, dof: int) -> float:
    if error == 0:
        return 0.0 if distance >= 0 else 1.0
    return tail(distance / error, dof)


def _tried(search: Search, samples: Sequence[Sample]) -> Tried:
    good = [sample for sample in samples if _counts(search, sample)]
    names = [*search.bounds, OBJECTIVE]
    apart = _apart(search, good)
    kept = [sample for sample in good if sample is not apart]
    values = {name: tuple(_value(sample, name) for sample in kept) for name in names}
    points = tuple(sample.point for sample in samples)
    left_out = tuple(sample.point for sample in samples if sample not in kept)
    return Tried(samples[0].load, len(samples), points, left_out, values)


def _counts(search: Search, sample: Sample) -> bool:
    figures = [sample.seen.get(name) for name in search.bounds]
    # A latency of nothing was not seen: a client that got an answer in one piece has no time between its tokens.
    timed = all(value is not None and math.isfinite(value) and value > 0 for value in figures)
    rate = sample.objective
    return sample.valid and timed and rate is not None and math.isfinite(rate) and rate >= 0


def _value(sample: Sample, name: str) -> float:
    found = sample.objective if name == OBJECTIVE else sample.seen[name]
    assert found is not None
    return found


def _apart(search: Search, samples: Sequence[Sample]) -> Sample | None:
    """The one point, of three or more, that has nothing to do with the others."""
    if len(samples) < 3:
        return None
    for name in [*search.bounds, OBJECTIVE]:
        ordered = sorted(samples, key=lambda sample: _value(sample, name))
        for candidate, others in ((ordered[-1], ordered[:-1]), (ordered[0], ordered[1:])):
            low, high = _value(others[0], name), _value(others[-1], name)
            value, middle = _value(candidate, name), (low + high) / 2
            away = max(value - high, low - value)
            if away > _APART_RANGES * (high - low) and away > _APART_SHARE * middle:
                return candidate
    return None


def _noise(groups: Iterable[Sequence[float]]) -> Noise:
    total, dof = 0.0, 0
    for values in groups:
        mean = sum(values) / len(values) if values else 0.0
        if len(values) > 1 and mean > 0:
            total += sum((value / mean - 1) ** 2 for value in values)
            dof += len(values) - 1
    return Noise(math.sqrt(total / dof), dof) if dof else Noise()
