"""What differs between two plans: process by process, flag by flag."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from recipe_toolkit.plan.model import Plan, Process
from recipe_toolkit.plan.values import show
from recipe_toolkit.report.changes import ABSENT, Change, changes


def plan_changes(one: Plan, other: Plan) -> list[Change]:
    """The fields that differ; what differs alike in many processes is told once, with their names."""
    sides = [_processes(plan) for plan in (one, other)]
    found = changes([_head(plan) for plan in (one, other)])
    alike: dict[tuple[str, str], tuple[list[str], Change]] = {}
    for name in dict.fromkeys(name for side in sides for name in side):
        if any(name not in side for side in sides):
            found.append(Change(name, tuple(_command(side[name]) if name in side else ABSENT for side in sides)))
            continue
        for change in changes([_described(side[name]) for side in sides]):
            names, _ = alike.setdefault((change.field, repr(change.values)), ([], change))
            names.append(name)
    return found + [Change(f"{_joined(names)}.{change.field}", change.values) for names, change in alike.values()]


def _processes(plan: Plan) -> dict[str, Process]:
    return {process.name: process for process in [*plan.processes, *(point.process for point in plan.benchmarks)]}


def _head(plan: Plan) -> dict[str, Any]:
    """What is no process's own."""
    data = plan.to_json()
    # A point is its client's command.
    for key in ("schema", "name", "processes", "instances", "benchmarks", "published"):
        data.pop(key, None)
    return {**data, "nodes": len(plan.nodes)}


def _described(process: Process) -> dict[str, Any]:
    return {
        "node": process.node,
        "gpus": list(process.gpus),
        "command": _command(process),
        "args": _flags([show(word) for word in process.argv]),
        "env": {name: show(value) for name, value in process.env.items()},
        "unset": list(process.unset),
        "ports": dict(process.ports),
        "after": list(process.after),
    }


def _command(process: Process) -> str:
    words = [show(word) for word in process.argv]
    first = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    return " ".join(words[:first])


def _flags(words: Sequence[str]) -> dict[str, Any]:
    """``--flag value`` pairs; JSON is read, so that it differs key by key, and a flag given twice is a list."""
    found: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found.setdefault(name, []).append([_value(value)] if equals else [])
        elif name is not None:
            found[name][-1].append(_value(word))
    return {name: _plain(times) for name, times in found.items()}


def _plain(times: list[list[Any]]) -> Any:
    values = [True if not given else given[0] if len(given) == 1 else given for given in times]
    return values[0] if len(values) == 1 else values


def _value(word: str) -> Any:
    if not word.startswith(("{", "[")):
        return word
    try:
        return json.loads(word)
    except ValueError:
        return word


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
