"""A program on a terminal of its own, typed to as a person does."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][0-9A-B]|[=>78])|\x07|\r")


class Terminal:
    """What a program on a pseudo-terminal has printed, and a keyboard for it; ended by ``close``."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], deadline_s: float = 30) -> None:
        self.deadline_s = deadline_s
        self._raw = b""
        self._read = 0
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), dict(env))

    @property
    def text(self) -> str:
        """All that was printed, without the escapes that move a cursor or colour."""
        return _ESCAPES.sub(b"", self._raw).decode(errors="replace")

    def type(self, keys: str) -> None:
        """Press keys; ``\\t`` is Tab."""
        os.write(self._fd, keys.encode())

    def expect(self, wanted: str) -> str:
        """Wait until ``wanted`` (a regular expression) is printed after what was expected before; returns it."""
        end = time.monotonic() + self.deadline_s
        while True:
            text = self.text
            match = re.compile(wanted).search(text, min(self._read, len(text)))
            if match:
                self._read = match.end()
                return match[0]
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no {wanted!r} in {self.deadline_s:g} s after {text[: self._read]!r}\n{text!r}")
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the program has gone
                data = b""
            if not data:
                raise AssertionError(f"the program ended without {wanted!r}: {text!r}")
            self._raw += data

    def expect_all(self, *words: str) -> None:
        """Wait until each word is printed after what was expected before, in any order."""
        start, ends = self._read, []
        for word in words:
            self._read = start
            self.expect(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
            ends.append(self._read)
        self._read = max(ends)

    def until_it_waits(self) -> None:
        """Wait until the program sleeps: CPython loses a Ctrl-C between its last look for one and the read."""
        end = time.monotonic() + self.deadline_s
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < end, f"the program is busy after {self.deadline_s:g} s: {self.text!r}"
            time.sleep(0.01)

    def code(self) -> int:
        """Wait for the program's end, reading what it prints; returns its exit code."""
        end = time.monotonic() + self.deadline_s
        while time.monotonic() < end:
            if select.select([self._fd], [], [], 0.05)[0]:
                try:
                    self._raw += os.read(self._fd, 65536)
                    continue
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"the program has not ended in {self.deadline_s:g} s: {self.text!r}")

    def close(self) -> None:
        """End the program and the terminal."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)
