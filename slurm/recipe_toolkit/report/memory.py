"""What the engines of a run logged of their memory, beside what their recipe lets expect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recipe_toolkit.capacity.logs import EngineLog, compared, merged, read_log
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.fitting import known_capacity
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.rundir import RunDir

_MOST_BYTES = 16 << 20  # of a log: what is looked for is said at the start


def engine_logs(run: RunDir, plan: Plan) -> dict[str, EngineLog]:
    """What the engines of each role said in the last attempt; roles that said nothing are missing."""
    attempts = run.attempts()
    if not attempts:
        return {}
    folder = run.attempt(attempts[-1])
    found: dict[str, list[EngineLog]] = {}
    for process in plan.processes:
        if process.role and process.gpus:
            log = read_log(_lines(folder.process_log(process.node, process.name)))
            if log:
                found.setdefault(process.role, []).append(log)
    return {role: merged(logs) for role, logs in found.items()}


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            left = _MOST_BYTES
            for line in file:
                left -= len(line)
                if left < 0:
                    return
                yield line
    except OSError:
        return


def memory_rows(run: RunDir, plan: Plan) -> list[tuple[str, str, str, str]]:
    """(role, what, predicted, logged); empty where the logs or what is known of the model say nothing.

    Of a rehearsal and of the simulated engine too: they hold no model.
    """
    if plan.rehearsal or plan.engine != "vllm":
        return []
    logs = engine_logs(run, plan)
    if not logs:
        return []
    try:
        recipe = load_recipe(run.recipe_lock).recipe
        cluster = load_cluster(str(run.cluster_lock)).cluster if run.cluster_lock.is_file() else None
        answer = known_capacity(recipe, cluster)
    except (RecipeError, UnknownModel, OSError):
        return []
    roles = answer.roles if answer else []
    return [
        (found.role.name, *row)
        for found in roles
        if found.role.name in logs
        for row in compared(found, logs[found.role.name])
    ]
