"""A preflight's part of a Slurm step: look at this node, wait for the others, send pings to them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from recipe_toolkit.check.build import ping_request
from recipe_toolkit.check.lanes import pings
from recipe_toolkit.check.model import Unknown
from recipe_toolkit.check.parse import parse
from recipe_toolkit.plan.expect import expect_from_json
from recipe_toolkit.run import probe
from recipe_toolkit.rundir import read_json, write_json

MEET_S = 180.0  # for the others' answers
_POLL_S = 0.3


def look(folder: str) -> None:
    """Write this node's answers into ``answers`` and ``pings`` of the folder, which all nodes share."""
    root = Path(folder)
    order = read_json(root / "order.json")
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    write_json(root / "answers" / f"{name}.json", probe.answer(order["request"]))
    wanted: list[dict[str, object]] = []
    if order["jumbo"]:
        expect = expect_from_json(order["expect"])
        nodes = [parse(other, [answer]) for other, answer in sorted(_meet(root / "answers", order["nodes"]).items())]
        try:
            wanted = pings(expect, nodes).get(name, [])
        except Unknown:
            wanted = []
    write_json(root / "pings" / f"{name}.json", probe.answer(ping_request(wanted)))


def _meet(folder: Path, count: int) -> dict[str, Any]:
    """The answers of all nodes, or of those that have come in time."""
    limit = time.monotonic() + MEET_S
    while len(found := answers(folder)) < count and time.monotonic() < limit:
        time.sleep(_POLL_S)
    return found


def answers(folder: Path) -> dict[str, Any]:
    """Node to its answer, for those that are there."""
    found = {}
    # Reading the folder makes an NFS client forget that a file was not there a moment ago.
    for name in sorted(os.listdir(folder)):  # noqa: PTH208
        if name.endswith(".json") and not name.startswith("."):
            found[name.removesuffix(".json")] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found
