"""The logs of a run, and their ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import UnknownRun
from recipe_toolkit.rundir import RunDir, read_json

BLOCK = 1 << 16
RELIST_S = 1.0


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


def is_pattern(word: str) -> bool:
    """Whether a word stands for any number of names."""
    return any(char in word for char in "*?[")


def choose_logs(run: RunDir, words: Sequence[str], attempt: int | None = None, *, expected: bool = False) -> list[Log]:
    """The logs whose names are, or match, one of ``words``, in the order of :func:`list_logs`.

    ``expected``: a word may also mean a log that will only be written. Raises UnknownRun for a word that
    means none, with the names that there are.
    """
    logs = list_logs(run, attempt)
    names = dict.fromkeys([*(log.name for log in logs), *(_planned(run) if expected else ())])
    for word in words:
        if word != "*" and not any(fnmatchcase(name, word) for name in names):
            there = ", ".join(names) or "none yet"
            raise UnknownRun(f"{run.id} has no log {word!r}", hint=f"logs: {there}")
    return [log for log in logs if any(fnmatchcase(log.name, word) for word in words)]


def _planned(run: RunDir) -> list[str]:
    """The names of the logs that the run will have, as far as its plan says."""
    try:
        plan = read_json(run.plan)
        processes = [*plan["processes"], *(point["process"] for point in plan["benchmarks"])]
        names = [str(process["name"]) for process in processes]
        return [*names, *(f"agent-{node['index']}" for node in plan["nodes"]), "job"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


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


def follow_logs(
    choose: Callable[[], list[Log]], lines: int | None, ended: Callable[[], bool]
) -> Iterator[tuple[Log, bytes]]:
    """What the files hold, then what is added, until ``ended`` and nothing more has come.

    ``choose`` says which files, again and again: a log that appears later is followed from its beginning.
    """
    positions: dict[Path, int] = {}
    logs: list[Log] = []
    listed = 0.0
    while True:
        last = ended()  # before the read: what was written until then is still printed
        if last or not logs or time.monotonic() - listed > RELIST_S:
            first, logs, listed = listed == 0.0, choose(), time.monotonic()
            for log in logs:
                if log.path not in positions:
                    text, positions[log.path] = tail(log.path, lines if first else None)
                    if text:
                        yield log, text
        for log in logs:
            with log.path.open("rb") as file:
                file.seek(positions[log.path])
                while text := file.read(BLOCK):
                    positions[log.path] += len(text)
                    yield log, text
        if last:
            return
        time.sleep(0.3)
