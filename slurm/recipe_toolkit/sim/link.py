"""The processes of one instance: rank 0 listens, the others join, requests go out and steps come back.

One JSON object a line over TCP. vLLM's own rendezvous (torch's store, ZMQ) is another; what is kept
is how it fails (seen with vLLM 0.32 on CPU): the head waits for missing nodes up to
``--distributed-timeout-seconds``, its /health stays 200 when a rank dies, requests to a dead DP
rank hang, a lost worker of a rank ends the head at the next request, and headless processes
outlive their head.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.sim.flags import Flags, Layout
from recipe_toolkit.sim.log import log
from recipe_toolkit.sim.messages import Batch, Submission
from recipe_toolkit.sim.scheduler import Scheduler

_RETRY_S = 0.1
# A batch of a long step may hold many events.
_LINE = 16 * 1024 * 1024


class LinkError(Exception):
    """The instance did not come together."""


def identity(flags: Flags) -> dict[str, Any]:
    """What all processes of an instance must have in common."""
    names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "max-model-len", "nnodes")
    return {"model": flags.model, **{name: flags[name] for name in names}}


@dataclass(eq=False)
class Peer:
    """Another process of the instance, as the head sees it."""

    ranks: tuple[int, ...]
    slices: tuple[int, ...]
    writer: asyncio.StreamWriter
    ready: bool = False

    def send(self, message: Mapping[str, Any]) -> None:
        """Send, or drop it if the peer is gone: nobody tells a caller that a rank is dead."""
        if not self.writer.is_closing():
            self.writer.write(json.dumps(message).encode() + b"\n")


@dataclass(frozen=True)
class RemoteRank:
    """A DP rank whose scheduler lives in another process."""

    rank: int
    peer: Peer

    def submit(self, request: Submission) -> None:
        """Send the request there."""
        self.peer.send({"op": "submit", "rank": self.rank, "request": request.to_json()})

    def abort(self, request_id: str) -> None:
        """Send the word there."""
        self.peer.send({"op": "abort", "rank": self.rank, "id": request_id})


class Head:
    """Rank 0's end. ``on_batch`` gets the steps of remote ranks, ``on_lost`` a peer that has died."""

    def __init__(
        self, flags: Flags, layout: Layout, on_batch: Callable[[Batch], None], on_lost: Callable[[Peer], None]
    ) -> None:
        self.peers: list[Peer] = []
        self._flags = flags
        self._layout = layout
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()
        self._closing = False
        self._complete = False

    async def open(self) -> None:
        """Listen. Raises OSError."""
        assert self._layout.address is not None
        host, port = self._layout.address
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LINE)

    def close(self) -> None:
        """Stop listening and let the peers go."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for peer in self.peers:
            peer.writer.close()

    async def complete(self, timeout_s: float) -> None:
        """Wait until every process has joined and is ready, then start them all. Raises LinkError."""
        try:
            await asyncio.wait_for(self._all_ready(), timeout_s)
        except asyncio.TimeoutError as error:
            raise LinkError(f"timed out after {timeout_s:g} s: {self._missing()}") from error
        self._complete = True
        for peer in self.peers:
            peer.send({"op": "go"})

    async def _all_ready(self) -> None:
        while self._missing():
            self._changed.clear()
            await self._changed.wait()

    def _missing(self) -> str:
        unready = [peer for peer in self.peers if not peer.ready]
        if self._layout.peers is not None:
            absent = self._layout.peers - 1 - len(self.peers)
            return f"{absent} nodes have not joined, {len(unready)} are not ready" if absent or unready else ""
        here = {*self._layout.dp_ranks, *(rank for peer in self.peers if peer.ready for rank in peer.ranks)}
        absent_ranks = sorted(set(range(self._layout.dp)) - here)
        return f"DP ranks {absent_ranks} have not joined" if absent_ranks else ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Peer | None = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if message["op"] == "batch" and peer is not None:
                    self._on_batch(Batch.from_json(message["batch"]))
                elif message["op"] == "ready" and peer is not None:
                    peer.ready = True
                    self._changed.set()
                elif message["op"] == "hello":
                    peer = self._welcome(message, writer)
                if peer is None:
                    break
        except (OSError, ValueError, KeyError, TypeError) as error:
            log(f"link: {error!r}", "ERROR")
        except asyncio.CancelledError:
            # The process ends; Python 3.12.1 prints a traceback for a cancelled handler.
            return
        finally:
            writer.close()
            if peer is not None and not self._closing:
                self._lose(peer)

    def _lose(self, peer: Peer) -> None:
        log(f"the process of DP ranks {list(peer.ranks or peer.slices)} has gone", "WARNING")
        if self._complete:
            self._on_lost(peer)
        else:
            self.peers.remove(peer)

    def _welcome(self, message: Mapping[str, Any], writer: asyncio.StreamWriter) -> Peer | None:
        ranks, slices = tuple(message["ranks"]), tuple(message["slices"])
        taken = {*self._layout.dp_ranks, *(rank for peer in self.peers for rank in peer.ranks)}
        trouble = None
        if message["identity"] != identity(self._flags):
            trouble = f"its configuration is {message['identity']}, ours {identity(self._flags)}"
        elif taken & set(ranks):
            trouble = f"DP ranks {sorted(taken & set(ranks))} have joined already"
        if trouble:
            log(f"a process was refused: {trouble}", "ERROR")
            writer.write(json.dumps({"op": "refused", "why": trouble}).encode() + b"\n")
            return None
        peer = Peer(ranks, slices, writer)
        self.peers.append(peer)
        return peer


class Member:
    """The end of a process that is not rank 0. It outlives its head."""

    def __init__(self, flags: Flags, layout: Layout) -> None:
        self._flags = flags
        self._layout = layout
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None

    async def join(self, timeout_s: float) -> None:
        """Connect, however long the head takes to listen, and say who this is. Raises LinkError."""
        assert self._layout.address is not None
        host, port = self._layout.address
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._writer is None:
            try:
                self._reader, self._writer = await asyncio.open_connection(host, port, limit=_LINE)
            except OSError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise LinkError(
                        f"timed out after {timeout_s:g} s: {host}:{port} does not answer: {error}"
                    ) from error
                await asyncio.sleep(_RETRY_S)
        ranks, slices = self._layout.dp_ranks, self._layout.slices
        self._send({"op": "hello", "identity": identity(self._flags), "ranks": ranks, "slices": slices})

    async def ready(self, timeout_s: float) -> None:
        """Say that this process is ready, and wait until all are. Raises LinkError."""
        assert self._reader is not None
        self._send({"op": "ready"})
        try:
            line = await asyncio.wait_for(self._reader.readline(), timeout_s)
        except (asyncio.TimeoutError, OSError) as error:
            raise LinkError(f"the other processes were not ready in {timeout_s:g} s") from error
        message = json.loads(line) if line else {"op": "refused", "why": "the head is gone"}
        if message["op"] != "go":
            raise LinkError(f"the head does not start this process: {message.get('why')}")

    def send_batch(self, batch: Batch) -> None:
        """Send a step to the head."""
        self._send({"op": "batch", "batch": batch.to_json()})

    async def serve(self, schedulers: Mapping[int, Scheduler]) -> None:
        """Take requests until the head is gone."""
        assert self._reader is not None
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line), schedulers)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log(f"link: {error!r}", "ERROR")
        log("the connection to rank 0 is lost; waiting", "WARNING")

    def _take(self, message: Mapping[str, Any], schedulers: Mapping[int, Scheduler]) -> None:
        if message["op"] == "submit":
            schedulers[message["rank"]].submit(Submission.from_json(message["request"]))
        elif message["op"] == "abort":
            schedulers[message["rank"]].abort(message["id"])

    def close(self) -> None:
        """Leave."""
        if self._writer is not None:
            self._writer.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")
