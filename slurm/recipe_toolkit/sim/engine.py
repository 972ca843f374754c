"""The engine of one process: its schedulers and their KV connectors."""

from __future__ import annotations

import asyncio
import functools

from recipe_toolkit.sim.dummy import DummyKv
from recipe_toolkit.sim.faults import Faults
from recipe_toolkit.sim.flags import Flags, Layout
from recipe_toolkit.sim.kv import KvCache
from recipe_toolkit.sim.kvfiles import KvFiles
from recipe_toolkit.sim.log import log
from recipe_toolkit.sim.messages import Sink
from recipe_toolkit.sim.nixl import Nixl
from recipe_toolkit.sim.options import Options
from recipe_toolkit.sim.scheduler import Scheduler
from recipe_toolkit.sim.transfer import Transfer

_SHARDS = 4


class Engine:
    """Schedulers of the DP ranks that live here. Raises ValueError where vLLM would refuse to start."""

    def __init__(self, flags: Flags, options: Options, layout: Layout, faults: Faults, sink: Sink) -> None:
        self.schedulers: dict[int, Scheduler] = {}
        self.kv_config = flags["kv-transfer-config"]
        self.drafts = int((flags["speculative-config"] or {}).get("num_speculative_tokens", 0))
        self._flags = flags
        self._options = options
        self._faults = faults
        self._transfers: list[tuple[Transfer, Scheduler]] = []
        tokens = int(options["kv_cache_tokens"])
        if tokens < flags["max-model-len"]:
            raise ValueError(
                f"To serve at least one request with the model's max seq len ({flags['max-model-len']}), "
                f"a KV cache of as many tokens is needed, but kv_cache_tokens is {tokens}"
            )
        for rank in layout.dp_ranks:
            leaks = functools.partial(faults.active, "leak_kv", rank)
            cache = KvCache(tokens, flags["block-size"], flags["enable-prefix-caching"], leaks)
            transfer = self._transfer(rank)
            scheduler = Scheduler(rank, options, cache, flags["max-num-seqs"], sink, transfer, self.drafts)
            self.schedulers[rank] = scheduler
            if transfer is not None:
                self._transfers.append((transfer, scheduler))

    @property
    def nixl(self) -> bool:
        """Whether KV moves by NIXL."""
        return "Nixl" in (self.kv_config or {}).get("kv_connector", "")

    @property
    def blocks(self) -> int:
        """KV blocks of one DP rank."""
        return int(self._options["kv_cache_tokens"]) // int(self._flags["block-size"])

    def _transfer(self, rank: int) -> Transfer | None:
        if self.kv_config is None:
            return None
        name = self.kv_config.get("kv_connector", "")
        if self.nixl:
            return Nixl(self.kv_config, rank, self._options, self._faults, self._flags)
        if name == "ExampleConnector":
            return KvFiles(self.kv_config, self._options, self._flags["block-size"])
        if name == "DecodeBenchConnector":
            return DummyKv()
        log(f"the KV connector {name!r} is not simulated: prompts are prefilled where they arrive", "WARNING")
        return None

    async def open(self) -> None:
        """Listen on the side channels. Raises OSError."""
        for transfer, scheduler in self._transfers:
            await transfer.open(scheduler)

    async def load(self) -> None:
        """Take ``startup_s``, and what a fault adds, with the lines that vLLM prints while it loads."""
        log(f"Starting to load model {self._flags.model}...")
        pause = (self._options["startup_s"] + self._faults.load_s) / _SHARDS
        for shard in range(_SHARDS + 1):
            percent = 100 * shard // _SHARDS
            log(f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {shard}/{_SHARDS}")
            if shard < _SHARDS:
                await asyncio.sleep(pause)
        tokens, longest = int(self._options["kv_cache_tokens"]), self._flags["max-model-len"]
        log(
            f"GPU KV cache size: {tokens:,} tokens, "
            f"Maximum concurrency for {longest:,} tokens per request: {tokens / longest:.2f}x"
        )

    def freeze(self, dp_rank: int | None = None) -> None:
        """Stop generating, in one DP rank or in all that live here."""
        for rank, scheduler in self.schedulers.items():
            if dp_rank is None or rank == dp_rank:
                scheduler.freeze()

    @property
    def unfinished(self) -> int:
        """Requests that have not ended in the ranks that live here."""
        return sum(scheduler.unfinished for scheduler in self.schedulers.values())

    def close(self) -> None:
        """End every request and close the side channels."""
        for scheduler in self.schedulers.values():
            scheduler.abort_all()
        for transfer, _ in self._transfers:
            transfer.close()
