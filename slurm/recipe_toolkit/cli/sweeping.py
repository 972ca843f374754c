"""What a sweep costs, what is left of it to do, and the table of its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.faults import dotted

if TYPE_CHECKING:
    from recipe_toolkit.cli.planning import Planned
    from recipe_toolkit.sweep.expand import Variant

_SCHEMA = 1


def hours(value: float) -> str:
    """Node-hours as people read them: ``1.5``, ``36``."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def check_budget(
    planned: Sequence[Planned], at_once: int | None, max_nodes: int | None, max_node_hours: float | None
) -> None:
    """Raise RecipeError if the runs could take more nodes at a time, or more node-hours, than is allowed."""
    nodes = sorted((len(item.plan.nodes) for item in planned), reverse=True)
    most = sum(nodes[:at_once])
    if max_nodes is not None and most > max_nodes:
        fewer = "" if nodes[0] > max_nodes else "; --at-once has fewer at a time"
        raise RecipeError(
            f"{len(nodes)} runs could hold {most} nodes at a time, more than --max-nodes {max_nodes}",
            hint=f"the largest run takes {nodes[0]} nodes{fewer}",
        )
    total = sum(item.node_hours for item in planned)
    if max_node_hours is not None and total > max_node_hours:
        raise RecipeError(
            f"{len(nodes)} runs could take {hours(total)} node-hours, more than --max-node-hours {max_node_hours:g}",
            hint="that is nodes x time_limit of each run: a shorter time_limit, or fewer variants (--only)",
        )


def records(planned: Sequence[Planned], ids: dict[Path, str]) -> list[dict[str, Any] | None]:
    """For each run what its sweep.json will say; None for one of no sweep. ``ids``: the sweep's id by recipe."""
    return [_record(item, ids) for item in planned]


def _record(item: Planned, ids: dict[Path, str]) -> dict[str, Any] | None:
    run = item.swept
    if run is None:
        return None
    names = [point.id for point in item.plan.benchmarks]
    return {
        "schema": _SCHEMA,
        "sweep": ids[item.file],
        "recipe": run.base,
        "id": run.id,
        "variants": [
            {
                "id": variant.id,
                "digest": digest,
                "columns": variant.columns,
                "values": variant.values,
                "points": [names[index] for index in points],
            }
            for variant, points, digest in zip(run.variants, run.points, run.digests, strict=True)
        ],
    }


def new_ids(planned: Sequence[Planned]) -> dict[Path, str]:
    """An id for the sweep of each recipe that has one."""
    from recipe_toolkit.submit.folder import new_id

    bases = {item.file: item.swept.base for item in planned if item.swept is not None}
    return {file: new_id(base) for file, base in bases.items()}


@dataclass(frozen=True)
class Left:
    """What is left of a sweep: its id, the recipe that holds it, and the ids of some or all ``of`` its variants."""

    sweep: str
    file: Path
    variants: frozenset[str]
    of: int


def unfinished(planned: Sequence[Planned], word: str, folders: Sequence[Path]) -> Left:
    """The variants of an earlier sweep that have no results that count, and no run that goes on; says of the others.

    Raises UnknownRun; RecipeError if the sweep is of another recipe.
    """
    from recipe_toolkit.submit.sweeps import counts, find_sweep

    files = {item.file for item in planned}
    runs = [item.swept for item in planned if item.swept is not None]
    if len(files) != 1 or not runs:
        raise click.UsageError("--resume takes one recipe with a sweep")
    found = find_sweep(word, folders)
    if found.recipe != runs[0].base:
        raise RecipeError(f"sweep {found.id} is of {found.recipe}, not of {runs[0].base}")
    earlier = list(found.variants())
    left = set()
    for run in runs:
        for variant, digest in zip(run.variants, run.digests, strict=True):
            before = [(state, record["digest"]) for state, record in earlier if record["id"] == variant.id]
            same = [state for state, known in before if known == digest]
            over = next((state for state in same if counts(state)), None)
            over = over or next((state for state in same if not state.final), None)
            if over is not None:
                click.echo(f"{variant.id}: {over.state}, {over.id}", err=True)
                continue
            if before and not same:
                click.echo(f"{variant.id}: its recipe has changed since, so it is measured again", err=True)
            left.add(variant.id)
    return Left(found.id, files.pop(), frozenset(left), sum(len(run.variants) for run in runs))


def table(planned: Sequence[Planned]) -> list[tuple[str, ...]]:
    """A row a variant: id, number of its run, nodes, GPUs, points, node-hours, what differs."""
    device = "GPUS" if planned[0].plan.device == "gpu" else "SLOTS"
    rows: list[tuple[str, ...]] = [("VARIANT", "RUN", "NODES", device, "NODE-HOURS", "POINTS", "WHAT DIFFERS")]
    for number, item in enumerate(planned, 1):
        assert item.swept is not None
        cost = (str(len(item.plan.nodes)), str(item.plan.gpus.working), hours(item.node_hours))
        for variant, points in zip(item.swept.variants, item.swept.points, strict=True):
            # What further variants of a run cost has been said.
            rows.append((variant.id, str(number), *cost, str(len(points)), _differs(variant)))
            cost = ("", "", "")
    return rows


def _differs(variant: Variant) -> str:
    """Short keys where the field has one, the whole field of a named variant."""
    said: dict[str, Any] = {}
    for choice in variant.choices:
        named = "variant" in choice.columns
        said.update({dotted(item.path): item.value for item in choice.settings} if named else choice.columns)
    return ", ".join(f"{name}={_shown(value)}" for name, value in said.items()) or "nothing"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def total(planned: Sequence[Planned]) -> str:
    """The last line: what all of it costs at most."""
    nodes = [len(item.plan.nodes) for item in planned]
    variants = sum(len(item.swept.variants) for item in planned if item.swept is not None)
    points = sum(len(item.plan.benchmarks) for item in planned)
    return (
        f"{_count(variants, 'variant')} in {_count(len(planned), 'run')}, {_count(points, 'point')}: at most "
        f"{hours(sum(item.node_hours for item in planned))} node-hours, {_count(max(nodes), 'node')} at a time with "
        f"--at-once 1, {sum(nodes)} without"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def to_json(planned: Sequence[Planned]) -> dict[str, Any]:
    """The table for scripts."""
    runs = []
    for item in planned:
        assert item.swept is not None
        record = _record(item, {item.file: ""})
        assert record is not None
        runs.append(
            {
                "id": item.swept.id,
                "name": item.plan.name,
                "nodes": len(item.plan.nodes),
                "gpus": item.plan.gpus.working,
                "points": [point.id for point in item.plan.benchmarks],
                "time_limit_s": item.plan.time_limit_s,
                "node_hours": item.node_hours,
                "variants": record["variants"],
            }
        )
    return {
        "schema": _SCHEMA,
        "recipe": str(planned[0].file),
        "device": planned[0].plan.device,
        "runs": runs,
        "node_hours": sum(item.node_hours for item in planned),
        "nodes_at_once": sum(len(item.plan.nodes) for item in planned),
    }
