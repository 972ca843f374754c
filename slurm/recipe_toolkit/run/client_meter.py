"""What a program takes of its node, from one reading of its threads to the next."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from recipe_toolkit.run import procfs

_NS = 1e9


class Meter:
    """Differences between readings of one program's threads. ``only``: of processes with such a title; empty: all."""

    def __init__(self, only: str = "") -> None:
        self._only = re.compile(only) if only else None
        self._last: Mapping[tuple[int, int], tuple[int, int]] = {}
        self._at = 0.0

    def sample(self, pids: Callable[[], Iterable[int]]) -> dict[str, Any]:
        """``t``: now, seconds since 1970; ``taken``: since the last time (:meth:`read`). Takes a while."""
        chosen = (pid for pid in pids() if self._only is None or self._only.fullmatch(procfs.command(pid)))
        threads = procfs.threads(chosen)
        return {"t": time.time(), "taken": self.read(time.monotonic(), threads)}

    def read(self, now: float, threads: Mapping[tuple[int, int], tuple[int, int]]) -> dict[str, float] | None:
        """``cores`` of all threads, and the share of the time that the ``busiest`` ran and was ``waiting`` for a core.

        ``now``: of a clock that does not jump, seconds. None of the first reading, and where nothing is known.
        """
        last, before, self._last, self._at = self._last, self._at, threads, now
        span = (now - before) * _NS
        if not last or not threads or span <= 0:
            return None
        # A thread that is new has done all of it since.
        taken = []
        for key, (ran, waited) in threads.items():
            before_ran, before_waited = last.get(key, (0, 0))
            taken.append((ran - before_ran, waited - before_waited))
        ran, waited = max(taken)
        return {"cores": sum(item[0] for item in taken) / span, "busiest": ran / span, "waiting": waited / span}
