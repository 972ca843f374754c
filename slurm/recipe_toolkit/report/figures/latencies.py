"""Distributions of TTFT, TPOT and ITL over the requests of each point."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.figures.model import SERIES, Figure, Panel
from recipe_toolkit.report.figures.samples import BUDGET_BYTES, Samples, file_of, read_samples
from recipe_toolkit.results.records import percentile

_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}
_STEPS = 100
_PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 100)
# Bounds that the SLO sets for each request.
_BOUNDS = {"ttft": ("ttft_s", 1000.0), "tpot": ("tpot_ms", 1.0)}


def figure(results: Mapping[str, Any], root: Path) -> Figure | None:
    """The figure of the valid points of a run whose folder is ``root``; None where no client left records."""
    found, unread = _read(results, root)
    if not found:
        return None
    curves = _spread(list(found), len(SERIES))
    names = _names(results, list(found))
    data = {
        metric: [
            {"point": names[point], "ms": _short(value), "share": share}
            for point in curves
            for value, share in curve(getattr(found[point], metric))
        ]
        for metric in _METRICS
    }
    panels = tuple(
        _panel(metric, [names[point] for point in curves], data[metric], results["slo"])
        for metric in _METRICS
        if data[metric]
    )
    mark = text.mark(results)
    notes = []
    if len(curves) < len(found):
        notes.append(f"Drawn: {len(curves)} of {len(found)} points, evenly chosen. The table has all.")
    if unread:
        notes.append(f"Not read, because the records are larger than {text.size(BUDGET_BYTES)}: {', '.join(unread)}.")
    return Figure(
        "latencies",
        "Latencies of the requests",
        "Share of requests (ITL: of gaps between chunks, which may hold several tokens) that took no longer, from the "
        f"client's own records, warm-up left out{f' ({mark})' if mark else ''}.",
        data,
        panels,
        ("point", "metric, ms", "values", "least", *(f"p{q}" for q in _PERCENTILES[1:-1]), "most"),
        tuple(_rows(found)),
        tuple(notes),
    )


def curve(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """(value, share of values that are no greater), every value of few, percentiles of many."""
    if not values:
        return
    ordered = sorted(values)
    count = len(ordered)
    if count <= _STEPS:
        yield ordered[0], 0.0
        yield from ((value, round((index + 1) / count, 4)) for index, value in enumerate(ordered))
        return
    for step in range(_STEPS + 1):
        yield ordered[max(0, -(-step * count // _STEPS) - 1)], step / _STEPS


def _read(results: Mapping[str, Any], root: Path) -> tuple[dict[str, Samples], list[str]]:
    """Point to its latencies, and the points whose files are too large for the rest of the budget."""
    left = BUDGET_BYTES
    found: dict[str, Samples] = {}
    unread = []
    for point in results["points"]:
        path = file_of(point["client"]["name"], root / point["artifacts"])
        if path is None or not point["valid"]:
            continue
        try:
            known = path.stat()
        except OSError:
            continue
        if not stat.S_ISREG(known.st_mode):  # a pipe would never end
            continue
        size = known.st_size
        if size > left:
            unread.append(point["id"])
            continue
        left -= size
        samples = read_samples(point["client"]["name"], path)
        if samples:
            found[point["id"]] = samples
    return found, unread


def _spread(points: Sequence[str], most: int) -> list[str]:
    """At most so many of the points, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]


def _names(results: Mapping[str, Any], points: Sequence[str]) -> dict[str, str]:
    """What each point is called in the legend: its load, where that is enough."""
    loads = {point["id"]: text.load(point) for point in results["points"] if point["id"] in points}
    single = len(set(loads.values())) == len(loads) and text.MISSING not in loads.values()
    return loads if single else {point: point for point in points}


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _rows(found: Mapping[str, Samples]) -> Iterator[tuple[Any, ...]]:
    for point, samples in found.items():
        for metric, title in _METRICS.items():
            values = sorted(getattr(samples, metric))
            if values:
                yield (point, title, len(values), *(percentile(values, q) for q in _PERCENTILES))


def _scale(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Logarithmic where a tail would squeeze all the rest; times of 0, which it cannot show, at its edge."""
    values = sorted(row["ms"] for row in rows)
    middle = values[len(values) // 2]
    if values[-1] < 4 * middle or middle <= 0:
        return {"zero": False, "nice": True}
    low = max(values[len(values) // 20], middle / 20)
    return {"type": "log", "domainMin": _short(low), "domainMax": values[-1], "clamp": True, "nice": False}


def _panel(metric: str, points: Sequence[str], rows: Sequence[Mapping[str, Any]], slo: Mapping[str, float]) -> Panel:
    title = _METRICS[metric]
    colour = {
        "field": "point",
        "type": "nominal",
        "scale": {"domain": list(points), "range": list(SERIES[: len(points)])},
        "sort": None,
        "legend": {"symbolType": "stroke"},
    }
    across = _scale(rows)
    words = f"{title}, ms{' (logarithmic)' if across.get('type') == 'log' else ''}"
    x = {"field": "ms", "type": "quantitative", "title": words, "scale": across}
    y = {"field": "share", "type": "quantitative", "title": "share", "axis": {"format": "%"}}
    tips = [
        {"field": "point", "title": "point"},
        {"field": "ms", "title": f"{title}, ms", "format": ",.4~g"},
        {"field": "share", "title": "no longer", "format": ".0%"},
    ]
    steps = {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "tooltip": None}}
    # A line has one tooltip for all of it: what is pointed at are unseen dots on it.
    dots = {
        "mark": {"type": "point", "size": 60, "filled": True, "opacity": 0},
        "encoding": {"tooltip": tips},
    }
    layers: list[Any] = [steps, dots]
    name, scale = _BOUNDS.get(metric, ("", 1.0))
    said = f"{title} of the requests of each point, as shares"
    if name in slo:
        # A bound that is far away would leave no room for the curves.
        if slo[name] * scale <= 1.5 * max(row["ms"] for row in rows):
            layers.append(_bound(slo[name] * scale))
        said += f"; the SLO's bound is {text.number(slo[name] * scale)} ms"
    shared = {"x": x, "y": y, "color": colour}
    return Panel({"height": 240, "data": {"name": metric}, "encoding": shared, "layer": layers}, f"{said}.")


def _bound(value: float) -> dict[str, Any]:
    return {
        "data": {"values": [{"ms": value, "what": f"SLO: {text.number(value)} ms a request"}]},
        "mark": {"type": "rule", "strokeDash": [5, 4], "color": "var(--met)", "strokeWidth": 2},
        "encoding": {"y": {}, "color": {"value": "var(--met)"}, "tooltip": {"field": "what"}},
    }
