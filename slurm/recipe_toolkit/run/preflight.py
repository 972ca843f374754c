"""The preflight inside a job: the agents look at their nodes, the lead judges, before any engine starts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from recipe_toolkit.check.build import ping_request, request
from recipe_toolkit.check.catalog import BY_ID, select
from recipe_toolkit.check.evaluate import evaluate
from recipe_toolkit.check.facts import Node
from recipe_toolkit.check.lanes import pings
from recipe_toolkit.check.model import Check, Outcome, Unknown
from recipe_toolkit.check.parse import parse
from recipe_toolkit.check.text import names, said
from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.expect import Expect, expect_from_json
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.control import Message
from recipe_toolkit.rundir import write_json

log = logging.getLogger("recipe_toolkit.run")


async def preflight(context: Context) -> None:
    """Ask every agent and judge the nodes; the report is kept beside bound.json.

    Raises RunError naming each node that must not serve. Warnings, and what could not be told, are events.
    """
    expect = expect_from_json(context.plan.check)
    if not context.plan.check or not expect.bind:
        return
    checks = list(select((), deep=False, bind=True))
    report = evaluate(expect, await _nodes(context, expect, checks), checks)
    write_json(context.attempt.check, report.to_json())
    errors = []
    for outcome in report.outcomes:
        if outcome.status == "failed" and outcome.check.severity == "error":
            errors.append("\n".join(_told(outcome)))
        elif outcome.status in ("failed", "unknown"):
            for line in _told(outcome):
                log.warning("%s", line)
            context.journal.event("check", check=outcome.check.id, status=outcome.status, findings=_findings(outcome))
    context.journal.event(
        "checked", **{name: report.count(name) for name in ("passed", "failed", "unknown", "skipped")}
    )
    if errors:
        raise RunError("\n".join(f"bind: {text}" for text in errors))


def _findings(outcome: Outcome) -> list[str]:
    return [f"{names(item.nodes)}: {said(item)}" for item in outcome.findings]


def _told(outcome: Outcome) -> list[str]:
    check = outcome.check
    return [*(f"{check.id}: {line}" for line in _findings(outcome)), f"hint: {check.remedy}"]


async def _nodes(context: Context, expect: Expect, checks: Sequence[Check]) -> list[Node]:
    indices = [node.index for node in context.plan.nodes]
    if context.where.scheduler == "local":
        indices = indices[:1]  # they are all this machine
    asked = request(expect, checks)
    told = [item for item in await asyncio.gather(*(_ask(context, index, asked) for index in indices)) if item]
    nodes = [parse(item.name, [item.answer], item.clock) for item in told]
    if BY_ID["LANE.JUMBO"].applies(expect):
        wanted = _pings(expect, nodes)
        sent = [item for item in told if item.name in wanted]
        replies = await asyncio.gather(*(_ask(context, item.index, ping_request(wanted[item.name])) for item in sent))
        further = {reply.name: [reply.answer] for reply in replies if reply}
        nodes = [parse(item.name, [item.answer, *further.get(item.name, ())], item.clock) for item in told]
    for item, node in zip(told, nodes, strict=True):
        node.taken = _taken(context, item.index)
    return nodes


def _taken(context: Context, index: int) -> frozenset[str]:
    """The ids of the GPUs that the plan's processes get on a node; local nodes are all this machine."""
    return frozenset(
        context.fleet.nodes[process.node].facts["devices"][slot]
        for process in context.plan.processes
        if process.node == index or context.where.scheduler == "local"
        for slot in process.gpus
    )


@dataclass(frozen=True)
class _Answer:
    """A node's answer, and the lead's clock before and after it."""

    index: int
    name: str
    answer: Message
    clock: tuple[float, float]


def _pings(expect: Expect, nodes: Sequence[Node]) -> dict[str, list[dict[str, object]]]:
    try:
        return pings(expect, nodes)
    except Unknown:
        return {}


async def _ask(context: Context, index: int, wanted: Message) -> _Answer | None:
    """The answer of a node's probe; None, and an event, where there is none in time."""
    began = time.time()
    try:
        answer = await context.fleet.call(index, "check", context.plan.deadlines.bind, request=wanted)
    except RunError as error:
        log.warning("%s was not checked: %s", context.node_label(index), error.message)
        context.journal.event("not_checked", node=index, reason=error.message)
        return None
    return _Answer(index, context.node_label(index), answer, (began, time.time()))
