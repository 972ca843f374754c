"""All checks, causes before what follows from them."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_toolkit.check import flags, hardware, lanes, software
from recipe_toolkit.check.model import Check

REACH = Check(
    "SSH.BATCH",
    "node",
    "error",
    "each node answers without asking for anything",
    "a copy or a start that hangs at a prompt",
    "ssh -o BatchMode=yes, python3",
    "`ssh NODE true` as the same user says why; python3 must be on the node",
    (),
)
CATALOG: tuple[Check, ...] = (REACH, *hardware.CHECKS, *lanes.CHECKS, *software.CHECKS, *flags.CHECKS)
BY_ID = {check.id: check for check in CATALOG}


def select(only: tuple[str, ...], deep: bool, bind: bool = False) -> Iterator[Check]:
    """The checks that are wanted: all but the deep ones, those named, or those that a job judges."""
    for check in CATALOG:
        if (check.id in only if only else not bind or check.bind) and (deep or not check.deep):
            yield check
