"""The logs of a run, and their ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import UnknownRun
from recipe_toolkit.rundir import RunDir

BLOCK = 1 << 16


@dataclass(frozen=True)
class Log:
    """One log file. ``name``: the process, ``agent-N``, or ``job``; ``node`` is None for the job's."""

    name: str
    path: Path
    node: int | None = None

    @property
    def bytes(self) -> int:
        """Its size now; 0 if it is gone."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {"name": self.name, "node": self.node, "bytes": self.bytes, "path": str(self.path)}


def list_logs(run: RunDir, attempt: int | None = None) -> list[Log]:
    """The logs of an attempt (the last one), by node and name, and those of the job.

    Raises UnknownRun if there is no such attempt.
    """
    attempts = run.attempts()
    if attempt is not None and attempt not in attempts:
        there = ", ".join(map(str, attempts)) or "none yet"
        raise UnknownRun(f"{run.id} has no attempt {attempt}", hint=f"attempts: {there}")
    found = []
    if attempts:
        folder = run.attempt(attempts[-1] if attempt is None else attempt).root / "nodes"
        for node in sorted(folder.glob("*")):
            if not node.name.isdigit():
                continue
            index = int(node.name)
            for path in sorted(node.glob("*.log")):
                name = f"agent-{index}" if path.name == "agent.log" else path.name.removesuffix(".log")
                found.append(Log(name, path, index))
    return found + [Log("job", path) for path in _job_logs(run)]


def _job_logs(run: RunDir) -> list[Path]:
    return sorted([*run.job_folder.glob("*_log.out"), *run.job_folder.glob("*_log.err"), *run.job_folder.glob("*.log")])


def choose_logs(run: RunDir, name: str, attempt: int | None = None) -> list[Log]:
    """The logs called ``name``. Raises UnknownRun with those that there are."""
    logs = list_logs(run, attempt)
    chosen = [log for log in logs if log.name == name]
    if chosen:
        return chosen
    names = ", ".join(dict.fromkeys(log.name for log in logs)) or "none yet"
    raise UnknownRun(f"{run.id} has no log {name!r}", hint=f"logs: {names}")


def tail(path: Path, lines: int | None) -> tuple[bytes, int]:
    """The last ``lines`` lines of a file (None: all), and its size then. Raises OSError."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if lines is None:
            file.seek(0)
            return file.read(end), end
        start, data = end, b""
        # One newline more than lines: the one before the first.
        while start > 0 and data.count(b"\n") <= lines:
            step = min(BLOCK, start)
            start -= step
            file.seek(start)
            data = file.read(step) + data
        return b"".join(data.splitlines(keepends=True)[-lines:] if lines else []), end


def follow(logs: list[Log], lines: int | None, ended: Callable[[], bool]) -> Iterator[tuple[Log, bytes]]:
    """What the files hold, then what is added, until ``ended`` and nothing more has come."""
    positions: dict[Path, int] = {}
    for log in logs:
        text, positions[log.path] = tail(log.path, lines)
        if text:
            yield log, text
    while True:
        last = ended()  # before the read: what was written until then is still printed
        for log in logs:
            with log.path.open("rb") as file:
                file.seek(positions[log.path])
                while text := file.read(BLOCK):
                    positions[log.path] += len(text)
                    yield log, text
        if last:
            return
        time.sleep(0.3)
