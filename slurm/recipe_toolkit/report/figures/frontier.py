"""Throughput of a GPU against what a user sees: measured, invalid, predicted and published points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipe_toolkit.frontier.pareto import Axis, dominant
from recipe_toolkit.report import text
from recipe_toolkit.report.figures.model import SERIES, Figure, Panel

MET, MISSED, MEASURED = "meets the SLO", "misses the SLO", "measured"
INVALID, PREDICTED, PUBLISHED = "invalid: does not count", "predicted, not measured", "published"
_SHAPES = {
    MET: "circle",
    MISSED: "square",
    MEASURED: "circle",
    INVALID: "cross",
    PREDICTED: "diamond",
    PUBLISHED: "triangle-up",
}
# Of one series kinds have colours; of several, series have.
_TONES = {
    MET: SERIES[0],
    MISSED: SERIES[1],
    MEASURED: SERIES[0],
    INVALID: "var(--bad)",
    PREDICTED: SERIES[3],
    PUBLISHED: SERIES[2],
}
_VALID = (MET, MISSED, MEASURED)
_LABELLED = 24  # rows of the table that are shown, though fewer are on the frontier
_DENSE = 150  # points, beyond which they are drawn smaller
# Nearer than this share of an axis to one before it, a label would lie on that one's.
_NEAR = (0.09, 0.05)
_OTHERS = "all"


@dataclass(frozen=True)
class Entry:
    """A point to draw. ``series``: what is coloured alike, empty for the first's; ``of``: its run.

    ``user`` in tokens/s, ``e2e`` the mean in s, ``gpu`` in tokens/s, ``ttft`` and ``tpot`` means in ms.
    """

    series: str
    of: str
    name: str
    load: str
    kind: str
    user: float | None
    e2e: float | None
    gpu: float
    ttft: float | None = None
    tpot: float | None = None


def entries(
    results: Mapping[str, Any], series: str | None = None, of: str | None = None, points: Any = None
) -> Iterator[Entry]:
    """The points of a run that have a rate per GPU, then what was published of it.

    ``series`` and ``of``: as of an :class:`Entry`, else the recipe; ``points``: some of its points.
    """
    name, label = series or results["recipe"], of or results["recipe"]
    for point in results["points"] if points is None else points:
        gpu = point["total_tps_per_gpu"]["working"]
        if gpu is None or text.of_accuracy(point):
            continue
        e2e = (point["e2e_ms"] or {}).get("mean")
        ttft, tpot = ((point[key] or {}).get("mean") for key in ("ttft_ms", "tpot_ms"))
        user = point["output_tps_per_user"]["from_median_tpot"]
        seconds = None if e2e is None else e2e / 1000
        yield Entry(name, label, point["id"], text.load(point), _kind(point), user, seconds, gpu, ttft, tpot)
    if not results["simulated"]:
        yield from published(results, name)


def published(results: Mapping[str, Any], series: str) -> Iterator[Entry]:
    """What was published with a rate per working GPU and a user's speed or a latency."""
    for item in results["published"]:
        metrics = item.get("metrics", {})
        gpu = metrics.get("total_tps_per_gpu")
        if gpu is None or item.get("per_gpu", "working") != "working":
            continue
        user, e2e = metrics.get("tps_per_user"), metrics.get("e2e_mean_ms")
        if user is None and "tpot_p50_ms" in metrics:
            user = 1000 / metrics["tpot_p50_ms"]
        load = text.load({"request_rate_rps": item.get("request_rate"), "concurrency": item.get("concurrency")})
        seconds = None if e2e is None else e2e / 1000
        ttft, tpot = metrics.get("ttft_mean_ms"), metrics.get("tpot_mean_ms")
        yield Entry(
            series, item.get("url", "published"), f"published, {load}", load, PUBLISHED, user, seconds, gpu, ttft, tpot
        )


