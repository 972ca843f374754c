"""Nodes are asked by ssh, or on this machine: one connection each, the probe piped through it, nothing left there.

It is plain ``ssh``: what a user's ``~/.ssh/config`` says (jump hosts, keys, names) holds here too, and a login
node needs nothing installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_toolkit.run import probe

CONNECT_S = 10
ANSWER_S = 300.0  # nvidia-smi may take a minute on a node that has slept, vLLM's help two where the disk is cold
DEEP_S = 4 * 3600.0  # a terabyte at 70 MB/s
_AT_ONCE = 64
_MAX_LINE = 64 << 20  # bytes of an answer
_NO_SSH = "install an ssh client"

Request = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A node, and the command that starts its probe."""

    name: str
    argv: tuple[str, ...]


@dataclass
class Asked:
    """What a node has said; ``lost``: why there is no answer.

    ``clock``: ours before and after the first answer, None where we have not asked ourselves.
    """

    answers: list[dict[str, Any]] = field(default_factory=list)
    clock: tuple[float, float] | None = None
    lost: str | None = None


Next = Callable[[Mapping[str, Asked]], Mapping[str, Request]]


def script() -> bytes:
    """The probe, as it is piped: its modules, by name."""
    sources = {name: Path(str(sys.modules[name].__file__)).read_text() for name in probe.PARTS}
    return f"""import sys, types
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.serve()
""".encode()


def _words(python: str) -> list[str]:
    # The probe's text comes first, by its length; what follows on stdin is left for it to read.
    return [python, "-u", "-c", f"import sys; exec(sys.stdin.buffer.read({len(script())}))"]


def here() -> Target:
    """This machine."""
    return Target(os.uname().nodename.partition(".")[0], tuple(_words(sys.executable)))


def over_ssh(host: str, python: str = "python3", config: str | None = None) -> Target:
    """A host as ssh takes it. ``config``: ssh's own configuration file, instead of the user's."""
    options = ["-F", config] if config else []
    options += ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "ServerAliveInterval=15"]
    return Target(host.rpartition("@")[2], ("ssh", *options, "--", host, shlex.join(_words(python))))


def ask(targets: Sequence[Target], request: Request, then: Next, answer_s: float = ANSWER_S) -> dict[str, Asked]:
    """Ask every node, then those that ``then`` has another request for, over the same connections.

    A node that does not answer is ``lost``; the others are asked all the same. Never raises for a node.
    """
    return asyncio.run(_ask(targets, request, then, answer_s))


async def _ask(targets: Sequence[Target], request: Request, then: Next, answer_s: float) -> dict[str, Asked]:
    gate = asyncio.Semaphore(_AT_ONCE)
    lines = [_Line(target) for target in targets]
    try:
        await asyncio.gather(*(line.first(gate, request, answer_s) for line in lines))
        asked = {line.target.name: line.asked for line in lines}
        further = then({name: item for name, item in asked.items() if item.lost is None})
        await asyncio.gather(
            *(line.answer(further[line.target.name], answer_s) for line in lines if line.target.name in further)
        )
        return asked
    finally:
        await asyncio.gather(*(line.close() for line in lines))


class _Line:
    """The connection to one node."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.asked = Asked()
        self._process: asyncio.subprocess.Process | None = None
        self._said: list[str] = []
        self._listener: asyncio.Task[None] | None = None

    async def first(self, gate: asyncio.Semaphore, request: Request, limit_s: float) -> None:
        async with gate:
            pipe = asyncio.subprocess.PIPE
            began = time.time()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.target.argv, stdin=pipe, stdout=pipe, stderr=pipe, limit=_MAX_LINE, start_new_session=True
                )
            except OSError as error:
                hint = f": {_NO_SSH}" if self.target.argv[0] == "ssh" else ""
                self.asked.lost = f"{self.target.argv[0]}: {error.strerror or error}{hint}"
                return
            self._listener = asyncio.ensure_future(self._hear())
            await self.answer(request, limit_s, before=script())
            self.asked.clock = (began, time.time())

    async def answer(self, request: Request, limit_s: float, before: bytes = b"") -> None:
        """Send a request and keep the answer; or say in ``lost`` why there is none."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(before + json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
            self.asked.answers.append(json.loads(await asyncio.wait_for(self._read(), limit_s)))
        except asyncio.TimeoutError:
            self.asked.lost = f"no answer in {limit_s:g} s"
        except (OSError, ValueError, EOFError):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), CONNECT_S)
            if self._listener is not None:
                await asyncio.wait({self._listener}, timeout=1.0)
            self.asked.lost = self._why()

    async def _read(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(probe.MARK.encode()):
                return line[len(probe.MARK) :].decode()
        raise EOFError

    async def _hear(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(4096):
            self._said = [*self._said, *chunk.decode("utf-8", "replace").splitlines()][-20:]

    def _why(self) -> str:
        lines = [line.strip() for line in self._said if line.strip()]
        code = self._process.returncode if self._process else None
        return lines[-1] if lines else f"the connection ended with {code}, and it said nothing"

    async def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.stdin.close() if self._process.stdin else None
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 2.0)
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        if self._listener is not None:
            await asyncio.wait({self._listener}, timeout=1.0)
            self._listener.cancel()
