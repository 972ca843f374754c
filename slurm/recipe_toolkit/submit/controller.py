"""The process that stands for a job on this machine: which one it is, whether it lives, how it is ended.

A pid alone is no name: it is used again. A controller is its pid, its start time in ticks since boot,
the boot and the host.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import SubmitError
from recipe_toolkit.run import procfs


def identify(pid: int) -> dict[str, Any]:
    """What ``job.json`` says of the controller ``pid``. Raises SubmitError if it has ended already."""
    found = procfs.stat(pid)
    if found is None:
        raise SubmitError(f"the local controller, process {pid}, ended at once")
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "start_ticks": found.start}


def elsewhere(job: Mapping[str, Any]) -> str | None:
    """The host that the job runs on, if that is not this one."""
    host = str(job.get("host"))
    return None if host == socket.gethostname() else host


def lives(job: Mapping[str, Any]) -> bool:
    """Whether the controller, or an agent that has outlived it, runs on this host."""
    return alive(job) or bool(members(job))


def alive(job: Mapping[str, Any]) -> bool:
    """Whether this very controller runs on this host."""
    if job.get("boot") not in (None, _boot()):
        return False
    found = procfs.stat(int(job["pid"]))
    return found is not None and found.start == job["start_ticks"] and found.state not in "ZX"


def members(job: Mapping[str, Any]) -> list[int]:
    """The pids of the job's session: the controller, and its agents also when they have outlived it."""
    if job.get("boot") not in (None, _boot()):
        return []
    pid, start = int(job["pid"]), int(job["start_ticks"])
    found = procfs.table().values()
    # Only a process that started after the controller can belong to its session.
    return [item.pid for item in found if item.session == pid and item.start >= start and item.state not in "ZX"]


def terminate(job: Mapping[str, Any]) -> bool:
    """Ask the job to end: TERM, that the controller hands to its agents. False if there is nobody to ask.

    Raises SubmitError if the job is not this user's.
    """
    pids = [int(job["pid"])] if alive(job) else members(job)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            raise SubmitError(f"process {pid} belongs to another user") from error
    return bool(pids)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
