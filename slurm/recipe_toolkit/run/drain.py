"""Phase *drain*: everything is stopped, in parallel, within one deadline; what is left to write is written."""

from __future__ import annotations

import asyncio
import logging
import time

from recipe_toolkit.errors import RunError
from recipe_toolkit.results.manifest import write_manifest
from recipe_toolkit.run.context import Clock, Context
from recipe_toolkit.run.control import PROTOCOL
from recipe_toolkit.rundir import write_json

_KILL_S = 4.0  # of the deadline: for KILL, and for writing
_LEAVE_S = 10.0

log = logging.getLogger("recipe_toolkit.run")


async def drain(context: Context, budget: float, hurry: asyncio.Event) -> list[str]:
    """Stop all programs on all nodes: TERM at once, KILL to what is left shortly before ``budget`` seconds.

    ``hurry``: kills at once (the scheduler is about to). Returns what survived, each named with its node.
    """
    grace = max(budget - _KILL_S, budget * 0.5)
    started = time.monotonic()
    orders = asyncio.ensure_future(context.fleet.everywhere("stop", budget + _LEAVE_S, names=None, grace=grace))
    waker = asyncio.ensure_future(hurry.wait())
    await asyncio.wait({orders, waker}, return_when=asyncio.FIRST_COMPLETED)
    if not orders.done():
        orders.cancel()
        log.info("told to stop again: killing")
        orders = asyncio.ensure_future(context.fleet.everywhere("stop", _LEAVE_S, names=None, grace=0))
    waker.cancel()
    survivors: list[str] = []
    killed: list[str] = []
    for index, reply in (await orders).items():
        where = context.node_label(index)
        if isinstance(reply, RunError):
            log.warning("drain: %s", reply.message)
            if context.fleet.nodes[index].lost is None:
                survivors.append(f"everything on {where} ({reply.message})")
            continue
        survivors += [f"{name} on {where} (pid {', '.join(map(str, pids))})" for name, pids in reply["left"].items()]
        survivors += [f"what {name} on {where} left ({how})" for name, how in reply["unclean"].items()]
        killed += [f"{name} on {where}: {item}" for name, items in reply["killed"].items() for item in items]
    for view in context.fleet.processes.values():
        if view.state in ("starting", "ready", "running"):
            # Its node is lost, so nobody has told; its agent, or its keeper, kills it.
            view.state = "killed"
    for item in killed:
        log.warning("drain: did not end at TERM, and was killed: %s", item)
    seconds = round(time.monotonic() - started, 2)
    context.journal.event("drained", seconds=seconds, survivors=survivors, killed=killed)
    context.publish()
    return survivors


async def dismiss(context: Context, state: str, message: str | None) -> None:
    """Tell the agents how the run ended and wait until they have left."""
    for node in context.fleet.nodes.values():
        node.dismissed = node.lost is None
    await context.fleet.everywhere("end", _LEAVE_S, state=state, message=message)
    clock = Clock(_LEAVE_S)
    while not clock.over() and any(node.lost is None for node in context.fleet.nodes.values()):
        await asyncio.sleep(0.02)


def finish(context: Context, state: str, message: str | None) -> str | None:
    """The last state and event, and the manifest, which counts them too; what was wrong if not all is written."""
    context.journal.release()
    context.publish()
    # An agent that comes too late need not wait for a lead that is gone.
    ended = {"protocol": PROTOCOL, "job_id": context.where.job_id, "ended": state, "message": message}
    context.journal.event("run_ended", state=state)
    context.journal.update(state=state, phase="end", message=message)
    try:
        write_json(context.attempt.lead, ended)
        context.journal.close()
        write_manifest(context.run)
    except OSError as error:
        log.error("the run folder is not complete: %s", error)
        return f"the run folder could not be written: {error}"
    return None
