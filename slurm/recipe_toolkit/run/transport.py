"""Whether NCCL took RDMA where it was asked for: it falls back to TCP by itself, and says so in its log alone."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.expect import expect_from_json
from recipe_toolkit.plan.model import Process
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.tasks import together

_WIDTH = 300
# NCCL's INFO lines: "NET/IB : Using [0]mlx5_0:1/RoCE …", "Using network IB", "… via NET/Socket/0".
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


async def require_rdma(context: Context) -> None:
    """Look into the logs of engines that span nodes. Raises RunError where one of them uses NET/Socket."""
    expect = expect_from_json(context.plan.check)
    if not expect.bind or not expect.nccl_rdma:
        return
    spanning = [instance.processes for instance in context.plan.instances if len(instance.processes) > 1]
    await together(*(_look(context, context.plan.process(name)) for names in spanning for name in names))


async def _look(context: Context, process: Process) -> None:
    found = (await context.fleet.call(process.node, "networks", name=process.name))["networks"]
    context.journal.event("nccl", process=process.name, networks=sorted(found))
    if "Socket" in found:
        raise RunError(
            f"prove: {process.name} on {context.node_label(process.node)} uses NCCL's NET/Socket, and RDMA was asked "
            f"for: {found['Socket']}\nlog: {context.view(process.name).log}",
            hint="is /dev/infiniband in the container, memlock unlimited, libibverbs in the image? See `recipe check`",
        )
