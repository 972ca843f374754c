"""What a report is made of, from the folder of a run that may have ended anyhow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.faults import dotted
from recipe_toolkit.plan.model import Plan, plan_from_json
from recipe_toolkit.report.figures.collect import figures_of_run
from recipe_toolkit.report.figures.draw import bundle
from recipe_toolkit.report.figures.frontier import Entry
from recipe_toolkit.report.figures.model import Figure
from recipe_toolkit.report.memory import memory_rows
from recipe_toolkit.report.page import render_page
from recipe_toolkit.results.collect import build_results
from recipe_toolkit.results.manifest import files_of, name_of
from recipe_toolkit.results.model import PointResult, Results, results_from_json
from recipe_toolkit.results.search.model import SearchResult
from recipe_toolkit.rundir import RunDir, read_json
from recipe_toolkit.schema_check import check_schema

_SHOWN = 5
_EVENT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Material:
    """A run as data. ``results`` are those of results.json, with the run's state as it is now."""

    run: RunDir
    plan: Plan
    results: dict[str, Any]


def material(run: RunDir, state: Mapping[str, Any] | None = None) -> Material:
    """The results of a run and what they belong to; of one that measured nothing, results without points.

    ``state``: what is known of the run's state and nodes, else what the results say. Raises
    RecipeError if the plan or the results cannot be read.
    """
    plan = read_plan(run)
    points: tuple[PointResult, ...] = ()
    versions: Mapping[str, str] = {}
    images: Mapping[str, str | None] = {}
    search: tuple[SearchResult, ...] = ()
    known: Mapping[str, Any] = state or {}
    if run.results.is_file():
        results = read_results(run.results)
        points, versions, images, search = results.points, results.versions, results.images, results.search
        nodes = [{"index": node.index, "name": node.name, "address": node.address} for node in results.nodes]
        known = {"state": results.state, "message": results.message, "nodes": nodes, **_said(known)}
    return Material(run, plan, build_results(plan, run.id, known, points, versions, images, search).to_json())


def figures(found: Material, predicted: Sequence[Entry] = ()) -> list[Figure]:
    """The figures that can be drawn of a run; ``predicted`` points beside its own."""
    return figures_of_run(found.run, found.results, read_events(found.run), predicted)


def page(
    found: Material,
    target: Path,
    picture: str = "",
    *,
    linked: bool = True,
    drawn: Sequence[Figure] | None = None,
    look: float | None = None,
) -> str:
    """The page of a run that will be written to ``target``, with links from there into the run folder if it stays.

    ``drawn``: its figures, if they are there already; ``look``: as of :func:`render_page`.
    """
    base = os.path.relpath(found.run.root, target.absolute().parent) if linked else None
    files = [name_of(found.run, path) for path in files_of(found.run) if path.name != "report.html"] if linked else []
    return render_page(
        found.results,
        found.plan.to_json(),
        events=read_events(found.run),
        picture=picture,
        files=files,
        base=base,
        memory=memory_rows(found.run, found.plan),
        facts=_facts(found.run),
        figures=figures(found) if drawn is None else drawn,
        vega=bundle(),
        look=look,
    )


def _facts(run: RunDir) -> list[tuple[str, Mapping[str, Any]]]:
    """(path in the run folder, what it says) of each node of the last attempt."""
    attempts = run.attempts()
    found: list[tuple[str, Mapping[str, Any]]] = []
    for path in sorted(run.attempt(attempts[-1]).root.glob("nodes/*/facts.json")) if attempts else []:
        try:
            data = read_json(path) if path.is_file() else None
        except (OSError, ValueError):
            continue
        if isinstance(data, dict):
            found.append((name_of(run, path), data))
    return found


def read_events(run: RunDir) -> list[dict[str, Any]]:
    """The events; lines that are no JSON object are skipped, and so is what comes after 32 MiB."""
    try:
        with run.events.open("rb") as file:
            lines = file.read(_EVENT_BYTES).splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _said(known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in known.items() if value not in (None, (), [])}


def read_results(path: Path) -> Results:
    """The results in a file. Raises RecipeError, naming each field that is not as the schema says."""
    data = _document(path, "results")
    try:
        return results_from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error!r}") from error


def read_plan(run: RunDir) -> Plan:
    """The plan of a run. Raises RecipeError, naming each field that is not as the schema says."""
    if not run.plan.exists():
        raise RecipeError(f"{run.root}: holds no plan.json, so nothing can be reported")
    data = _document(run.plan, "plan")
    try:
        return plan_from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{run.plan}: cannot be read: {error!r}") from error


def _document(path: Path, schema: str) -> Any:
    """The data of a file whose fields hold what the schema says; those that a version lacks may be missing."""
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    faults = [fault for fault in check_schema(data, schema) if not fault.absent]
    if not faults:
        return data
    said = [f"{dotted(fault.path)}: {fault.message}" if fault.path else fault.message for fault in faults[:_SHOWN]]
    more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    raise RecipeError(f"{path}: cannot be read:\n  " + "\n  ".join(said) + more)
