"""The process that stands for a job on hosts without a scheduler: ``python -m …submit.ssh_controller RUN``.

It holds an ssh to each host, by whose stdin the agents are warned of the time limit, ended, or, when it is gone
itself, end by themselves. TERM is `recipe cancel`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit.run.environment import kill_wait_s
from recipe_toolkit.run.seat import BEAT_S, MARK
from recipe_toolkit.rundir import RunDir, read_json
from recipe_toolkit.submit.folder import write_end
from recipe_toolkit.submit.record import read_record

_POLL_S = 0.2
_LATE_S = 20.0  # from KILL, or the lead's end, to the end of a connection
_FOLLOW_S = 60.0  # for the other agents, when the lead's has ended


class Controller:
    """The connections of one run. ``asked``: grows when the run is to end."""

    def __init__(self, run: RunDir, seats: dict[str, Any], asked: Sequence[int]) -> None:
        self._asked = asked
        self._run, self._hosts = run, seats["hosts"]
        env = {name: os.environ[name] for name in seats["secrets"] if name in os.environ}
        if "RECIPE_KILL_WAIT" in os.environ:
            env["RECIPE_KILL_WAIT"] = os.environ["RECIPE_KILL_WAIT"]
        began = time.monotonic()
        patience = kill_wait_s(os.environ) + _LATE_S
        # What is due when; each is done once.
        self._due: list[tuple[float, str, str]] = [
            (began + seats["warn_s"], "USR2", "the time limit is near"),
            (began + seats["limit_s"], "TERM", "the time limit is reached"),
            (began + seats["limit_s"] + patience, "KILL", "the agents have not ended"),
        ]
        self._patience = patience
        self._cancelled, self._led = False, True
        self._why: str | None = None  # the run ends before it began
        self._lines = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=self._log(index), stderr=subprocess.STDOUT)
            for index, argv in enumerate(seats["argv"])
        ]
        for index in range(len(self._lines)):
            order = {**seats["order"], "index": index, "job_id": os.getpid(), "env": env}
            self._write(index, json.dumps(order) + "\n")

    def _log(self, index: int) -> int:
        return os.open(self._run.job_folder / f"ssh-{index}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _write(self, index: int, text: str) -> None:
        pipe = self._lines[index].stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(text.encode())
            pipe.flush()

    def tell(self, word: str, why: str) -> None:
        """A signal for every agent."""
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {word} to all: {why}", flush=True)
        for index in range(len(self._lines)):
            self._write(index, f"{word}\n")

    def _cancel(self) -> None:
        """End the run, and kill what does not end in time."""
        self._cancelled = True
        self.tell("TERM", "asked to end")
        self._due = [(time.monotonic() + self._patience, "KILL", "the agents have not ended")]

    def wait(self) -> None:
        """Until every connection has ended, by the time limit and some more."""
        beat = 0.0
        while any(line.poll() is None for line in self._lines):
            now = time.monotonic()
            if now > beat:
                beat = now + BEAT_S
                for index in range(len(self._lines)):
                    self._write(index, "\n")
            if self._asked and not self._cancelled:
                self._cancel()
            self._do_what_is_due(now)
            if self._led and self._lines[0].poll() is not None:
                self._led = False  # the others hear of it by the run's own channel
                later = (now + _FOLLOW_S, "TERM", "the lead has ended")
                self._due = [later, (now + 2 * _FOLLOW_S, "KILL", "left over")]
            if any(line.poll() not in (None, 0) for line in self._lines):
                self._refused()
            time.sleep(_POLL_S)
        self._refused()
        if self._cancelled and not read_record(self._run).final:
            with contextlib.suppress(OSError):
                write_end(self._run, "cancelled", "cancelled before it started")
        if self._why is not None:  # over what an agent has said that was only told to end
            with contextlib.suppress(OSError):
                write_end(self._run, "failed", self._why)

    def _do_what_is_due(self, now: float) -> None:
        for item in [item for item in self._due if item[0] <= now]:
            self._due.remove(item)
            self.tell(item[1], item[2])
            if item[1] == "KILL":
                self._due.append((now + _LATE_S, "CUT", "a connection has not ended"))
            if item[1] == "CUT":
                self._cut()

    def _cut(self) -> None:
        for line in self._lines:
            if line.poll() is None:
                line.kill()

    def _refused(self) -> None:
        """A host that has taken no agent ends the run before it began."""
        if self._why is not None or self._cancelled:
            return
        for index, host in enumerate(self._hosts):
            text = (self._run.job_folder / f"ssh-{index}.log").read_text(encoding="utf-8", errors="replace")
            said = [line for line in text.splitlines() if line.startswith(MARK)]
            lost = self._lines[index].poll() not in (None, 0) and not self._agent_began(index)
            if not said and not lost:
                continue
            why = (
                json.loads(said[-1][len(MARK) :])["problem"] if said else (text.strip().splitlines() or ["no word"])[-1]
            )
            self._why = f"node {index} ({host}) did not start: {why}"
            self.tell("TERM", self._why)
            self._due = [(time.monotonic() + self._patience, "KILL", "the agents have not ended")]
            return

    def _agent_began(self, index: int) -> bool:
        return self._run.attempt(0).agent_log(index).exists()


def main() -> int:
    """Run one controller to its end."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It was started so: a cancel that comes before this line is kept for it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    run = RunDir(Path(sys.argv[1]))
    Controller(run, read_json(run.job_folder / "seats.json"), asked).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
