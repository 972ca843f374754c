"""The scheduler of one DP rank: which request gets a token when.

The timing model stands in :mod:`recipe_toolkit.sim`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from recipe_toolkit.sim.kv import KvCache
from recipe_toolkit.sim.messages import Batch, Event, Sink, Submission
from recipe_toolkit.sim.options import Options
from recipe_toolkit.sim.prompts import mix
from recipe_toolkit.sim.stats import Stats
from recipe_toolkit.sim.transfer import Pull, Transfer


@dataclass(eq=False)
class Sequence:
    """A request in this rank. Times are of the event loop's clock, seconds."""

    request: Submission
    arrived: float
    admitted: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    blocks: int = 0
    cached: int = 0
    external: int = 0
    salt: int = 0
    generated: int = 0
    steps: int = 0
    pulling: "asyncio.Task[None] | None" = None
    done: bool = False

    @property
    def tokens(self) -> int:
        """Tokens whose KV exists or is being computed."""
        return self.request.prompt_tokens + self.generated


class Scheduler:
    """Takes submissions, and calls ``sink`` with a batch at the end of each step."""

    def __init__(
        self,
        rank: int,
        options: Options,
        kv: KvCache,
        max_seqs: int,
        sink: Sink,
        transfer: Transfer | None = None,
        draft_tokens: int = 0,
    ) -> None:
        self.rank = rank
        self.kv = kv
        self._options = options
        self._max_seqs = max_seqs
        self._sink = sink
        self._transfer = transfer
        self._draft_tokens = draft_tokens
        self._loop = asyncio.get_running_loop()
        self._stats = Stats()
        self._events: list[Event] = []
        self._all: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._admitted: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._prefilled: list[Sequence] = []
        self._joining: list[Sequence] = []
        self._prefill_free = 0.0
        self._step: asyncio.TimerHandle | None = None
        self._step_at = 0.0
        self._frozen = False

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._all)

    def freeze(self) -> None:
        """Do nothing any more, as a rank that waits for a lost collective."""
        self._frozen = True

    def count(self, name: str, increase: int = 1) -> None:
        """Add to a counter; it reaches the metrics with the next batch."""
        self._stats.count(name, increase)

    def give_back(self, blocks: int) -> None:
        """Free blocks that were held for a decode side."""
        self.kv.give_back(blocks)
        self._settle()

    def submit(self, request: Submission) -> None:
        """Queue a request."""
        sequence = Sequence(request, self._loop.time())
        self._all[request.id] = sequence
        self._waiting.append(sequence)
        self._settle()

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more; unknown ids are ignored."""
        sequence = self._all.get(request_id)
        if sequence is not None:
            self._finish(sequence, "abort", 0, {})
            self._settle()

    def abort_all(self) -> None:
        """End every request."""
        for request_id in list(self._all):
            self.abort(request_id)

    def _settle(self) -> None:
        """After a change outside of a step: use what has become free, and tell."""
        self._admit()
        self._flush()

    def _flush(self) -> None:
        if self._frozen:
            return
        events, self._events = self._events, []
        counts, times = self._stats.take()
        gauges = (len(self._admitted), len(self._waiting), self.kv.usage)
        self._sink(Batch(self.rank, events, gauges, counts, times))

    def _admit(self) -> None:
        """Give seats and blocks to those who wait, first come first served."""
        while self._waiting and len(self._admitted) < self._max_seqs and not self._frozen:
            sequence = self._waiting[0]
            blocks = self.kv.need(sequence.tokens)
            if not self.kv.take(blocks):
                return
            self._waiting.popleft()
            sequence.blocks = blocks
            self._admitted[sequence.request.id] = sequence
            pull = None if sequence.generated else self._look_up(sequence)
            if pull is None:
                self._prefill(sequence)
            else:
                sequence.pulling = self._loop.create_task(self._pull(sequence, pull))

    def _look_up(self, sequence: Sequence) -> Pull | None:
        """Find the prompt in the local cache; the transfer that brings the rest, if there is one."""
        request = sequence.request
        sequence.admitted = self._loop.time()
        if self.kv.caching:
            sequence.cached = self.kv.hits(request.hashes, request.prompt_tokens)
            self._stats.count("prefix_cache_queries", request.prompt_tokens)
            self._stats.count("prefix_cache_hits", sequence.cached)
        return None if self._transfer is None else self._transfer.plan(request, sequence.cached)

    async def _pull(self, sequence: Sequence, pull: Pull) -> None:
        assert self._transfer is not None
        request = sequence.request
        result = await self._transfer.pull(request, pull)
        sequence.pulling = None
        for name, value in result.times.items():
            self._stats.time(name, value)
        if result.failed and not self._transfer.recompute:
            self._finish(sequence, "error", 0, {})
            self._settle()
            return
        self._stats.count("external_prefix_cache_queries", request.prompt_tokens - sequence.cached)
        self._stats.count("external_prefix_cache_hits", result.tokens)
        sequence.external = result.tokens
        sequence.salt = result.salt
        if sequence.cached + sequence.external < request.prompt_tokens:
            self._prefill(sequence)
            return
        # The last token's output is still to be computed: a step brings the first token.
        self._joining.append(sequence)
        if self._step is None and not self._frozen:
            self._step_at = self._loop.time()
            self._begin_step()

    def _prefill(self, sequence: Sequence) -> None:
        """Take the next free time of the prefill lane: one after the other, whatever the steps do."""
        tokens = sequence.tokens - sequence.cached - sequence.external
        duration = self._options.seconds("ttft_base_ms") + tokens / self._options["prefill_tokens_per_s"]
        self._prefill_free = max(self._prefill_free, self._loop.time()) + duration
        self._loop.call_at(self._prefill_free, self._end_prefill, sequence)

    def _end_prefill(self, sequence: Sequence) -> None:
        if sequence.done or self._frozen:
            return
        self._prefilled.append(sequence)
        # A step that is under way brings the token at its end, as in a mixed batch.
        if self._step is None:
            self._step_at = self._loop.time()
            self._end_step()

    def _begin_step(self) -> None:
        """Start a step for all that run. A late end is made up for by the next step, no further."""
        self._running.update((sequence.request.id, sequence) for sequence in self._joining if not sequence.done)
        self._joining.clear()
        if not self._running:
            return
        duration = self._options.seconds("tpot_base_ms")
        duration += self._options.seconds("tpot_per_seq_ms") * len(self._running)
        self._step_at = max(self._step_at + duration, self._loop.time())
        self._step = self._loop.call_at(self._step_at, self._end_step)

    def _end_step(self) -> None:
        self._step = None
        if self._frozen:
            return
        now = self._loop.time()
        for request_id, sequence in list(self._running.items()):
            if request_id in self._running:
                self._advance(sequence, now)
        prefilled, self._prefilled = self._prefilled, []
        for sequence in prefilled:
            if not sequence.done:
                self._running[sequence.request.id] = sequence
                self._emit(sequence, 1, now)
        self._admit()
        self._begin_step()
        self._flush()

    def _advance(self, sequence: Sequence, now: float) -> None:
        drafts = self._accepted(sequence) if self._draft_tokens and sequence.generated else 0
        tokens = min(1 + drafts, sequence.request.limit - sequence.generated)
        blocks = self.kv.need(sequence.tokens + tokens)
        while blocks > sequence.blocks:
            if self.kv.take(blocks - sequence.blocks):
                sequence.blocks = blocks
                break
            # vLLM preempts the request that came last, and computes its KV anew later.
            victim = next(reversed(self._running.values()))
            self._preempt(victim)
            if victim is sequence:
                return
        self._emit(sequence, tokens, now)

    def _preempt(self, sequence: Sequence) -> None:
        self._stats.count("num_preemptions")
        self._leave(sequence)
        sequence.cached = sequence.external = 0
        self._waiting.appendleft(sequence)

    def _accepted(self, sequence: Sequence) -> int:
        """Draft tokens accepted in this step; as deterministic as the answer."""
        drawn = mix(sequence.request.seed ^ 0x5DEECE66D, sequence.steps) / 2**32
        chance = self._options["spec_acceptance"]
        accepted = sum(drawn < chance**position for position in range(1, self._draft_tokens + 1))
        for position in range(accepted):
            self._stats.count(f"spec_decode_num_accepted_tokens_per_pos/{position}")
        self._stats.count("spec_decode_num_drafts")
        self._stats.count("spec_decode_num_draft_tokens", self._draft_tokens)
        self._stats.count("spec_decode_num_accepted_tokens", accepted)
        return accepted

    def _emit(self, sequence: Sequence, tokens: int, now: float) -> None:
        info: dict[str, object] = {}
        if sequence.generated:
            self._stats.time("inter_token_latency_seconds", now - sequence.last_at)
        else:
            self._first(sequence, now)
            info = {"cached": sequence.cached + sequence.external, "salt": sequence.salt}
        sequence.last_at = now
        sequence.generated += tokens
        sequence.steps += 1
        self._stats.count("generation_tokens", tokens)
        if sequence.generated >= sequence.request.limit:
            self._finish(sequence, sequence.request.reason, tokens, info)
        else:
            self._events.append(Event(sequence.request.id, tokens, None, info))

    def _first(self, sequence: Sequence, now: float) -> None:
        request, stats = sequence.request, self._stats
        sequence.first_at = now
        self.kv.store(request.hashes)
        if self._transfer is not None:
            self._transfer.computed(request)
        computed = request.prompt_tokens - sequence.cached - sequence.external
        stats.count("prompt_tokens", request.prompt_tokens)
        stats.count("prompt_tokens_by_source/local_compute", computed)
        stats.count("prompt_tokens_by_source/local_cache_hit", sequence.cached)
        stats.count("prompt_tokens_by_source/external_kv_transfer", sequence.external)
        stats.count("prompt_tokens_cached", sequence.cached + sequence.external)
        stats.time("time_to_first_token_seconds", now - sequence.arrived)

    def _finish(self, sequence: Sequence, reason: str, tokens: int, info: dict[str, object]) -> None:
        request = sequence.request
        sequence.done = True
        del self._all[request.id]
        if request.id in self._admitted:
            kv = None
            if self._transfer is not None and reason in ("length", "stop"):
                kv = self._transfer.hold(request, sequence.blocks)
            self._leave(sequence, free=kv is None)
            if kv is not None:
                info = {**info, "kv": kv}
        else:
            self._waiting.remove(sequence)
            if self._transfer is not None:
                self._transfer.forget(request)
        self._record(sequence, reason)
        self._events.append(Event(request.id, tokens, reason, info))

    def _record(self, sequence: Sequence, reason: str) -> None:
        request, stats, now = sequence.request, self._stats, self._loop.time()
        stats.count(f"request_success/{reason}")
        stats.time("e2e_request_latency_seconds", now - sequence.arrived)
        stats.time("request_prompt_tokens", request.prompt_tokens)
        stats.time("request_generation_tokens", sequence.generated)
        stats.time("request_params_max_tokens", request.limit)
        if sequence.admitted:
            stats.time("request_queue_time_seconds", sequence.admitted - sequence.arrived)
            stats.time("request_inference_time_seconds", now - sequence.admitted)
        if sequence.first_at:
            decode = sequence.last_at - sequence.first_at
            stats.time("request_prefill_time_seconds", sequence.first_at - sequence.admitted)
            stats.time("request_decode_time_seconds", decode)
            if sequence.generated > 1:
                stats.time("request_time_per_output_token_seconds", decode / (sequence.generated - 1))

    def _leave(self, sequence: Sequence, free: bool = True) -> None:
        """Give up the seat, and the blocks unless they are held."""
        self._admitted.pop(sequence.request.id, None)
        self._running.pop(sequence.request.id, None)
        if free:
            self.kv.give_back(sequence.blocks)
        sequence.blocks = 0
        if sequence.pulling is not None and self._transfer is not None:
            sequence.pulling.cancel()
            self._transfer.forget(sequence.request)
