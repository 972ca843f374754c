"""What a search tried: how near each load came to the bounds, where the knee is, what was gained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.figures.model import SERIES, Figure, Panel

_SHAPES = {"met": "circle", "missed": "triangle-up", "unsure": "diamond", "invalid": "cross"}
_HEAD = ("load", "verdict", "sure", "objective", "bound", "limit", "seen", "low", "high", "points", "left out")


def figures(results: Mapping[str, Any]) -> Iterator[Figure]:
    """A figure for each search of a run that has tried a load."""
    for index, search in enumerate(results.get("search", ())):
        if search["loads"]:
            yield _figure(index, search, text.mark(results))


def _figure(index: int, search: Mapping[str, Any], mark: str | None) -> Figure:
    ratios = [row for load in search["loads"] for row in _ratios(load)]
    gained = [
        {
            "load": load["load"],
            "value": load["objective"],
            "verdict": load["verdict"],
            "answer": bool(search["answer"] and search["answer"]["load"] == load["load"]),
        }
        for load in search["loads"]
        if load["objective"] is not None
    ]
    panels = [_bounds(search)] if ratios else []
    panels += [_gained(search, gained)] if gained else []
    return Figure(
        f"search-{index}",
        f"Search of {search['benchmark']}",
        " ".join(said for said in (_said(search), f"({mark})" if mark else "") if said),
        {"ratios": ratios, "gained": gained, "knee": _knee(search)},
        tuple(panels),
        _HEAD,
        tuple(_rows(search)),
        tuple(search["notes"]),
    )


def _said(search: Mapping[str, Any]) -> str:
    words = "requests at a time" if search["over"] == "concurrency" else "requests/s"
    said = [f"{search['points_measured']} of at most {search['points_most']} points measured, over {words}."]
    answer, knee = search["answer"], search["knee"]
    if answer:
        said.append(f"Run at {answer['load']:g}: {text.number(answer['objective'])} {_objective(search)}.")
    if knee["met"] is not None and knee["missed"] is not None:
        sure = "" if search["confidence"] is None else f", at {search['confidence']:.0%} confidence"
        said.append(f"The knee is between {knee['met']:g} and {knee['missed']:g}{sure}.")
    if search["binding"]:
        missed = (text.bound(name, search["bounds"][name]) for name in search["binding"] if name in search["bounds"])
        said.append(f"Above it, what is missed: {', '.join(missed)}.")
    why = search["why"]
    return " ".join([*said, f"{why[0].upper()}{why[1:].rstrip('.')}." if why else "It still goes on."])


def _objective(search: Mapping[str, Any]) -> str:
    """What was to be had most of, in words."""
    known = {"total_tps_per_gpu": "total tokens/s per GPU", "goodput": "good requests/s"}
    return known.get(search["maximize"], str(search["maximize"]))


def _ratios(load: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, bound in load["bounds"].items():
        if bound["seen"] is None or not bound["bound"]:
            continue
        row = {"load": load["load"], "bound": text.bound(name, bound["bound"]), "verdict": load["verdict"]}
        row["seen"] = bound["seen"]
        row["ratio"] = bound["seen"] / bound["bound"]
        if bound["low"] is not None and bound["high"] is not None:
            row["low"], row["high"] = bound["low"] / bound["bound"], bound["high"] / bound["bound"]
        yield row


def _knee(search: Mapping[str, Any]) -> list[dict[str, float]]:
    knee = search["knee"]
    there = knee["met"] is not None and knee["missed"] is not None
    return [{"from": knee["met"], "to": knee["missed"]}] if there else []


def _rows(search: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for load in search["loads"]:
        points, left = ", ".join(load["points"]), ", ".join(load["left_out"])
        head = (load["load"], load["verdict"], "yes" if load["sure"] else "no", load["objective"])
        for name, bound in load["bounds"].items() or [("", {})]:
            limits = tuple(bound.get(key) for key in ("bound", "seen", "low", "high"))
            yield (*head, name, *limits, points, left)


def _x(search: Mapping[str, Any]) -> dict[str, Any]:
    title = "requests at a time" if search["over"] == "concurrency" else "requests/s"
    loads = [load["load"] for load in search["loads"]]
    kind = "log" if max(loads) > 8 * min(loads) else "linear"
    scale: dict[str, Any] = {"type": kind, "padding": 16, **({"base": 2} if kind == "log" else {"zero": False})}
    return {"field": "load", "type": "quantitative", "title": title, "scale": scale}


def _shape(verdicts: Sequence[str]) -> dict[str, Any]:
    there = [verdict for verdict in _SHAPES if verdict in verdicts]
    scale = {"domain": there, "range": [_SHAPES[verdict] for verdict in there]}
    legend = {"symbolStrokeColor": "var(--ink)", "symbolFillColor": "transparent"}
    return {"field": "verdict", "type": "nominal", "scale": scale, "legend": legend}


def _region(search: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "data": {"name": "knee"},
        "mark": {"type": "rect", "color": "var(--met)", "opacity": 0.15, "tooltip": None},
        "encoding": {
            "x": {**_x(search), "field": "from"},
            "x2": {"field": "to"},
            "y": {"value": 0},
            "y2": {"value": "height"},
        },
    }


def _bounds(search: Mapping[str, Any]) -> Panel:
    names = [text.bound(name, value) for name, value in search["bounds"].items()]
    names += [
        name
        for load in search["loads"]
        for key, bound in load["bounds"].items()
        if (name := text.bound(key, bound["bound"])) not in names
    ]
    names = list(dict.fromkeys(names))[: len(SERIES)]
    colour = {
        "field": "bound",
        "type": "nominal",
        "scale": {"domain": names, "range": list(SERIES[: len(names)])},
        "legend": {"symbolType": "stroke"},
    }
    y = {"field": "ratio", "type": "quantitative", "title": "seen, as a share of the bound", "axis": {"format": "%"}}
    tips = [
        {"field": "bound", "title": "bound"},
        {"field": "load", "title": "load"},
        {"field": "seen", "title": "seen", "format": ",.4~g"},
        {"field": "verdict", "title": "verdict of the load"},
    ]
    shared = {"x": _x(search), "y": y, "color": colour}
    layers = [
        _region(search),
        {
            "data": {"values": [{"ratio": 1}]},
            "mark": {"type": "rule", "strokeDash": [5, 4], "color": "var(--ink)", "tooltip": None},
            "encoding": {"y": {"field": "ratio", "type": "quantitative"}},
        },
        {"encoding": shared, "mark": {"type": "line", "opacity": 0.6, "tooltip": None}},
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 2, "tooltip": None},
            "encoding": {
                **shared,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
            },
        },
        {
            "mark": {"type": "point", "size": 80, "strokeWidth": 2},
            "encoding": {**shared, "shape": _shape([load["verdict"] for load in search["loads"]]), "tooltip": tips},
        },
    ]
    return Panel(
        {"height": 280, "data": {"name": "ratios"}, "layer": layers},
        f"How near each load came to {', '.join(names)}. Below 100 % the bound is met.",
    )


def _gained(search: Mapping[str, Any], gained: Sequence[Mapping[str, Any]]) -> Panel:
    y = {"field": "value", "type": "quantitative", "title": f"{_objective(search)}: more is better ↑"}
    shared = {"x": _x(search), "y": y}
    tips = [
        {"field": "load", "title": "load"},
        {"field": "value", "title": _objective(search), "format": ",.4~g"},
        {"field": "verdict", "title": "verdict of the load"},
    ]
    layers = [
        _region(search),
        {"encoding": shared, "mark": {"type": "line", "color": SERIES[0], "opacity": 0.6, "tooltip": None}},
        {
            "mark": {"type": "point", "size": 80, "strokeWidth": 2, "color": SERIES[0], "fill": SERIES[0]},
            "encoding": {
                **shared,
                "shape": _shape([row["verdict"] for row in gained]),
                "fillOpacity": {"condition": {"test": "datum.answer", "value": 1}, "value": 0},
                "tooltip": tips,
            },
        },
    ]
    said = "; ".join(f"{row['load']:g}: {text.number(row['value'])}" for row in gained)
    return Panel(
        {"height": 220, "data": {"name": "gained"}, "layer": layers},
        f"{_objective(search)} at each load: {said}. Filled is the answer.",
    )
