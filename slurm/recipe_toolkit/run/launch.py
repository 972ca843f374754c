"""Phase *launch*: programs are started on their nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Process
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.tasks import together

ENGINES = "engines"

log = logging.getLogger("recipe_toolkit.run")


def waves(context: Context) -> list[list[Process]]:
    """The plan's processes in the order of their ``after``: each wave starts when those before it are ready.

    Raises RunError for a circle or an unknown name.
    """
    engines = {process.name for process in context.engines()}
    pending = list(context.plan.processes)
    ready: set[str] = set()
    found: list[list[Process]] = []
    while pending:
        wave = [process for process in pending if _needs(process, engines) <= ready]
        if not wave:
            names = ", ".join(process.name for process in pending)
            raise RunError(f"launch: nothing can start first of {names}: their `after` names each other or nobody")
        found.append(wave)
        ready |= {process.name for process in wave}
        pending = [process for process in pending if process.name not in ready]
    return found


def _needs(process: Process, engines: set[str]) -> set[str]:
    return {name for item in process.after for name in (engines if item == ENGINES else {item})}


async def launch(context: Context, processes: Iterable[Process]) -> None:
    """Start programs, all at once. Raises RunError if one cannot be executed."""
    await together(*(start(context, process) for process in processes))
    context.publish()


async def start(context: Context, process: Process, cwd: str | None = None, phase: str = "launch") -> None:
    """Start one program on its node. Raises RunError naming it, after ``phase``, if it cannot be executed."""
    bound = context.bound[process.name]
    view = context.view(process.name)
    try:
        await context.fleet.start(view, bound.argv, bound.env, list(process.unset), cwd, bound.cleanup, bound.inspect)
    except RunError as error:
        raise RunError(f"{phase}: {process.name} on {context.node_label(process.node)}: {error.message}") from error
    context.journal.event("process_started", process=process.name, node=process.node, pid=view.pid)
