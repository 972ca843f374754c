"""Programs of one node: each below a keeper, with its own log."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from recipe_toolkit.errors import RunError
from recipe_toolkit.run import keeper, logs, procfs
from recipe_toolkit.run.handle import Outside

T = TypeVar("T")

_KEEPER = Path(keeper.__file__).resolve()
_START_S = 60.0
_ORPHANS_S = 3.0
ORPHAN_GRACE_S = 5.0  # for a program whose agent is gone


@dataclass(frozen=True)
class Spec:
    """What to start: the whole environment is given.

    ``cleanup`` is run when nothing is left of the program. ``inspect`` prints the pids of what a
    container runtime runs for it.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path
    cleanup: Sequence[str] = ()
    inspect: Sequence[str] = ()


class Child:
    """One program: its keeper, its end, its left-overs."""

    def __init__(self, spec: Spec, keeper_process: subprocess.Popen[bytes], status: int, log_start: int) -> None:
        loop = asyncio.get_running_loop()
        self.spec = spec
        self.name = spec.name
        self.pid: int | None = None
        self.left: list[int] = []
        self.killed: list[str] = []  # what did not end at TERM: pid and name
        self.unclean: str | None = None  # how the clean-up failed
        self.exited: asyncio.Future[int] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._started: asyncio.Future[str | None] = loop.create_future()
        self._keeper = keeper_process
        self._status = status
        self._log_start = log_start
        self._buffer = b""
        self._outside = Outside(spec.inspect, spec.env)
        loop.add_reader(status, self._read)

    @property
    def keeper_pid(self) -> int:
        """The root of the process tree."""
        return self._keeper.pid

    async def started(self) -> int:
        """The program's pid. Raises RunError if it could not be executed."""
        try:
            problem = await asyncio.wait_for(asyncio.shield(self._started), _START_S)
        except asyncio.TimeoutError:
            problem = f"its keeper has not started it within {_START_S:g} s"
        if problem is not None or self.pid is None:
            raise RunError(f"cannot execute {self.spec.argv[0]}: {problem}")
        return self.pid

    def tree(self, processes: Mapping[int, procfs.Stat] | None = None) -> list[procfs.Stat]:
        """The program and everything below it."""
        return [] if self.gone.done() else procfs.descendants([self.keeper_pid], processes)

    def pids(self, processes: Mapping[int, procfs.Stat] | None = None) -> list[int]:
        """Everything that computes for the program, in its container too."""
        outside = [] if self.gone.done() else self._outside.pids(processes)
        return [*(item.pid for item in self.tree(processes)), *outside]

    def look_outside(self) -> None:
        """Find what runs in its container, for :meth:`pids`. Takes a while: not for a loop."""
        if not self.gone.done():
            self._outside.refresh()

    def owns_port(self, port: int) -> bool:
        """Whether a process of this program, or of its container, listens on ``port``. Takes a while: not for a loop.

        Processes of a container may be another user's, whose files nobody may look at: then it counts
        that the container runs, and that no process which can be seen holds the port.
        """
        inodes = procfs.listeners(port)
        if not inodes:
            return False
        if any(procfs.holds_socket(item.pid, inodes) for item in self.tree()):
            return True
        self._outside.refresh()
        inside = self._outside.pids()
        if any(procfs.holds_socket(pid, inodes) for pid in inside):
            return True
        return bool(inside) and procfs.owner(port) is None

    def stop(self, grace: float) -> None:
        """TERM, and KILL for whatever is left after ``grace`` seconds. Returns at once."""
        self._order(f"stop {grace:g}" if grace > 0 else "kill")

    def log_size(self) -> int:
        """Bytes of the log so far."""
        try:
            return self.spec.log.stat().st_size
        except OSError:
            return 0

    def tail(self) -> str:
        """The end of the log, of this start alone."""
        return logs.tail(self.spec.log, self._log_start)

    def _order(self, text: str) -> None:
        pipe = self._keeper.stdin
        if pipe is None or self.gone.done():
            return
        try:
            pipe.write(text.encode() + b"\n")
            pipe.flush()
        except (BrokenPipeError, ValueError):
            return  # the keeper is gone; _end follows

    def _read(self) -> None:
        data = os.read(self._status, 4096)
        if not data:
            self._end()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "pid":
                self.pid = int(rest)
                _settle(self._started, None)
            elif word == "error":
                _settle(self._started, rest)
            elif word == "exit":
                _settle(self.exited, int(rest))
            elif word == "killed":
                self.killed.append(rest.strip())
            elif word == "left":
                self.left = [int(pid) for pid in rest.split()]
            elif word == "cleanup" and rest != "0":
                self.unclean = f"{' '.join(self.spec.cleanup)} ended with {rest}"

    def _end(self) -> None:
        """The keeper has ended: by itself, or killed before its program."""
        asyncio.get_running_loop().remove_reader(self._status)
        os.close(self._status)
        code = self._keeper.wait()
        if self._keeper.stdin is not None:
            # What a late order has left in its buffer cannot be written any more; it is closed all the same.
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()
        _settle(self._started, "its keeper ended first")
        _settle(self.exited, code)
        if code < 0 and self.pid is not None:
            self.left = kill_orphans()
            if self.spec.cleanup:
                self._clean()
                return
        _settle(self.gone, None)

    def _clean(self) -> None:
        """What the keeper would have done: its clean-up, below a keeper of its own."""
        spec = dataclasses.replace(self.spec, argv=self.spec.cleanup, cleanup=(), inspect=())
        cleaner = start(spec)

        def ended(_: asyncio.Future[None]) -> None:
            code = cleaner.exited.result()
            self.unclean = f"{' '.join(spec.argv)} ended with {code}" if code else None
            _settle(self.gone, None)

        cleaner.gone.add_done_callback(ended)
        asyncio.get_running_loop().call_later(keeper.CLEANUP_S, cleaner.stop, 0)


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def become_subreaper() -> None:
    """Make orphans of killed keepers children of this process, where kill_orphans finds them."""
    keeper.prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)


_keepers: set[int] = set()


def start(spec: Spec) -> Child:
    """Start a keeper for the program; needs a running loop. Raises RunError, OSError."""
    read_end, write_end = os.pipe()
    # -I -S: nothing of the program's environment (PYTHONPATH, .pth files) reaches the keeper.
    command = [sys.executable, "-I", "-S", str(_KEEPER), str(write_end), str(ORPHAN_GRACE_S), str(len(spec.cleanup))]
    try:
        with spec.log.open("ab") as log:
            log_start = log.tell()
            process = subprocess.Popen(
                [*command, *spec.cleanup, *spec.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(spec.env),
                cwd=spec.cwd,
                pass_fds=(write_end,),
                start_new_session=True,
            )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    _keepers.add(process.pid)
    child = Child(spec, process, read_end, log_start)
    child.gone.add_done_callback(lambda _: _keepers.discard(process.pid))
    return child


def kill_orphans() -> list[int]:
    """Kill what the keepers that were killed left to this process; pids that survive."""
    limit = time.monotonic() + _ORPHANS_S
    while True:
        processes = procfs.table()
        # Keepers have sessions of their own, and so has all that they start; our helpers have ours.
        roots = [
            item.pid
            for item in processes.values()
            if item.parent == os.getpid() and item.pid not in _keepers and item.session != os.getsid(0)
        ]
        left = [pid for pid in roots if processes[pid].state not in "ZX"]
        left += [item.pid for item in procfs.descendants(roots, processes)]
        for pid in left:
            _kill(pid)
        for pid in roots:
            _reap(pid)
        if not left or time.monotonic() > limit:
            return left
        time.sleep(0.005)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