def figure(found: Sequence[Entry], runs: Sequence[Mapping[str, Any]]) -> Figure | None:
    """The figure of all points of ``runs``; None where no point can be drawn."""
    drawn = [entry for entry in found if entry.user is not None or entry.e2e is not None]
    if not drawn:
        return None
    names = list(dict.fromkeys(entry.series for entry in drawn if entry.series)) or [runs[0]["recipe"]]
    drawn = [entry if entry.series else replace(entry, series=names[0]) for entry in drawn]
    if len(names) > len(SERIES):
        names = [_OTHERS]
    unit = text.unit_of_work(runs[0])
    marks = {text.mark(run) for run in runs}
    mark = next((mark for mark in marks if mark), None)
    sides = (("user", False), ("e2e", True))
    first = {key: _best(drawn, key, lower, names) for key, lower in sides}
    rows = [_row(entry, index, first, names) for index, entry in enumerate(drawn)]
    for key, kept in first.items():
        for index in _labelled(drawn, key, kept):
            rows[index][f"{key}_label"] = True
    slo = _same_slo(runs)
    panels = tuple(
        panel
        for key, lower in sides
        if (panel := _panel(key, lower, drawn, first[key], names, unit, _edge(key, slo, runs))) is not None
    )
    about = (
        f"Total tokens/s per working {unit}. The line joins the points that no other beats"
        f"{f' ({mark})' if mark else ''}. A user's speed is 1000 / median TPOT in ms: it leaves out "
        "the wait for the first token, so point at a mark for its TTFT."
    )
    return Figure(
        "frontier",
        "What a GPU delivers against what a user gets" if unit == "GPU" else "What a slot delivers against a user's",
        about,
        {"points": rows},
        panels,
        _HEAD,
        tuple(_cells(entry, index, first) for index, entry in sorted(enumerate(drawn), key=_order(first))),
        tuple(_notes(drawn, runs, slo)),
        shown=max(_LABELLED, sum(1 for index in range(len(drawn)) if any(index in kept for kept in first.values()))),
    )


_HEAD = (
    "point",
    "of",
    "load",
    "kind",
    "total tokens/s per GPU",
    "tokens/s per user",
    "mean E2E, s",
    "mean TTFT, ms",
    "mean TPOT, ms",
    "on the frontier of",
)


def _kind(point: Mapping[str, Any]) -> str:
    if not point["valid"]:
        return INVALID
    return {"met": MET, "missed": MISSED}.get(text.slo(point), MEASURED)


def best(found: Sequence[Entry], key: str, *, lower: bool) -> list[int]:
    """Which of the entries are measured and valid, and beaten by no other such in ``key`` and tokens/s per GPU."""
    of = [index for index, entry in enumerate(found) if entry.kind in _VALID and getattr(entry, key) is not None]
    rows = [{"x": getattr(found[index], key), "y": found[index].gpu} for index in of]
    kept = dominant(rows, [Axis("x", "min" if lower else "max"), Axis("y", "max")])
    return [index for index, first in zip(of, kept, strict=True) if first]


def _best(drawn: Sequence[Entry], key: str, lower: bool, names: Sequence[str]) -> frozenset[int]:
    """The points on the frontier of their series."""
    kept: set[int] = set()
    for name in names:
        of = [index for index, entry in enumerate(drawn) if name in (entry.series, _OTHERS)]
        kept.update(of[place] for place in best([drawn[index] for index in of], key, lower=lower))
    return frozenset(kept)


def _labelled(drawn: Sequence[Entry], key: str, kept: frozenset[int]) -> list[int]:
    """Those of the frontier whose labels have room."""
    right = max((getattr(entry, key) or 0.0 for entry in drawn), default=0.0) or 1.0
    top = max(entry.gpu for entry in drawn) or 1.0
    taken: list[tuple[float, float]] = []
    found = []
    for index in sorted(kept, key=lambda index: -drawn[index].gpu):
        place = (getattr(drawn[index], key) / right, drawn[index].gpu / top)
        if all(abs(place[0] - x) > _NEAR[0] or abs(place[1] - y) > _NEAR[1] for x, y in taken):
            taken.append(place)
            found.append(index)
    return found


