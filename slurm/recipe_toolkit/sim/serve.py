"""The life of one simulated process, from its first log line to its exit code."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import Any

from recipe_toolkit.sim.api import VERSION, Api
from recipe_toolkit.sim.engine import Engine
from recipe_toolkit.sim.faults import Faults
from recipe_toolkit.sim.flags import Flags, Layout
from recipe_toolkit.sim.frontend import Frontend
from recipe_toolkit.sim.http import Connection
from recipe_toolkit.sim.link import Head, LinkError, Member, Peer, RemoteRank
from recipe_toolkit.sim.log import log, say_who
from recipe_toolkit.sim.messages import Batch
from recipe_toolkit.sim.metrics import Metrics
from recipe_toolkit.sim.options import Options

_DRAIN_POLL_S = 0.05
# What was aborted is told to its clients before their connections close.
_LAST_WORDS_S = 0.1


def run(flags: Flags, options: Options, layout: Layout) -> int:
    """Serve until told to stop; the exit code. Raises ValueError where vLLM would refuse to start."""
    return asyncio.run(_serve(flags.fitted(int(options["kv_cache_tokens"])), options, layout))


async def _serve(flags: Flags, options: Options, layout: Layout) -> int:
    say_who("APIServer" if layout.api else f"EngineCore_DP{','.join(map(str, layout.dp_ranks or layout.slices))}")
    return await _Process(flags, options, layout).main()


def _orphan() -> int:
    """Start a process that neither this one's end nor SIGTERM ends; its pid."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True).pid


class _Process:
    def __init__(self, flags: Flags, options: Options, layout: Layout) -> None:
        self.flags = flags
        self.options = options
        self.layout = layout
        self.faults = Faults(options.fault)
        self.stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.engine: Engine | None = None
        self.frontend: Frontend | None = None
        self.socket: socket.socket | None = None
        self.server: asyncio.Server | None = None
        self.connections: set[Connection] = set()
        self.head: Head | None = None
        self.member: Member | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def main(self) -> int:
        """Everything; the exit code. Raises ValueError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        log(f"simulated engine {VERSION}: model {self.flags.model}, {self.layout.describe()}")
        if self.faults.active("exit"):
            return self._exit_by_fault()
        work = loop.create_task(self._start())
        self.tasks.add(work)
        try:
            awaited: list[asyncio.Future[Any]] = [work, self.stop]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                self.faults.arm(self._begin_fault)
        except (OSError, LinkError) as error:
            log(f"{type(error).__name__}: {error}", "ERROR")
            self._end(1)
        code = await self.stop
        for task in self.tasks:
            task.cancel()
        await self._shut_down(code)
        return code

    def _on_signal(self, number: int) -> None:
        if self.faults.active("ignore_term") and number == signal.SIGTERM:
            log("fault on demand: SIGTERM is ignored", "WARNING")
            return
        self._end(0)

    def _end(self, code: int) -> None:
        if not self.stop.done():
            self.stop.set_result(code)

    def _exit_by_fault(self) -> int:
        log(f"fault on demand: exit with {self.faults.code}", "ERROR")
        return self.faults.code

    async def _start(self) -> None:
        """Come up, in vLLM's order: port, engine, rendezvous, then listen. Raises OSError, LinkError, ValueError."""
        if self.layout.api:
            self._bind()
        self.engine = Engine(self.flags, self.options, self.layout, self.faults, self._sink)
        if self.layout.api:
            self.frontend = self._frontend(self.engine)
        await self.engine.open()
        await self._join()
        if self.faults.active("never_ready"):
            await asyncio.get_running_loop().create_future()
        await self.engine.load()
        await self._meet(self.engine)
        if self.frontend is not None:
            await self._listen(self.frontend)
        log("Application startup complete.")

    def _frontend(self, engine: Engine) -> Frontend:
        ranks = self.layout.dp_ranks if self.layout.hybrid else tuple(range(self.layout.dp))
        name, block = self.flags.served_names[0], self.flags["block-size"]
        frontend = Frontend(Metrics(name, ranks, block, engine.blocks, engine.nixl, engine.drafts))
        frontend.add(engine.schedulers)
        return frontend

    def _bind(self) -> None:
        """Take the port before loading, as vLLM does; connections are refused until it listens."""
        host, port = self.flags["host"], self.flags["port"]
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.socket = socket.socket(family, kind, protocol)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(address)

    async def _join(self) -> None:
        if self.layout.address is None:
            return
        if self.layout.head:
            self.head = Head(self.flags, self.layout, self._on_remote_batch, self._on_lost)
            await self.head.open()
        else:
            self.member = Member(self.flags, self.layout)
            await self.member.join(self.flags["distributed-timeout-seconds"])

    async def _meet(self, engine: Engine) -> None:
        """Wait for the other processes of the instance."""
        limit = self.flags["distributed-timeout-seconds"]
        if self.head is not None:
            await self.head.complete(limit)
            if self.frontend is not None and not self.layout.hybrid:
                remote = {rank: RemoteRank(rank, peer) for peer in self.head.peers for rank in peer.ranks}
                self.frontend.add(remote)
        if self.member is not None:
            await self.member.ready(limit)
            self.tasks.add(asyncio.get_running_loop().create_task(self.member.serve(engine.schedulers)))

    async def _listen(self, frontend: Frontend) -> None:
        assert self.socket is not None
        api = Api(self.flags, self.options, self.faults, frontend, lambda: self._end(1))
        access_log = not self.flags["disable-uvicorn-access-log"]
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(
            lambda: Connection(api.handle, access_log, self.connections), sock=self.socket, backlog=2048
        )
        log(f"Starting vLLM API server on http://{self.flags['host']}:{self.flags['port']}")

    def _sink(self, batch: Batch) -> None:
        if self.frontend is not None:
            self.frontend.absorb(batch)
        elif self.member is not None:
            self.member.send_batch(batch)

    def _on_remote_batch(self, batch: Batch) -> None:
        if self.frontend is not None and not self.layout.hybrid:
            self.frontend.absorb(batch)

    def _on_lost(self, peer: Peer) -> None:
        if self.frontend is not None:
            self.frontend.break_ranks(peer.slices)

    def _begin_fault(self) -> None:
        """The fault has come on after the process was ready."""
        fault, engine = self.options.fault, self.engine
        if self.faults.active("exit"):
            self._end(self._exit_by_fault())
        elif self.faults.active("leak_process"):
            log(f"fault on demand: process {_orphan()} stays", "WARNING")
        elif engine is not None and self.faults.active("hang"):
            engine.freeze()
        elif engine is not None and fault is not None and self.faults.active("hang_generate"):
            engine.freeze(fault.dp_rank)

    async def _shut_down(self, code: int) -> None:
        """Drain or abort, then close. A crash (a code other than 0) closes at once."""
        if code == 0 and self.engine is not None:
            await self._drain(self.engine)
            self.engine.close()
            if any(connection.busy for connection in self.connections):
                await asyncio.sleep(_LAST_WORDS_S)
        if self.server is not None:
            self.server.close()
        elif self.socket is not None:
            self.socket.close()
        for connection in list(self.connections):
            connection.close()
        for end in (self.head, self.member):
            if end is not None:
                end.close()
        log(f"[shutdown] the process ends with exit code {code}")

    async def _drain(self, engine: Engine) -> None:
        timeout = self.flags["shutdown-timeout"]
        mode = "drain" if timeout else "abort"
        log(f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout}s")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._open_requests(engine) and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)

    def _open_requests(self, engine: Engine) -> int:
        return self.frontend.open_requests if self.frontend is not None else engine.unfinished
