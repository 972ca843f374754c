"""What a search has found, for a terminal: the answer, then the loads that were tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from recipe_toolkit import slo
from recipe_toolkit.report import text
from recipe_toolkit.report.table import Column, aligned, wrap

_SAID = 0.5  # a lower confidence is none
_OUTCOMES = {
    None: "still running",
    "found": "found",
    "all_met": "every load of the range meets the SLO",
    "none_met": "no load of the range meets the SLO",
    "unsure": "found as closely as its points allow",
    "stopped": "stopped before its end",
}


def searches(results: Mapping[str, Any], width: int) -> Iterator[str]:
    """A block a search."""
    for item in results.get("search", ()):
        lines = [line for said in _lines(item, results) for line in wrap(said, width)]
        yield "\n".join(
            [*lines, "", aligned(_columns(item, results), [{**row, "valid": True} for row in item["loads"]], width)]
        )


def answers(labels: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each search and run: its answer, and what that gives beside the first run's."""
    names = dict.fromkeys(item["benchmark"] for run in runs for item in run.get("search", ()))
    for name in names:
        first = None
        for label, run in zip(labels, runs, strict=True):
            item = next((item for item in run.get("search", ()) if item["benchmark"] == name), None)
            if item is None:
                continue
            answer = item["answer"]
            if answer is None:
                yield f"  {name}: {label} no answer: {item['why']}"
                continue
            said = f"{load(item, answer['load'])}, {text.number(answer['objective'])} {objective(item, run)}"
            if first and answer["objective"] is not None and first[0] == item["maximize"]:
                said += f", {(answer['objective'] / first[1] - 1) * 100:+.1f} %"
            elif first is None and answer["objective"]:
                first = (item["maximize"], answer["objective"])
            yield f"  {name}: {label} {said}"


def of_searches(runs: Sequence[Mapping[str, Any]]) -> set[str]:
    """The ids of the points of all searches, and what the repeats of a load share."""
    points = [
        point for run in runs for item in run.get("search", ()) for tried in item["loads"] for point in tried["points"]
    ]
    return {*points, *(point.rpartition("-rep")[0] for point in points)}


def load(search: Mapping[str, Any], value: float) -> str:
    """``c 64`` or ``4 req/s``, as of a point."""
    return f"c {value:g}" if search["over"] == "concurrency" else f"{value:g} req/s"


def objective(search: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """What it maximises, as a unit."""
    return "good req/s" if search["maximize"] == "goodput" else f"total tok/s per {text.unit_of_work(results)}"


def _lines(item: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    yield f"search {item['benchmark']} over {item['over']}: {_OUTCOMES.get(item['outcome'], item['outcome'])}"
    answer = item["answer"]
    if answer is not None:
        seen = [f"{slo.figure(name)} {text.number(value)} {slo.unit(name)}" for name, value in answer["slo"].items()]
        interval = ""
        if answer["objective_low"] is not None:
            interval = f" ({text.number(answer['objective_low'])} to {text.number(answer['objective_high'])})"
        figure = f"{text.number(answer['objective'])} {objective(item, results)}{interval}"
        yield f"  answer: {load(item, answer['load'])} gives {', '.join([figure, *seen])}"
    else:
        yield "  answer: none"
    if item["bounds"]:
        yield f"  knee: {_knee(item)}"
    took = f"{item['points_measured']} of at most {item['points_most']} points, {text.span(item['measuring_s'])}"
    noise = "" if item["noise_ratio"] is None else f"; repeats differ by {text.percent(item['noise_ratio'])}"
    yield f"  {took}{noise}"
    if item["why"]:
        yield f"  {item['why']}"
    yield from (f"  {note}" for note in item["notes"])


def _knee(item: Mapping[str, Any]) -> str:
    met, missed = item["knee"]["met"], item["knee"]["missed"]
    figures = ", ".join(map(slo.figure, item["binding"]))
    misses = f"misses {figures}" if figures else "gives no point that counts"
    if met is None and missed is None:
        return "not seen"
    if met is None:
        said = f"below {load(item, missed)}, which {misses}"
    elif missed is None:
        said = f"above {load(item, met)}"
    else:
        said = f"between {load(item, met)} and {load(item, missed)}, which {misses}"
    if item["confidence"] is None or item["confidence"] < _SAID:
        return f"{said}; not confirmed"
    # More would be said than a few repeats can carry.
    return f"{said}; confidence {min(item['confidence'], 0.999):.1%}"


def _columns(item: Mapping[str, Any], results: Mapping[str, Any]) -> list[Column]:
    def bound(name: str, row: Mapping[str, Any]) -> str:
        tried = row["bounds"].get(name)
        if tried is None or tried["seen"] is None:
            return text.MISSING
        reach = "" if tried["low"] is None else f" ±{text.number(tried['high'] - tried['seen'])}"
        return f"{text.number(tried['seen'])}{reach}{'' if tried['met'] else ' missed'}"

    def verdict(row: Mapping[str, Any]) -> str:
        return str(row["verdict"]) + ("" if row["sure"] or row["verdict"] == "unsure" else "?")

    head, _, tail = objective(item, results).partition(" per ")
    cells: list[tuple[tuple[str, str], Callable[[Mapping[str, Any]], str]]] = [
        (("", "load"), lambda row: load(item, row["load"])),
        (("", "points"), lambda row: text.count(len(row["points"]))),
        *(
            ((slo.figure(name), f"≤ {value:g} {slo.unit(name)}"), partial(bound, name))
            for name, value in item["bounds"].items()
        ),
        ((head, f"per {tail}" if tail else ""), lambda row: text.number(row["objective"])),
        (("", "verdict"), verdict),
    ]
    return [Column(title, cell, left=title == ("", "verdict")) for title, cell in cells]
