"""The figures of a point that can be compared, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.results.repeats import noise


@dataclass(frozen=True)
class Metric:
    """One figure of a point.

    ``path``: where it stands in the point, dotted; its name for scripts too. ``lower``: whether less is
    better. ``shown``: whether tables have it unasked. ``whole``: of the whole deployment, so that it says
    nothing where the deployments differ in size; ``per_gpu``: over a number of GPUs or slots; ``tokens``:
    made of counted tokens.
    """

    path: str
    title: str
    unit: str
    lower: bool = False
    shown: bool = True
    whole: bool = False
    per_gpu: bool = False
    tokens: bool = False

    def of(self, point: Mapping[str, Any]) -> float | None:
        """The figure; None where it was not measured."""
        value: Any = point
        for key in self.path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value

    def noise(self, *points: Mapping[str, Any]) -> float:
        """By how much the figure of two points may differ and still be the same, in its unit.

        Of points that were repeated it is twice the standard error of the difference of their means.
        """
        return 2 * math.hypot(*(noise(point, self.path) for point in points))

    @property
    def percentile(self) -> str:
        """``p99`` of a 99th percentile; another word of other figures."""
        return self.path.rpartition(".")[2]

    @property
    def better(self) -> str:
        """``lower`` or ``higher``."""
        return "lower" if self.lower else "higher"


def _latencies() -> list[Metric]:
    found = []
    for name, title, shown in (
        ("ttft_ms", "TTFT", ("mean", "p99")),
        ("tpot_ms", "TPOT", ("mean", "p99")),
        ("itl_ms", "ITL", ()),
        ("e2e_ms", "E2E", ("mean",)),
    ):
        for key in ("mean", "p50", "p90", "p99"):
            tokens = name == "tpot_ms"
            found.append(Metric(f"{name}.{key}", f"{title} {key}", "ms", True, key in shown, tokens=tokens))
    return found


@dataclass(frozen=True)
class ScoreMetric(Metric):
    """The score of a task by one metric and filter: ``path`` is ``accuracy.TASK/METRIC,FILTER``."""

    def score(self, point: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The whole score; None where the point has none."""
        return next((item for item in point.get("accuracy") or () if _score_path(item) == self.path), None)

    def of(self, point: Mapping[str, Any]) -> float | None:
        """The figure; None where it was not measured."""
        found = self.score(point)
        return None if found is None else found["score"]

    def noise(self, *points: Mapping[str, Any]) -> float:
        """The standard error of a difference between the scores of two points, 0 where none is known."""
        errors = ((self.score(point) or {}).get("stderr") or 0.0 for point in points)
        return math.hypot(*errors)


def _score_path(score: Mapping[str, Any]) -> str:
    return f"accuracy.{score['task']}/{score['metric']},{score['filter']}"


def score_metrics(points: Iterable[Mapping[str, Any] | None]) -> tuple[ScoreMetric, ...]:
    """A metric for each score that one of the points has, in their order."""
    found: dict[str, ScoreMetric] = {}
    for point in points:
        for score in (point or {}).get("accuracy") or ():
            title = f"{score['task']} ({score['metric']}, {score['filter']})"
            metric = ScoreMetric(_score_path(score), title, score["unit"], not score["higher_is_better"])
            found.setdefault(metric.path, metric)
    return tuple(found.values())


METRICS: tuple[Metric, ...] = (
    *_latencies(),
    Metric("output_tps_per_user.from_median_tpot", "output per user (1000 / median TPOT)", "tok/s", tokens=True),
    Metric(
        "output_tps_per_user.mean_of_inverse_tpot",
        "output per user (mean of 1 / TPOT)",
        "tok/s",
        shown=False,
        tokens=True,
    ),
    Metric("requests_per_s", "requests", "req/s", shown=False, whole=True),
    Metric("input_tps", "input", "tok/s", shown=False, whole=True, tokens=True),
    Metric("output_tps", "output", "tok/s", whole=True, tokens=True),
    Metric("total_tps", "total", "tok/s", shown=False, whole=True, tokens=True),
    Metric("output_tps_per_gpu.working", "output per working GPU", "tok/s", per_gpu=True, tokens=True),
    Metric("total_tps_per_gpu.working", "total per working GPU", "tok/s", per_gpu=True, tokens=True),
    Metric("output_tps_per_gpu.allocated", "output per allocated GPU", "tok/s", False, False, False, True, True),
    Metric("total_tps_per_gpu.allocated", "total per allocated GPU", "tok/s", False, False, False, True, True),
    Metric("input_tps_per_gpu.by_role.prefill", "input per prefill GPU", "tok/s", False, False, False, True, True),
    Metric("output_tps_per_gpu.by_role.decode", "output per decode GPU", "tok/s", False, False, False, True, True),
    Metric("goodput_rps", "goodput", "req/s", whole=True),
    Metric("good_request_ratio", "good requests", "share", shown=False),
    Metric("window.ttft_ms.mean", "TTFT mean in the steady window", "ms", True, shown=False),
    Metric("window.tpot_ms.mean", "TPOT mean in the steady window", "ms", True, shown=False, tokens=True),
    Metric("window.output_tps", "output in the steady window", "tok/s", shown=False, whole=True, tokens=True),
)
# A user's speed says nothing of the wait: it is never shown without this.
WAIT = "ttft_ms.mean"
PER_USER = "output_tps_per_user."
BY_NAME = {metric.path: metric for metric in METRICS}
