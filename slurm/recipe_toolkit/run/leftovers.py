"""What an earlier attempt of the run has left on a node, where agent and keepers were killed together."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.bind import BoundProcess
from recipe_toolkit.run import environment
from recipe_toolkit.run.handle import Outside
from recipe_toolkit.run.keeper import CLEANUP_S


def programs(processes: Sequence[BoundProcess]) -> list[dict[str, Any]]:
    """What :func:`sweep` needs to know of those processes of a node that may outlive their agent."""
    return [
        {"name": item.name, "cleanup": item.cleanup, "inspect": item.inspect, "env": item.env}
        for item in processes
        if item.cleanup
    ]


def sweep(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Run the clean-up of each program; the names of those that had left something.

    Takes a while: not for a loop. Raises RunError with every clean-up that fails.
    """
    left, problems = [], []
    for item in found:
        env = environment.child_environment(os.environ, item["env"])
        outside = Outside(item["inspect"], env)
        outside.refresh()
        ran = bool(outside.pids())
        command = " ".join(item["cleanup"])
        try:
            done = subprocess.run(
                item["cleanup"], env=env, capture_output=True, text=True, timeout=CLEANUP_S, check=False
            )
        except subprocess.TimeoutExpired:
            problems.append(f"{item['name']}: {command} has not ended within {CLEANUP_S:g} s")
            continue
        except OSError as error:
            problems.append(f"{item['name']}: cannot execute {item['cleanup'][0]}: {error.strerror}")
            continue
        if done.returncode:
            problems.append(f"{item['name']}: {command} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        elif ran or done.stdout.strip():  # a runtime says what it removed
            left.append(item["name"])
    if problems:
        raise RunError("\n".join(problems), hint="remove what an earlier attempt has left there by hand")
    return left
