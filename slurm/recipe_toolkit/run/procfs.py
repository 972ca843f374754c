"""What Linux says of processes and ports, read from /proc."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_LISTEN = "0A"


@dataclass(frozen=True)
class Stat:
    """One process. ``ticks``: CPU time, user and system, in clock ticks. ``start``: ticks since boot."""

    pid: int
    parent: int
    state: str
    session: int
    ticks: int
    start: int


def stat(pid: int) -> Stat | None:
    """The process ``pid``, or None if there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command may hold spaces and parentheses: the fields begin after the last one.
    fields = text.rpartition(")")[2].split()
    return Stat(
        pid=pid,
        parent=int(fields[1]),
        state=fields[0],
        session=int(fields[3]),
        ticks=int(fields[11]) + int(fields[12]),
        start=int(fields[19]),
    )


def table() -> dict[int, Stat]:
    """Every process by pid."""
    found = (stat(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())  # noqa: PTH208
    return {item.pid: item for item in found if item is not None}


def descendants(roots: Iterable[int], processes: Mapping[int, Stat] | None = None) -> list[Stat]:
    """Every descendant of ``roots``, nearest first, without the roots and without zombies."""
    processes = table() if processes is None else processes
    children: dict[int, list[Stat]] = {}
    for item in processes.values():
        children.setdefault(item.parent, []).append(item)
    found: list[Stat] = []
    waiting = list(roots)
    while waiting:
        below = [item for pid in waiting for item in children.get(pid, ())]
        found += below
        waiting = [item.pid for item in below]
    return [item for item in found if item.state not in "ZX"]


@dataclass(frozen=True)
class Activity:
    """Signs of life of a process tree: CPU ticks, and bytes read and written so far."""

    ticks: int
    bytes: int


def activity(pids: Iterable[int]) -> Activity:
    """The sums over ``pids``; what may not be read counts 0."""
    ticks = moved = 0
    for pid in pids:
        item = stat(pid)
        ticks += item.ticks if item else 0
        try:
            lines = (PROC / str(pid) / "io").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        moved += sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
    return Activity(ticks, moved)


def threads(pids: Iterable[int]) -> dict[tuple[int, int], tuple[int, int]]:
    """For each thread of ``pids``, by process and thread: ns on a core, and ns in which it could run and had none.

    Empty for what has gone, and where the kernel does not count (``CONFIG_SCHED_INFO``).
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for pid in pids:
        folder = PROC / str(pid) / "task"
        try:
            names = os.listdir(folder)  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            try:
                ran, waited, _ = (folder / name / "schedstat").read_text(encoding="ascii").split()
            except (OSError, ValueError):
                continue
            found[pid, int(name)] = (int(ran), int(waited))
    return found


def listeners(port: int) -> dict[int, str]:
    """Socket inodes that listen on TCP ``port``, with their local address, of this network namespace."""
    found: dict[int, str] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, hex_port = fields[1].rpartition(":")
            if fields[3] == _LISTEN and int(hex_port, 16) == port:
                found[int(fields[9])] = _address(address)
    return found


def _address(text: str) -> str:
    # Four-byte words in the host's byte order, as the kernel prints them.
    words = bytes.fromhex(text)
    swapped = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)) if _LITTLE else words
    return socket.inet_ntop(socket.AF_INET if len(swapped) == 4 else socket.AF_INET6, swapped)


_LITTLE = socket.htons(1) != 1


def holds_socket(pid: int, inodes: Iterable[int]) -> bool:
    """Whether ``pid`` has one of the sockets open; False too if its files may not be read."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    folder = PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(folder / name) in wanted:  # noqa: PTH115
                return True
        except OSError:
            continue
    return False


def command(pid: int) -> str:
    """The command line, cut to 200 characters; empty if it is gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200]


def owner(port: int) -> int | None:
    """The pid of a process that listens on ``port``, if this user may see it."""
    inodes = listeners(port)
    if not inodes:
        return None
    return next((pid for pid in table() if holds_socket(pid, inodes)), None)
