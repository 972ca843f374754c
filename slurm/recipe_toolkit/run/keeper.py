"""The parent of one program: when the agent dies, no process of the program outlives it.

Run as a file by the agent, with Python's ``-I -S``, so that nothing but the standard library's
core is imported and it starts in some 20 ms::

    python -I -S keeper.py STATUS_FD GRACE_S N CLEANUP_1 ... CLEANUP_N ARGV...

The N words after the grace are a command that is run when nothing is left of the program, whoever
ended it: a container is no descendant of the program that asked a daemon for it.

stdin is a pipe from the agent: ``stop SECONDS`` asks for the end of the program, ``kill`` for the
end at once, and its end of file means that the agent is gone. On STATUS_FD the keeper writes a line
each for ``pid N``, ``error ERRNO TEXT``, ``exit CODE`` (negative: the signal), ``killed N NAME`` (a
process that TERM and its grace have not ended), ``left N...`` (processes of the tree that could not be
killed) and ``cleanup CODE``. Its own exit code is the
program's.

The keeper is a subreaper: whatever the program starts stays below it, also after ``setsid`` and
double forks, and is found in /proc. If the keeper itself is killed, the kernel kills the program
(PR_SET_PDEATHSIG), and the agent, a subreaper too, kills the rest.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_ROUNDS_S = 5.0
CLEANUP_S = 20.0
YOUNG_S = 10.0
SHIELDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE)


def prctl(option: int, value: int) -> None:
    """prctl(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def tree(root: int) -> list[int]:
    """Living descendants of ``root``, nearest first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        waiting = [pid for parent in waiting for pid in children.get(parent, ())]
        found += waiting
    return found


def command(pid: int) -> str:
    """A process' short name. Not its command line: reading that may wait for a process that is stuck in the kernel."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123
            return " ".join(file.read().decode("utf-8", "replace").split())
    except OSError:
        return ""


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        # A setuid program below us: it stays in the tree and is counted as left.
        return


class Keeper:
    """One program and everything below it."""

    def __init__(self, status: int, grace: float) -> None:
        self.status = status
        self.grace = grace
        self.pid = 0
        self.code: int | None = None
        self.stopping: float | None = None  # when the tree is killed, on the monotonic clock
        self.patient = True  # whether the tree has had its grace
        self.buffer = b""

    def report(self, line: str) -> None:
        """Tell the agent, if it is still there."""
        try:
            os.write(self.status, line.encode("utf-8", "replace") + b"\n")
        except BrokenPipeError:
            return

    def start(self, argv: list[str]) -> bool:
        """Fork and execute the program; False if it could not be executed."""
        self.pid, failure = self.spawn(argv)
        if failure:
            os.waitpid(self.pid, 0)
            self.report(f"error {failure}")
            return False
        self.report(f"pid {self.pid}")
        return True

    def spawn(self, argv: list[str], output: int | None = None) -> tuple[int, str]:
        """Fork and execute: the pid, and what was wrong if it could not be executed.

        ``output``: where it writes, if not into our log.
        """
        read_end, write_end = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.become(argv, write_end, parent, output)
        os.close(write_end)
        failure = os.read(read_end, 4096)
        os.close(read_end)
        return pid, failure.decode("utf-8", "replace")

    def clean(self, argv: list[str]) -> None:
        """Run the clean-up command, within its time, and report its end.

        What it says is of interest only if it fails: docker complains of a container that is gone.
        """
        output = os.memfd_create("output")
        pid, failure = self.spawn(argv, output)
        limit = time.monotonic() + CLEANUP_S
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > limit:
                for left in tree(os.getpid()):
                    send(left, signal.SIGKILL)
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(status)
        if code:
            os.lseek(output, 0, os.SEEK_SET)
            os.write(2, os.read(output, 65536))
        self.report(f"cleanup {code} {failure}".rstrip())

    def become(self, argv: list[str], write_end: int, parent: int, output: int | None) -> None:
        """In the child: turn into the program; never returns."""
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            for number in (*SHIELDED, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            # USR2 stays ignored: Slurm may send the time limit's warning to every process of the
            # step, and its default is to end a program that does not know it.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(write_end, (error.strerror or str(error)).encode("utf-8", "replace"))
        finally:
            os._exit(127)

    def reap(self) -> None:
        """Collect the dead; the program's own end is reported at once."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid and self.code is None:
                self.code = os.waitstatus_to_exitcode(status)
                self.report(f"exit {self.code}")
                # What the program leaves behind gets the same short grace.
                for left in tree(os.getpid()):
                    send(left, signal.SIGTERM)
                limit = time.monotonic() + self.grace
                self.stopping = limit if self.stopping is None else min(limit, self.stopping)

    def stop(self, grace: float) -> None:
        """TERM to the program (it knows its children best); the tree is killed after ``grace``."""
        limit = time.monotonic() + grace
        self.patient = grace > 0
        if self.stopping is None and self.code is None and grace > 0:
            send(self.pid, signal.SIGTERM)
        self.stopping = limit if self.stopping is None else min(limit, self.stopping)

    def obey(self) -> bool:
        """Read what the agent wants; False at the end of file."""
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if not data:
            self.stop(self.grace)
            return False
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            words = line.split()
            if words and words[0] == b"stop":
                self.stop(float(words[1]))
            elif words and words[0] == b"kill":
                self.stop(0)
        return True

    def run(self, wakeup: int) -> int:
        """Until nothing is left of the program, or what is left cannot be killed."""
        inputs = [0, wakeup]
        while True:
            self.reap()
            alive = tree(os.getpid()) if self.code is not None or self.stopping is not None else [self.pid]
            if self.code is not None and not alive:
                return self.code
            if self.stopping is not None and time.monotonic() >= self.stopping:
                return self.kill_all()
            wait = 0.5 if self.stopping is None else max(0.01, min(0.1, self.stopping - time.monotonic()))
            # With a subreaper's SIGCHLD the pipe wakes us; the timeout only serves the grace.
            ready, _, _ = select.select(inputs, [], [], None if self.stopping is None else wait)
            if wakeup in ready:
                os.read(wakeup, 4096)
            if 0 in ready and not self.obey():
                inputs.remove(0)

    def kill_all(self) -> int:
        """KILL until the tree is empty: a process may fork while it is being killed."""
        limit = time.monotonic() + KILL_ROUNDS_S
        for pid in tree(os.getpid()) if self.patient else ():
            self.report(f"killed {pid} {command(pid)}")
        while True:
            left = tree(os.getpid())
            for pid in left:
                send(pid, signal.SIGKILL)
            self.reap()
            if not left and self.code is not None:
                return self.code
            if time.monotonic() > limit:
                self.report(f"left {' '.join(map(str, left))}")
                return -signal.SIGKILL if self.code is None else self.code
            time.sleep(0.01)


def main(arguments: list[str]) -> int:
    """The program's exit code, 128 + signal if it was killed; 127 if it could not be executed."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Slurm may signal every process of a step; the agent alone decides what that means for us.
    for number in (*SHIELDED, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status, grace, count = int(arguments[0]), float(arguments[1]), int(arguments[2])
    cleanup, argv = arguments[3 : 3 + count], arguments[3 + count :]
    os.set_inheritable(status, False)
    keeper, began = Keeper(status, grace), time.monotonic()
    if not keeper.start(argv):
        return 127
    code = keeper.run(read_end)
    if cleanup:
        keeper.clean(cleanup)
        # A daemon that is still making a container when its client is killed makes it all the same.
        daemon = keeper.stopping is not None and cleanup[0].rpartition("/")[2] == "docker"
        while daemon and time.monotonic() < began + YOUNG_S:
            time.sleep(1.0)
            keeper.clean(cleanup)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
