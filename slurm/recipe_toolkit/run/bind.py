"""Phase *bind*: the agents meet, and the plan's references become addresses, GPU ids and ports."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.search import clients
from recipe_toolkit.plan.values import Bindings, NodeBinding
from recipe_toolkit.run import environment, facts, leftovers
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.preflight import preflight
from recipe_toolkit.run.tasks import together
from recipe_toolkit.rundir import write_json

_SWEEP_S = 60.0  # for each container

log = logging.getLogger("recipe_toolkit.run")


async def bind(context: Context) -> None:
    """Gather the agents, compare their facts, reserve ports, write bound.json.

    Raises DeadlineError naming the agents that are missing, RunError if a node cannot take part or must not.
    """
    plan, fleet = context.plan, context.fleet
    await fleet.gather(plan.deadlines.bind, context.where.nodelist)
    found = {index: node.facts for index, node in fleet.nodes.items()}
    problems = [problem for _, node in sorted(fleet.nodes.items()) for problem in node.problems]
    differences = facts.disagreements(plan, found)
    problems += [f"{what}\nhint: {remedy}" for what, remedy in differences]
    if problems:
        raise RunError("bind: " + "\n".join(problems))
    await preflight(context)
    ports = await reserve(context, plan.processes)
    nodes = tuple(_node(context, node.index, found[node.index]) for node in plan.nodes)
    context.bindings = Bindings(str(context.run.root), nodes, ports, context.where.job_id)
    rebind(context, [*plan.processes, *clients(plan)])
    if context.where.attempt > 0:
        await together(*(_sweep(context, node.index) for node in plan.nodes))


async def _sweep(context: Context, node: int) -> None:
    """Remove the containers of an earlier attempt, whose names are those of this one. Raises RunError."""
    mine = leftovers.programs([context.bound[process.name] for process in facts.on_node(context.plan, node)])
    if not mine:
        return
    try:
        reply = await context.fleet.call(node, "sweep", (len(mine) + 1) * _SWEEP_S, programs=mine)
    except RunError as error:
        raise RunError(f"bind: {context.node_label(node)}: {error.message}") from error
    if reply["found"]:
        log.info("removed on node %d what an earlier attempt has left: %s", node, ", ".join(reply["found"]))
        context.journal.event("leftovers_removed", node=node, processes=reply["found"])


async def reserve(context: Context, processes: Iterable[Process]) -> dict[str, dict[str, int]]:
    """First port of each block of each process, from the agents of their nodes. Raises RunError."""
    wanted: dict[int, dict[str, dict[str, int]]] = {}
    for process in processes:
        if process.ports:
            wanted.setdefault(process.node, {})[process.name] = dict(process.ports)
    replies = await together(*(context.fleet.call(node, "reserve", blocks=blocks) for node, blocks in wanted.items()))
    return {process: blocks for reply in replies for process, blocks in reply["ports"].items()}


def rebind(context: Context, processes: Iterable[Process]) -> None:
    """Resolve the processes against the bindings and write bound.json anew."""
    assert context.bindings is not None
    for process in processes:
        bound = bind_process(process, context.bindings)
        bound.env.update(_direct(bound.env, context.bindings))
        context.bound[process.name] = bound
    write_json(context.attempt.bound, _bound_json(context))


def _direct(env: dict[str, str], bindings: Bindings) -> dict[str, str]:
    """The nodes' addresses as exceptions from a proxy: a login shell's ``http_proxy`` reaches router and client too."""
    addresses = ",".join(dict.fromkeys(node.address for node in bindings.nodes))
    return {key: f"{env[key]},{addresses}" if env.get(key) else addresses for key in environment.NO_PROXY}


def _node(context: Context, index: int, found: dict[str, Any]) -> NodeBinding:
    return NodeBinding(
        name=found["host"],
        address=found["address"],
        interface=found["interface"],
        python=found["python"],
        devices=tuple(found["devices"]),
        programs={name: path for name, path in found["programs"].items() if path},
        package=found["toolkit_path"],
        host=found["node_name"],
        user=found["user"],
        folder=str(context.attempt.node(index)),
        paths=frozenset(path for path, there in found["paths"].items() if there),
    )


def _bound_json(context: Context) -> dict[str, Any]:
    assert context.bindings is not None
    every = {p.name: p for p in (*context.plan.processes, *(point.process for point in context.plan.benchmarks))}
    return {
        "schema": 1,
        "attempt": context.where.attempt,
        "nodes": [
            {
                "index": index,
                "name": node.name,
                "address": node.address,
                "interface": node.interface,
                "python": node.python,
                "devices": list(node.devices),
                "programs": dict(node.programs),
            }
            for index, node in enumerate(context.bindings.nodes)
        ],
        "processes": {
            name: {
                "node": every[name].node,
                "argv": list(bound.argv),
                "cleanup": bound.cleanup,
                "inspect": bound.inspect,
                "env": dict(bound.env),
                "unset": list(every[name].unset),
                "ports": {key: list(value) for key, value in bound.ports.items()},
                "log": context.view(name).log,
            }
            for name, bound in context.bound.items()
        },
    }