def _row(entry: Entry, index: int, best: Mapping[str, frozenset[int]], names: Sequence[str]) -> dict[str, Any]:
    row = {
        "series": _OTHERS if names == [_OTHERS] else entry.series,
        "of": entry.of,
        "point": entry.name,
        "load": entry.load,
        "kind": entry.kind,
        "gpu": _short(entry.gpu),
        "ttft": text.number(entry.ttft),
        "tpot": text.number(entry.tpot),
    }
    for key in ("user", "e2e"):
        value = getattr(entry, key)
        if value is not None:
            row[key] = _short(value)
            row[f"{key}_best"] = index in best[key]
    return row


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _order(best: Mapping[str, frozenset[int]]) -> Any:
    """The frontier first, then what was not measured, then the rest."""

    def key(item: tuple[int, Entry]) -> tuple[int, int]:
        index, entry = item
        first = any(index in kept for kept in best.values())
        return (0 if first else 1 if entry.kind in (PREDICTED, PUBLISHED) else 2, index)

    return key


def _cells(entry: Entry, index: int, best: Mapping[str, frozenset[int]]) -> tuple[Any, ...]:
    words = {"user": "tokens/s per user", "e2e": "E2E latency"}
    on = " and ".join(words[key] for key, kept in best.items() if index in kept)
    numbers = (entry.gpu, entry.user, entry.e2e, entry.ttft, entry.tpot)
    return (entry.name, entry.of, entry.load, entry.kind, *numbers, on)


