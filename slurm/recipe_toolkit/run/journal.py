"""What the run says of itself: ``events.jsonl`` and ``state.json``, written by the lead alone."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import queue
import threading
import time
from typing import Any

from recipe_toolkit.rundir import RunDir, write_json

_CLOSE_S = 30.0
_RESERVE = 64 * 1024  # bytes: what is written of a run's end, on a disk that has filled up


class Journal:
    """Appends events and replaces the state, in a thread: a slow file system must not stop the heartbeat."""

    def __init__(self, run: RunDir, attempt: int) -> None:
        self._run = run
        self.state: dict[str, Any] = {
            "schema": 1,
            "state": "running",
            "phase": "bind",
            "attempt": attempt,
            "updated": time.time(),
            "message": None,
            "valid": None,
            "nodes": [],
            "processes": {},
            "points": {},
        }
        self._work: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._error: OSError | None = None
        self._reserve = run.root / ".state.json.reserve"
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(os.urandom(_RESERVE))  # what file systems cannot compress
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def event(self, event: str, **fields: Any) -> None:
        """Note that something happened now."""
        self._work.put(("event", {"t": round(time.time(), 3), "event": event, **fields}))

    def update(self, **fields: Any) -> None:
        """Change fields of the state and have it written."""
        self.state.update(fields, updated=round(time.time(), 3))
        self._work.put(("state", copy.deepcopy(self.state)))

    def release(self) -> None:
        """Give up the room that was kept for the run's end, once nothing else writes."""
        with contextlib.suppress(OSError):
            self._reserve.unlink()

    def close(self) -> None:
        """Write what is left. Raises OSError if anything could not be written."""
        self._work.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise OSError(f"{self._run.events} could not be written within {_CLOSE_S:g} s")
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        ended = False
        while not ended:
            batch = [self._work.get()]
            while not self._work.empty():
                batch.append(self._work.get())
            ended = None in batch
            items = [item for item in batch if item is not None]
            for write in (self._append, self._replace):
                try:
                    write(items)
                except OSError as error:
                    # The run goes on: its processes must still be stopped, and close() tells.
                    self._error = error

    def _append(self, batch: list[tuple[str, Any]]) -> None:
        lines = [json.dumps(item, ensure_ascii=False) + "\n" for kind, item in batch if kind == "event"]
        if lines:
            with self._run.events.open("a", encoding="utf-8") as file:
                file.writelines(lines)

    def _replace(self, batch: list[tuple[str, Any]]) -> None:
        states = [item for kind, item in batch if kind == "state"]
        if states:
            write_json(self._run.state, states[-1])
