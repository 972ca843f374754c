"""The points of all runs of a sweep in one table, with what was swept as columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.table import WIDTH, Column, aligned, columns, remarks, score_columns, score_rows, wrap

_SWEPT = "swept"
_LONGEST = 24


@dataclass(frozen=True)
class Part:
    """A variant with the run that measured it, and its folder. ``record``: what the run's sweep.json says of it."""

    record: Mapping[str, Any]
    results: Mapping[str, Any]
    folder: str = ""

    @property
    def points(self) -> list[Mapping[str, Any]]:
        """Its points that were measured, in the order of the run; of a search those of its answer."""
        return [point for point in self.results["points"] if point["id"] in self.wanted]

    @property
    def wanted(self) -> list[str]:
        """The ids of the points that it should have; of a search that has no answer its benchmark's name."""
        answers = {item["benchmark"]: item["answer"] for item in self.results.get("search", ()) if item["answer"]}
        names = self.record["points"]
        return [point for name in names for point in (answers[name]["points"] if name in answers else [name])]

    @property
    def searches(self) -> dict[str, Mapping[str, Any]]:
        """Its searches by benchmark, answered or not."""
        found = {item["benchmark"]: item for item in self.results.get("search", ())}
        return {name: found[name] for name in self.record["points"] if name in found}


def render(sweep: str, parts: Sequence[Part], width: int = WIDTH) -> str:
    """The table for a terminal: a row a variant and point; variants without points below."""
    blocks = ["\n".join(wrapped for line in _head(sweep, parts) for wrapped in wrap(line, width))]
    rows = [{**point, _SWEPT: part.record["columns"]} for part in parts for point in part.points]
    if rows:
        swept = dict.fromkeys(key for part in parts for key in part.record["columns"])
        timed = [row for row in rows if not text.of_accuracy(row)]
        known = columns({**_widest(parts), "points": timed})
        own = [Column(("", key), partial(_shown, key), left=True) for key in swept]
        # A point's name only repeats client, lengths and load, which are columns, or were swept.
        if timed:
            blocks.append(aligned([*own, *(item for item in known if item.head != ("", "point"))], timed, width))
        scored = score_rows(rows)
        if scored:
            blocks.append(aligned([*own, *score_columns()], scored, width))
    named = [{**point, "id": f"{part.record['id']}: {point['id']}"} for part in parts for point in part.points]
    blocks += [said for said in (remarks(named, width), "\n".join(_without(parts, width))) if said]
    return "\n\n".join(blocks) + "\n"


def _head(sweep: str, parts: Sequence[Part]) -> Iterator[str]:
    first = parts[0].results
    runs = {part.results["run"]: part.results for part in parts}
    states = [("rehearsal " if run["rehearsal"] else "") + run["state"] for run in runs.values()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    yield f"sweep {sweep}: {len(parts)} variants in {len(runs)} runs: {counts}"
    warning = next((said for run in runs.values() if (said := text.warning(run)) is not None), None)
    if warning is not None:
        yield warning.upper()
    yield f"{text.engine(first)} serves {first['model']}"
    lengths = text.same_length([point for part in parts for point in part.points])
    if lengths and lengths != (None, None):
        yield f"ISL {text.count(lengths[0])}, OSL {text.count(lengths[1])} tokens"
    if first["slo"]:
        yield "SLO: " + ", ".join(text.bound(name, value) for name, value in first["slo"].items())


def _widest(parts: Sequence[Part]) -> Mapping[str, Any]:
    """The results whose per-GPU figures need a word more: those of a run that leaves GPUs idle."""
    idle = (run for part in parts if (run := part.results)["gpus"]["working"] != run["gpus"]["allocated"])
    return next(idle, parts[0].results)


def _shown(key: str, row: Mapping[str, Any]) -> str:
    swept = row[_SWEPT]
    if key not in swept:
        return text.MISSING
    value = swept[key]
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    clean = "".join(sign if sign.isprintable() else "�" for sign in said)
    return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 1]}…"


def _without(parts: Sequence[Part], width: int) -> Iterator[str]:
    for part in parts:
        there = {*(point["id"] for point in part.points), *part.searches}
        missing = [name for name in part.wanted if name not in there]
        for name, search in part.searches.items():
            if not search["answer"]:
                yield from wrap(f"  {part.record['id']}: search {name} has no answer: {search['why']}", width)
        if missing:
            results = part.results
            why = (results.get("message") or "").partition("\n")[0]
            said = f"  {part.record['id']}: {', '.join(missing)} not measured: {results['run']} {results['state']}"
            yield from wrap(f"{said}: {why}" if why else said, width)


def to_json(sweep: str, parts: Sequence[Part]) -> dict[str, Any]:
    """The table for scripts: every variant with its run's state and its points as in results.json."""
    return {
        "schema": 1,
        "sweep": sweep,
        "variants": [
            {
                **{key: part.record[key] for key in ("id", "values")},
                **{key: part.results[key] for key in ("run", "state", "valid", "message", "rehearsal", "simulated")},
                "points": part.points,
            }
            for part in parts
        ],
    }
