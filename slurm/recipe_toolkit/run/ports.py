"""Blocks of TCP ports, reserved for a run.

A port is reserved by binding an abstract Unix socket named after it. Such a name is unique in its
network namespace, exactly as the port is, needs no folder, no permission and no clean-up, and is
free again when the process that holds it ends, however it ends. Two runs of two users on one node
cannot be given the same port.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path

from recipe_toolkit.errors import RunError

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15000
_ENOUGH = 2000


def port_range(ephemeral: tuple[int, int]) -> tuple[int, int]:
    """Ports that the kernel does not give to outgoing connections: (first, last + 1).

    Below its range where there is room, else above, else 15000 to 32768 and probing alone decides.
    """
    low, high = ephemeral
    if min(low, 32768) - _LOWEST >= _ENOUGH:
        return _LOWEST, min(low, 32768)
    if 65536 - (high + 1) >= _ENOUGH:
        return high + 1, 65536
    return _LOWEST, 32768


def ephemeral_range() -> tuple[int, int]:
    """The kernel's range for outgoing connections; Linux's default if it cannot be read."""
    try:
        low, high = _RANGE_FILE.read_text(encoding="ascii").split()
    except OSError:
        return 32768, 60999
    return int(low), int(high)


class PortBook:
    """The ports that this agent holds. ``seed``: two runs with different seeds search from different places."""

    def __init__(self, address: str, seed: str, limits: tuple[int, int] | None = None) -> None:
        self._address = address
        self._first, self._end = limits or port_range(ephemeral_range())
        digest = hashlib.sha256(seed.encode()).digest()
        self._next = self._first + int.from_bytes(digest[:4], "big") % (self._end - self._first)
        self._locks: dict[int, socket.socket] = {}

    def reserve(self, blocks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """First port of a block of consecutive ports for each ``process → block → size``.

        Raises RunError when the range is exhausted. What was held before stays held.
        """
        return {
            process: {name: self._block(size) for name, size in wanted.items()} for process, wanted in blocks.items()
        }

    def release(self) -> None:
        """Give all ports back."""
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def _block(self, size: int) -> int:
        for _ in range(self._end - self._first):
            start = self._next
            if start + size > self._end:
                self._next = self._first
                continue
            taken = self._take(start, size)
            self._next = start + (size if taken == size else taken + 1)
            if taken == size:
                return start
        raise RunError(
            f"no {size} consecutive free ports between {self._first} and {self._end - 1} on {self._address}",
            hint="end other runs on this node, or narrow net.ipv4.ip_local_port_range",
        )

    def _take(self, start: int, size: int) -> int:
        """Lock ports from ``start``; all or none. How many were free before the first that is not."""
        locks: dict[int, socket.socket] = {}
        for port in range(start, start + size):
            lock = _lock(port)
            if lock is not None and not _is_free(port):
                lock.close()
                lock = None
            if lock is None:
                for held in locks.values():
                    held.close()
                return port - start
            locks[port] = lock
        self._locks.update(locks)
        return size


def _lock(port: int) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0recipe-toolkit/port/{port}")
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return lock


def _is_free(port: int) -> bool:
    """Whether nobody listens on the port, on any address of this host (vLLM binds some on all)."""
    for family, everywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 here
        with probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((everywhere, port))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    continue
                return False
    return True
