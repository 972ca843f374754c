"""Which way the bytes went: NCCL and UCX choose a network by themselves, and say which in their logs alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.expect import expect_from_json
from recipe_toolkit.plan.model import Process
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.tasks import together

_WIDTH = 300
# NCCL's INFO lines: "NET/IB : Using [0]mlx5_0:1/RoCE …", "Using network IB", "… via NET/Socket/0".
_UCX_RULE = re.compile(r"\+-+\+")
# UCX_PROTO_INFO=y draws a table for each operation on each endpoint: who, what, and a row for each range of sizes.
_UCX_CELLS = re.compile(r"\| (?P<cells>[^|]+(?:\|[^|]+)*)\|\s*$")
_NET = re.compile(r"NCCL INFO .*(?:NET/(?P<a>\w+) : Using|Using network (?P<b>\w+)|via NET/(?P<c>\w+))")

log = logging.getLogger("recipe_toolkit.run")


def networks(path: Path) -> dict[str, str]:
    """Networks that NCCL tells of in a log, each with the first line that names it. Raises OSError."""
    found: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            match = _NET.search(line)
            if match:
                found.setdefault(match["a"] or match["b"] or match["c"], line.strip()[:_WIDTH])
    return found


def kv_reads(path: Path) -> list[str]:
    """How UCX reads the memory of other processes, by its own tables in an engine's log.

    Each is ``HOW over TRANSPORT/DEVICE into MEMORY``, for the largest messages (``zero-copy over cuda_ipc/cuda into
    cuda/GPU1 from cuda``); reads of a process from itself are left out. Empty without UCX_PROTO_INFO. Raises OSError.
    """
    found: dict[str, None] = {}
    table: list[list[str]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            match = _UCX_CELLS.search(line) if "|" in line else None
            if match:
                table.append([cell.strip() for cell in match["cells"].split("|")])
            elif not _UCX_RULE.search(line):
                table = []  # lines of others stand between tables, not in them
            row = table[-1] if table else []
            if len(row) == 3 and row[0].endswith("..inf"):
                found.update(dict.fromkeys(_read_of(table)))
                table = []
    return list(found)


def _read_of(table: list[list[str]]) -> list[str]:
    titles = [row[0] for row in table if len(row) == 1]
    if len(titles) < 2 or " self cfg#" in titles[-2] or "remote memory read" not in titles[-1]:
        return []
    _, how, over = table[-1]
    return [f"{how} over {over}{titles[-1].partition(')')[2] or titles[-1].partition('ucp_get*')[2]}"]


# What an agent is asked of a program's log.
READERS: dict[str, Callable[[Path], Any]] = {"networks": networks, "kv_reads": kv_reads}


async def kv_transports(context: Context) -> dict[str, list[str]]:
    """Role to how its engines pulled KV (kv_reads), of those that tell."""
    told = [process for process in context.plan.processes if process.env.get("UCX_PROTO_INFO") == "y"]
    replies = await together(*(_ask(context, process, "kv_reads") for process in told))
    found: dict[str, set[str]] = {}
    for process, reply in zip(told, replies, strict=True):
        found.setdefault(process.role, set()).update(reply)
    return {role: sorted(reads) for role, reads in found.items()}


async def require_rdma(context: Context) -> None:
    """Look into the logs of engines that span nodes. Raises RunError where one of them uses NET/Socket."""
    expect = expect_from_json(context.plan.check)
    if not expect.bind or not expect.nccl_rdma:
        return
    spanning = [instance.processes for instance in context.plan.instances if len(instance.processes) > 1]
    await together(*(_look(context, context.plan.process(name)) for names in spanning for name in names))


async def _look(context: Context, process: Process) -> None:
    found = await _ask(context, process, "networks")
    context.journal.event("nccl", process=process.name, networks=sorted(found))
    if "Socket" in found:
        raise RunError(
            f"prove: {process.name} on {context.node_label(process.node)} uses NCCL's NET/Socket, and RDMA was asked "
            f"for: {found['Socket']}\nlog: {context.view(process.name).log}",
            hint="is /dev/infiniband in the container, memlock unlimited, libibverbs in the image? See `recipe check`",
        )


async def _ask(context: Context, process: Process, what: str) -> Any:
    return (await context.fleet.call(process.node, "transport", name=process.name, what=what))[what]
