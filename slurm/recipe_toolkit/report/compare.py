"""Runs side by side: what differs in their conditions, then their points, figure by figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report import text
from recipe_toolkit.report.changes import Change
from recipe_toolkit.report.metrics import METRICS, Metric, ScoreMetric, score_metrics
from recipe_toolkit.results.repeats import joined

# Rounded to a tenth of a percent, nothing is left of it.
_SAME_PERCENT = 0.05

Point = Mapping[str, Any]
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A figure of one run against that of the first. ``verdict``: better, worse, same; None where none is possible.

    ``percent``: by how much it is more than the first's (less: negative). ``why_not``: why the two may
    not be compared, where both were measured.
    """

    percent: float | None = None
    verdict: str | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class Row:
    """One metric of one matched point, over all runs. ``differences``: None for the first run."""

    metric: Metric
    values: tuple[float | None, ...]
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Match:
    """The points of several runs that are the same measurement; None where a run lacks it.

    ``invalid``: why a run's point does not count, empty where it does. ``why_not``: why a run's point
    cannot be held against the first's at all.
    """

    points: tuple[Point | None, ...]
    invalid: tuple[tuple[str, ...], ...]
    why_not: tuple[str | None, ...]
    rows: tuple[Row, ...] = ()

    @property
    def beside(self) -> bool:
        """Whether more than one run has it."""
        return sum(point is not None for point in self.points) > 1

    @property
    def point(self) -> Point:
        """The first that there is, which names it."""
        return next(point for point in self.points if point is not None)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. ``conditions``: what differs; ``unknown``: what could not be compared of which run."""

    runs: tuple[Results, ...]
    conditions: tuple[Change, ...]
    matches: tuple[Match, ...]
    unknown: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def compared(self) -> bool:
        """Whether any two figures were held against each other."""
        return any(
            item and item.percent is not None
            for match in self.matches
            for row in match.rows
            for item in row.differences
        )


def compare(
    runs: Sequence[Results],
    conditions: Sequence[Change] = (),
    unknown: Sequence[str] = (),
    metrics: Sequence[Metric] = METRICS,
    *,
    scores: bool = True,
) -> Comparison:
    """Hold the points of each run against the first's.

    ``scores``: whether those of accuracy points too. Points are the same measurement where client, lengths and load
    agree, or their names. Raises RecipeError
    if measurements would be held against figures of the simulated engine.
    """
    labels = tuple(chr(ord("A") + index) for index in range(len(runs)))
    runs = [{**run, "points": joined(run["points"])} for run in runs]
    _refuse_mixed(runs, labels)
    if scores:
        metrics = [*metrics, *score_metrics(point for run in runs for point in run["points"])]
    matches = tuple(_judged(runs, points, metrics) for points in _matched([run["points"] for run in runs]))
    return Comparison(tuple(runs), tuple(conditions), matches, tuple(unknown), labels)


def kind(results: Results) -> str:
    """What its figures are: ``measurement``, ``simulated`` or ``rehearsal``."""
    return "rehearsal" if results["rehearsal"] else "simulated" if results["simulated"] else "measurement"


def _refuse_mixed(runs: Sequence[Results], labels: Sequence[str]) -> None:
    kinds = {kind(run) for run in runs}
    if "measurement" not in kinds or len(kinds) == 1:
        return
    words = {"measurement": "a measurement", "simulated": "of the simulated engine", "rehearsal": "a rehearsal"}
    said = [f"{label} {run['run']} is {words[kind(run)]}" for label, run in zip(labels, runs, strict=True)]
    raise RecipeError(
        "figures of the simulated engine say nothing beside measurements:\n  " + "\n  ".join(said),
        hint="compare measurements with measurements, rehearsals with rehearsals",
    )


def shape(point: Point) -> tuple[Any, ...]:
    """What a point measures: client, lengths wanted and load."""
    lengths = (point["isl"]["wanted_tokens"], point["osl"]["wanted_tokens"])
    return (point["client"]["name"], *lengths, point["concurrency"], point["request_rate_rps"])


def _matched(runs: Sequence[Sequence[Point]]) -> list[list[Point | None]]:
    """Rows of points: those of the first run in their order, then the others' that it lacks."""
    rows: list[list[Point | None]] = []
    for index, points in enumerate(runs):
        free, left = list(rows), list(points)
        # The same name and shape first, so that two points of one shape find each their own.
        for same in (_both, _shape_alone, _name_alone):
            for point in list(left):
                row = next((row for row in free if same(_first(row), point)), None)
                if row is not None:
                    row[index] = point
                    free.remove(row)
                    left.remove(point)
        for point in left:
            rows.append([point if place == index else None for place in range(len(runs))])
    return rows


