"""What may be left on the nodes of a run that was not there to remove it: containers of an engine with a store.

Everything else of a run ends with its job.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from recipe_toolkit.rundir import RunDir, read_json

_ENGINES = ("docker", "podman")
_SHOWN = 4


def containers(run: RunDir, attempt: int) -> str | None:
    """A sentence with the commands that remove them, as far as that attempt was bound; None if there are none."""
    try:
        found = list(_commands(read_json(run.attempt(attempt).bound)))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    if not found:
        return None
    more = f"; and {len(found) - _SHOWN} more: {run.attempt(attempt).bound}" if len(found) > _SHOWN else ""
    return f"containers may be left: {'; '.join(found[:_SHOWN])}{more}"


def _commands(bound: Any) -> Iterator[str]:
    names = {node["index"]: node["name"] for node in bound["nodes"]}
    for process in bound["processes"].values():
        command = process["cleanup"]
        if command and PurePath(command[0]).name in _ENGINES:
            yield f"on {names[process['node']]} `{shlex.join(command)}`"