def _same_slo(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """The bounds, where all runs have the same."""
    first: Mapping[str, float] = runs[0]["slo"]
    return first if all(run["slo"] == first for run in runs) else {}


def _edge(key: str, slo: Mapping[str, float], runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Where the SLO's region ends on an axis; None where the bounds say nothing of it."""
    tpot, ttft = slo.get("tpot_mean_ms"), slo.get("ttft_mean_s")
    if key == "user":
        return None if tpot is None else 1000 / tpot
    lengths = text.same_length([point for run in runs for point in run["points"]])
    if tpot is None or ttft is None or lengths is None or lengths[1] is None:
        return slo.get("e2e_s")
    return ttft + tpot * (lengths[1] - 1) / 1000


def _notes(drawn: Sequence[Entry], runs: Sequence[Mapping[str, Any]], slo: Mapping[str, float]) -> Iterator[str]:
    if slo.get("tpot_mean_ms") is not None:
        yield (
            "Shaded: where the SLO's bounds leave a user's speed (1000 / bound on mean TPOT) and the mean E2E latency "
            "(bound on mean TTFT + bound on mean TPOT × (OSL − 1)). A round mark meets every bound, also those that "
            "an axis does not show; a square one does not."
        )
    elif slo.get("e2e_s") is not None:
        yield "Shaded: mean E2E latencies within the bound that the SLO sets for each request."
    if any(entry.kind == INVALID for entry in drawn):
        yield "Crosses are invalid points: they count for nothing, and are on no frontier."
    if any(entry.kind == PREDICTED for entry in drawn):
        yield "Diamonds are predicted from measurements of the pools apart: confirm one by a run before it is believed."
    if any(run["simulated"] and run["published"] for run in runs):
        yield "Published figures are not drawn beside simulated ones."


def _panel(
    key: str,
    lower: bool,
    drawn: Sequence[Entry],
    best: frozenset[int],
    names: Sequence[str],
    unit: str,
    edge: float | None,
) -> Panel | None:
    there = [entry for entry in drawn if getattr(entry, key) is not None]
    if not there:
        return None
    kinds = [kind for kind in _SHAPES if any(entry.kind == kind for entry in there)]
    words = "mean E2E latency, s" if lower else "output tokens/s per user"
    title = f"← less is better: {words}" if lower else f"{words}: more is better →"
    top = max(entry.gpu for entry in there) * 1.08
    right = max([getattr(entry, key) for entry in there] + ([edge] if edge is not None and not lower else [])) * 1.08
    x = {"field": key, "type": "quantitative", "title": title, "scale": {"domain": [0, right], "nice": False}}
    y = {
        "field": "gpu",
        "type": "quantitative",
        "title": f"total tokens/s per {unit}: more is better ↑",
        "scale": {"domain": [0, top], "nice": False},
    }
    layers = [_region(edge, lower, right)] if edge is not None else []
    layers += [_line(key, names), *_points(key, kinds, names, len(there) > _DENSE), _labels(key, lower)]
    said = "; ".join(
        f"{drawn[index].load}: {text.number(drawn[index].gpu)} at {text.number(getattr(drawn[index], key))}"
        for index in sorted(best, key=lambda index: float(getattr(drawn[index], key)))[:_LABELLED]
    )
    spec = {
        "height": 340,
        "data": {"name": "points"},
        "encoding": {"x": x, "y": y},
        "layer": layers,
    }
    return Panel(spec, f"Total tokens/s per {unit} against {words}. On the frontier: {said or 'none'}.")


def _region(edge: float, lower: bool, right: float) -> dict[str, Any]:
    ends = (0, min(edge, right)) if lower else (edge, right)
    return {
        "data": {"values": [{"from": ends[0], "to": ends[1]}]},
        "mark": {"type": "rect", "color": "var(--met)", "opacity": 0.13, "tooltip": None, "clip": True},
        "encoding": {
            "x": {"field": "from", "type": "quantitative"},
            "x2": {"field": "to"},
            "y": {"value": 0},
            "y2": {"value": "height"},
        },
    }


def _colour(names: Sequence[str], kinds: Sequence[str]) -> dict[str, Any]:
    """Of several series each has a colour, of one its kinds have; all layers say the same, and share one legend."""
    if len(names) > 1:
        scale = {"domain": list(names), "range": list(SERIES[: len(names)])}
        return {"field": "series", "type": "nominal", "scale": scale, "legend": {"symbolType": "circle"}}
    scale = {"domain": list(kinds), "range": [_TONES[kind] for kind in kinds]}
    return {"field": "kind", "type": "nominal", "scale": scale, "legend": {} if len(kinds) > 1 else None}


def _line(key: str, names: Sequence[str]) -> dict[str, Any]:
    colour: dict[str, Any] = {"value": SERIES[0]} if len(names) == 1 else _colour(names, ())
    return {
        "transform": [{"filter": f"datum.{key}_best"}],
        "mark": {"type": "line", "strokeWidth": 2, "opacity": 0.65, "tooltip": None},
        "encoding": {"color": colour, "order": {"field": key, "type": "quantitative"}},
    }


def _points(key: str, kinds: Sequence[str], names: Sequence[str], dense: bool) -> list[dict[str, Any]]:
    """Solid marks; then hollow ones for what was not measured, and for what does not count."""
    scale = {"domain": list(kinds), "range": [_SHAPES[kind] for kind in kinds]}
    grey = {"symbolFillColor": "var(--soft)", "symbolStrokeColor": "var(--soft)"} if len(names) > 1 else {}
    legend = grey if len(kinds) > 1 else None
    tips = [
        {"field": name, "title": title, **({"format": ",.4~g"} if name in _NUMBERS else {})} for name, title in _TIPS
    ]
    layers = []
    for solid in (True, False):
        of = [kind for kind in kinds if (kind in (*_VALID, PUBLISHED)) == solid]
        if not of:
            continue
        test = " || ".join(f"datum.kind === '{kind}'" for kind in of)
        encoding = {
            "shape": {"field": "kind", "type": "nominal", "scale": scale, "legend": legend},
            "color": _colour(names, kinds),
            "tooltip": tips,
        }
        layers.append(
            {
                "transform": [{"filter": f"isValid(datum.{key}) && ({test})"}],
                "mark": {
                    "type": "point",
                    "size": 22 if dense else 85,
                    "strokeWidth": 2,
                    "filled": solid,
                    "opacity": 0.75 if dense or not solid else 1,
                },
                "encoding": encoding,
            }
        )
    return layers


_NUMBERS = ("gpu", "user", "e2e")
_TIPS = (
    ("point", "point"),
    ("of", "of"),
    ("kind", "kind"),
    ("load", "load"),
    ("gpu", "total tokens/s per GPU"),
    ("user", "tokens/s per user"),
    ("e2e", "mean E2E, s"),
    ("ttft", "mean TTFT, ms"),
    ("tpot", "mean TPOT, ms"),
)


def _labels(key: str, lower: bool) -> dict[str, Any]:
    """Beside the marks, on the side where the line does not go on."""
    side = {"align": "right", "dx": -8} if lower else {"align": "left", "dx": 8}
    return {
        "transform": [{"filter": f"datum.{key}_label"}],
        "mark": {"type": "text", **side, "dy": -9, "fontSize": 12, "color": "var(--ink)", "tooltip": None},
        "encoding": {"text": {"field": "load"}},
    }