def _first(row: Sequence[Point | None]) -> Point:
    return next(point for point in row if point is not None)


def _both(one: Point, other: Point) -> bool:
    return _shape_alone(one, other) and _name_alone(one, other)


def _shape_alone(one: Point, other: Point) -> bool:
    return shape(one) == shape(other) and one["isl"]["wanted_tokens"] is not None


def _name_alone(one: Point, other: Point) -> bool:
    return bool(one["id"] == other["id"])


def _judged(runs: Sequence[Results], points: Sequence[Point | None], metrics: Sequence[Metric]) -> Match:
    first = points[0]
    invalid = tuple(tuple(point["reasons"]) if point and not point["valid"] else () for point in points)
    why_not = tuple(_why_no_points(first, point) for point in points)
    rows = []
    for metric in metrics:
        # The figures of an invalid point are of no use beside others.
        values = tuple(metric.of(point) if point and point["valid"] else None for point in points)
        if all(value is None for value in values):
            continue
        against = [
            None if index == 0 else why_not[index] or _why_not(metric, runs[0], runs[index], first, points[index])
            for index in range(len(runs))
        ]
        noise = [metric.noise(first, point) if first and point else 0.0 for point in points]
        differences = [
            _difference(metric, values[0], value, why, spread)
            for value, why, spread in zip(values, against, noise, strict=True)
        ]
        rows.append(Row(metric, values, (None, *differences[1:])))
    return Match(tuple(points), invalid, why_not, tuple(rows))


def _difference(
    metric: Metric, base: float | None, value: float | None, why_not: str | None, noise: float
) -> Difference:
    """``noise``: what the two may differ by without being different."""
    if base is None or value is None:
        return Difference()
    if why_not:
        return Difference(why_not=why_not)
    if base == 0:
        return Difference(0.0, "same") if value == 0 else Difference(why_not="the first is 0")
    percent = (value - base) / abs(base) * 100
    if abs(percent) < _SAME_PERCENT or abs(value - base) <= noise:
        return Difference(percent, "same")
    return Difference(percent, "better" if (percent < 0) == metric.lower else "worse")


def _why_no_points(first: Point | None, point: Point | None) -> str | None:
    """Why two points of one name are not the same measurement."""
    if first is None or point is None or first is point:
        return None
    for name, one, other in (
        ("clients", first["client"]["name"], point["client"]["name"]),
        ("lengths", _lengths(first), _lengths(point)),
        ("loads", text.load(first), text.load(point)),
    ):
        # A score does not depend on how many requests are in flight.
        if one != other and not (name == "loads" and text.of_accuracy(first)):
            return f"other {name}: {one} and {other}"
    return None


def _lengths(point: Point) -> str:
    return f"ISL {text.count(point['isl']['wanted_tokens'])} OSL {text.count(point['osl']['wanted_tokens'])}"


