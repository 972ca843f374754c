"""The NIXL exchange: a side channel per DP rank, on which decode ranks read what prefill ranks hold.

The ``kv_transfer_params`` are vLLM's, key by key (nixl/pull_scheduler.py of 0.32). What goes over the
side channel is this package's own: one JSON object a line, ``handshake``, ``read`` and ``done``.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.sim import transfer
from recipe_toolkit.sim.faults import Faults
from recipe_toolkit.sim.flags import Flags
from recipe_toolkit.sim.log import log
from recipe_toolkit.sim.messages import Submission
from recipe_toolkit.sim.options import Options
from recipe_toolkit.sim.transfer import Ledger, Pull, Pulled

_NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_POST_S = 0.0005


class TransferError(Exception):
    """A transfer that failed, with the reason."""


@dataclass
class _Held:
    request: Submission
    blocks: int
    lease: asyncio.TimerHandle


class Nixl:
    """The connector of one DP rank, for both sides: whether it holds or reads is said by each request."""

    def __init__(self, config: Mapping[str, Any], rank: int, options: Options, faults: Faults, flags: Flags) -> None:
        extra = config.get("kv_connector_extra_config") or {}
        self.recompute = transfer.policy(config)
        self.engine_id = f"{config.get('engine_id') or uuid.uuid4()}_dp{rank}"
        self.host = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
        self.port = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")) + rank
        self._lease_s = float(extra.get("kv_lease_duration", 30))
        self._options = options
        self._faults = faults
        self._model = flags.model
        self._tp = flags["tensor-parallel-size"]
        self._pp = flags["pipeline-parallel-size"]
        self._dcp = flags["decode-context-parallel-size"]
        self._block = flags["block-size"]
        self._rank = rank
        self._held: dict[str, _Held] = {}
        self._known: set[str] = set()
        self._handshakes = 0
        self._server: asyncio.Server | None = None
        self._ledger: Ledger | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, ledger: Ledger) -> None:
        """Listen on the side channel. Raises OSError."""
        self._ledger = ledger
        self._server = await asyncio.start_server(self._serve, self.host, self.port)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def plan(self, request: Submission, cached: int) -> Pull | None:
        """A pull of all that is not cached here."""
        params = request.kv or {}
        if not params.get("do_remote_prefill"):
            return None
        if not params.get("remote_block_ids") or any(params.get(name) is None for name in _NEEDED):
            log(f"Got invalid KVTransferParams: {dict(params)}. This request will not utilize KVTransfer")
            return None
        return Pull(request.prompt_tokens - cached, params)

    async def pull(self, request: Submission, pull: Pull) -> Pulled:
        """Handshake if the two have not met, read, wait as long as the bytes take, say done."""
        assert self._ledger is not None
        try:
            return await self._pull(request, pull)
        except (OSError, asyncio.TimeoutError, TransferError, ValueError) as error:
            self._ledger.count("nixl_num_failed_transfers")
            word = str(error) or "timed out"
            log(f"NIXL transfer failure for request {request.id}: {word}")
            return Pulled(failed=True)

    async def _pull(self, request: Submission, pull: Pull) -> Pulled:
        limit = self._options["handshake_timeout_s"]
        source = pull.source
        host, port = source["remote_host"], int(source["remote_port"])
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), limit)
        try:
            if source["remote_engine_id"] not in self._known:
                await asyncio.wait_for(self._handshake(reader, writer, source["remote_engine_id"]), limit)
            begin = time.monotonic()
            answer = await asyncio.wait_for(
                _ask(reader, writer, {"op": "read", "request": source["remote_request_id"]}), limit
            )
            await self._move(reader, pull.tokens)
            taken = time.monotonic() - begin
            await asyncio.wait_for(_ask(reader, writer, {"op": "done", "request": source["remote_request_id"]}), limit)
        finally:
            writer.close()
        salt = answer["seed"] ^ request.seed
        times = {
            "nixl_xfer_time_seconds": taken,
            "nixl_post_time_seconds": _POST_S,
            "nixl_bytes_transferred": pull.tokens * self._options["kv_bytes_per_token"],
            "nixl_num_descriptors": float(-(-pull.tokens // self._block)),
        }
        return Pulled(pull.tokens, salt, times=times)

    async def _move(self, reader: asyncio.StreamReader, tokens: int) -> None:
        """Wait as long as the transfer takes; the other side's death ends it."""
        duration = self._options.seconds("kv_transfer_ms")
        duration += tokens * self._options["kv_bytes_per_token"] / self._options["kv_bytes_per_s"]
        try:
            await asyncio.wait_for(reader.read(1), duration)
        except asyncio.TimeoutError:
            return
        raise TransferError("the remote agent is gone")

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, engine: str) -> None:
        self._handshakes += 1
        if self._handshakes <= self._options["handshake_failures"]:
            await asyncio.sleep(3600)
        answer = await _ask(reader, writer, {"op": "handshake", "engine": engine, "model": self._model})
        theirs, ours = answer["tp"], self._tp
        if max(theirs, ours) % min(theirs, ours):
            raise TransferError(f"tensor parallel sizes {ours} and {theirs} do not divide one another")
        self._known.add(engine)

    def computed(self, request: Submission) -> None:
        """Nothing to do: KV is read from memory."""

    def hold(self, request: Submission, blocks: int) -> dict[str, Any] | None:
        """Hold the blocks for the lease, and say where they are."""
        assert self._ledger is not None
        if not (request.kv or {}).get("do_remote_decode"):
            return None
        if self._faults.active("no_kv", self._rank):
            return None
        loop = asyncio.get_running_loop()
        lease = loop.call_later(self._lease_s, self._expire, request.id)
        self._held[request.id] = _Held(request, blocks, lease)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(blocks))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self._tp,
            "dcp_size": self._dcp,
            "pp_size": self._pp,
            "remote_num_tokens": request.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    def _expire(self, request_id: str) -> None:
        assert self._ledger is not None
        self._ledger.count("nixl_num_kv_expired_reqs")
        log(f"Releasing expired KV blocks for request {request_id}: no decode side read them in {self._lease_s:g} s")
        self._ledger.give_back(self._held.pop(request_id).blocks)

    def forget(self, request: Submission) -> None:
        """Tell the prefill side that nobody comes for the blocks."""
        pull = self.plan(request, request.prompt_tokens)
        if pull is not None:
            task = asyncio.get_running_loop().create_task(self._release(pull.source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _release(self, source: Mapping[str, Any]) -> None:
        try:
            reader, writer = await asyncio.open_connection(source["remote_host"], int(source["remote_port"]))
            await _ask(reader, writer, {"op": "done", "request": source["remote_request_id"]})
            writer.close()
        except (OSError, TransferError):
            # The lease frees them.
            log(f"could not release the remote blocks of {source['remote_request_id']}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = self._answer(json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, KeyError) as error:
            log(f"side channel: {error!r}")
        except asyncio.CancelledError:
            # The process ends; Python 3.12.1 prints a traceback for a cancelled handler.
            return
        finally:
            writer.close()

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._ledger is not None
        if message["op"] == "handshake":
            return self._greet(message)
        held = self._held.get(message["request"])
        if message["op"] == "done":
            if held is None:
                self._ledger.count("nixl_num_notifications_after_expiry")
            else:
                held.lease.cancel()
                del self._held[message["request"]]
                self._ledger.give_back(held.blocks)
            return {"ok": True}
        if held is None or self._faults.active("lost_kv", self._rank):
            return {"ok": False, "error": f"no KV is held for request {message['request']}"}
        return {"ok": True, "seed": held.request.seed}

    def _greet(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["engine"] != self.engine_id:
            return {"ok": False, "error": f"the engine here is {self.engine_id}, not {message['engine']}"}
        if message["model"] != self._model:
            return {"ok": False, "error": f"NIXL compatibility hash mismatch: {message['model']} and {self._model}"}
        return {"ok": True, "tp": self._tp}


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: dict[str, Any]) -> dict[str, Any]:
    writer.write(json.dumps(message).encode() + b"\n")
    line = await reader.readline()
    if not line:
        raise TransferError("the remote agent closed the connection")
    answer: dict[str, Any] = json.loads(line)
    if not answer["ok"]:
        raise TransferError(answer["error"])
    return answer
