"""Points that were measured more than once: how far their figures lie apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from recipe_toolkit.results.model import PointResult, Spread, number

# Of a point as plain data: dotted paths of the figures that have a spread.
_STATS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_PARTS = ("mean", "p50", "p90", "p99")
PATHS = (
    *(f"{name}.{part}" for name in _STATS for part in _PARTS),
    "output_tps_per_user.from_median_tpot",
    "output_tps_per_user.mean_of_inverse_tpot",
    *("requests_per_s", "input_tps", "output_tps", "total_tps"),
    *(f"{kind}_tps_per_gpu.{gpus}" for kind in ("input", "output", "total") for gpus in ("working", "allocated")),
    *("goodput_rps", "good_request_ratio"),
)


def spreads(points: Sequence[PointResult]) -> tuple[Spread, ...]:
    """One for each point that was measured at least twice, in the points' order; invalid ones add no figure."""
    groups: dict[str, list[PointResult]] = {}
    for point in points:
        if point.repeat_of is not None:
            groups.setdefault(point.repeat_of, []).append(point)
    found = []
    for name, members in groups.items():
        if len(members) < 2:
            continue
        good = [dataclasses.asdict(point) for point in members if point.valid]
        metrics = {path: one for path in PATHS if (one := summary(at(point, path) for point in good)) is not None}
        found.append(Spread(name, tuple(point.id for point in members), len(good), metrics))
    return tuple(found)


def joined(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Points as plain data, with those that are repeats of one made into one, where the first of them stood.

    Its figures are the means over its valid repeats, percentiles too; ``spread`` holds what they are means of. Where
    none is valid it is invalid, with the reasons of the first.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        groups.setdefault(_name(point), []).append(point)
    return [members[0] if len(members) < 2 else _joined(members) for members in groups.values()]


def _name(point: Mapping[str, Any]) -> str:
    shared = point.get("repeat_of")
    return f"repeats of {shared}" if shared is not None else f"point {point['id']}"


def _joined(members: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    good = [point for point in members if point["valid"]]
    one: dict[str, Any] = {**(good or members)[0], "id": members[0]["repeat_of"], "repeat": None}
    metrics = {path: made for path in PATHS if (made := summary(at(point, path) for point in good)) is not None}
    for path, made in metrics.items():
        first, _, last = path.partition(".")
        one[first] = {**one[first], last: made["mean"]} if last else made["mean"]
    said = f"mean of {len(good)} of {len(members)} repeats"
    return {**one, "spread": {"n": len(good), "metrics": metrics}, "notes": [*one["notes"], said]}


def noise(point: Mapping[str, Any], path: str) -> float:
    """Standard error of the mean over repeats of a figure of a joined point; 0 where there is none."""
    spread = point.get("spread") or {}
    made = spread.get("metrics", {}).get(path)
    return made["stdev"] / math.sqrt(spread["n"]) if made else 0.0


def at(point: Mapping[str, Any], path: str) -> float | None:
    """The figure at a dotted path of a point as plain data; None where it was not measured."""
    value: Any = point
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return number(value)


def summary(values: Iterable[float | None]) -> dict[str, float] | None:
    """``mean``, ``stdev``, ``min`` and ``max`` of what was measured; None of fewer than two."""
    found = [value for value in values if value is not None]
    if len(found) < 2:
        return None
    return {"mean": fmean(found), "stdev": stdev(found), "min": min(found), "max": max(found)}