def _why_not(metric: Metric, base: Results, run: Results, first: Point | None, point: Point | None) -> str | None:
    """Why a figure would not mean the same in both runs."""
    if first is None or point is None:
        return None
    if isinstance(metric, ScoreMetric):
        return _why_no_scores(metric.score(first), metric.score(point))
    if metric.percentile in (*first.get("few_for", ()), *point.get("few_for", ())):
        fewest = min(item["requests"]["ok"] or 0 for item in (first, point))
        return f"{metric.percentile} of {fewest} requests, too few for one"
    counted = [item["osl"]["counted_by"] for item in (first, point)]
    if metric.tokens and None not in counted and counted[0] != counted[1]:
        return f"tokens are counted by the {counted[0]} and by the {counted[1]}"
    devices = [item["gpus"]["device"] for item in (base, run)]
    sizes = [item["gpus"]["working"] for item in (base, run)]
    if metric.per_gpu and devices[0] != devices[1]:
        return "per GPU and per CPU slot"
    if metric.whole and (devices[0] != devices[1] or sizes[0] != sizes[1]):
        return f"of {text.gpus(base)} and of {text.gpus(run)}: compare the rates per GPU"
    return None


def _why_no_scores(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str | None:
    """Why two scores of a task are not of the same questions."""
    if one is None or other is None:
        return None
    for key, what in (("task_version", "versions of the task"), ("num_fewshot", "shots"), ("samples", "documents")):
        if one[key] != other[key]:
            return f"other {what}: {one[key]} and {other[key]}"
    return None


@dataclass(frozen=True)
class Worse:
    """Why a run is worse than the first."""

    label: str
    point: str
    what: str


def worse(found: Comparison, percent: float) -> list[Worse]:
    """What is worse than in the first run by more than ``percent``; a point that was valid and is not is worse too."""
    said = []
    for match in found.matches:
        if match.points[0] is None or match.invalid[0]:
            continue
        name = match.point["id"]
        for index, label in enumerate(found.labels[1:], 1):
            if match.points[index] is None:
                said.append(Worse(label, name, "not measured"))
            elif match.invalid[index]:
                said.append(Worse(label, name, f"invalid: {match.invalid[index][0]}"))
            for row in match.rows:
                item = row.differences[index]
                if item and item.verdict == "worse" and abs(item.percent or 0.0) > percent:
                    said.append(Worse(label, name, f"{row.metric.title} {signed(item)}"))
    return said


def signed(difference: Difference) -> str:
    """``+7.4 %``, or nothing."""
    return "" if difference.percent is None else f"{difference.percent:+,.1f} %"


def to_json(found: Comparison) -> dict[str, Any]:
    """Plain data for scripts; lists are in the order of the runs, null where a run has nothing."""
    return {
        "schema": 1,
        "kind": kind(found.runs[0]),
        "runs": [
            {
                "label": label,
                **{key: run[key] for key in ("run", "recipe", "model", "state", "valid", "rehearsal", "simulated")},
            }
            for label, run in zip(found.labels, found.runs, strict=True)
        ],
        "conditions": [change.to_json() for change in found.conditions],
        "unknown": list(found.unknown),
        "points": [_match_json(match) for match in found.matches],
    }


def _match_json(match: Match) -> dict[str, Any]:
    client, isl, osl, concurrency, rate = shape(match.point)
    return {
        "client": client,
        "isl_tokens": isl,
        "osl_tokens": osl,
        "concurrency": concurrency,
        "request_rate_rps": rate,
        "ids": [point["id"] if point else None for point in match.points],
        "valid": [point["valid"] if point else None for point in match.points],
        "reasons": [list(reasons) for reasons in match.invalid],
        "not_comparable": list(match.why_not),
        "metrics": {
            row.metric.path: {
                "unit": row.metric.unit,
                "better": row.metric.better,
                "values": list(row.values),
                "change_percent": [item and item.percent for item in row.differences],
                "verdict": [item and item.verdict for item in row.differences],
                "not_comparable": [item and item.why_not for item in row.differences],
            }
            for row in match.rows
        },
    }
