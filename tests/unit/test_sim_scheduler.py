"""The timing model against its formulas, on a clock that takes no time."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field

import pytest

from recipe_toolkit.sim import options as sim_options
from recipe_toolkit.sim import prompts
from recipe_toolkit.sim.kv import KvCache
from recipe_toolkit.sim.messages import Batch, Submission
from recipe_toolkit.sim.scheduler import Scheduler
from simkit import run_virtual, words

BLOCK = 16
TIMES = json.dumps(
    {"ttft_base_ms": 20, "prefill_tokens_per_s": 1000, "tpot_base_ms": 10, "tpot_per_seq_ms": 1, "spec_acceptance": 0.5}
)


@dataclass
class Bench:
    """A scheduler, and when each request got its tokens."""

    kv_tokens: int = 4096
    max_seqs: int = 64
    drafts: int = 0
    at: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    times: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        kv = KvCache(self.kv_tokens, BLOCK)
        self.scheduler = Scheduler(
            0, sim_options.parse(TIMES, {}), kv, self.max_seqs, self.take, draft_tokens=self.drafts
        )

    def take(self, batch: Batch) -> None:
        self.gauges = batch.gauges
        for name, increase in batch.counts.items():
            self.counts[name] = self.counts.get(name, 0) + increase
        for name, values in batch.times.items():
            self.times.setdefault(name, []).extend(values)
        for event in batch.events:
            if event.tokens:
                self.at.setdefault(event.id, []).append((self.loop.time(), event.tokens))
            if event.reason:
                self.ended[event.id] = event.reason

    def submit(self, name: str, tokens: int, limit: int, text: str | None = None) -> None:
        prompt = prompts.from_text(text or words(tokens, name))
        hashes = tuple(prompts.block_hashes(prompt, BLOCK))
        self.scheduler.submit(Submission(name, len(prompt), limit, "length", prompt.seed, hashes))

    async def finish(self) -> None:
        while self.scheduler.unfinished:
            await asyncio.sleep(0.001)

    def first(self, name: str) -> float:
        return self.at[name][0][0]

    def steps(self, name: str) -> list[float]:
        moments = [moment for moment, _ in self.at[name]]
        return [later - earlier for earlier, later in itertools.pairwise(moments)]


def test_one_request_alone():
    async def work():
        bench = Bench()
        bench.submit("a", 100, 5)
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert bench.first("a") == pytest.approx(0.020 + 100 / 1000, abs=2e-3)
    assert bench.steps("a") == pytest.approx([0.011] * 4, abs=1e-3)
    assert bench.ended == {"a": "length"}
    assert bench.counts["generation_tokens"] == 5
    assert bench.counts["prompt_tokens_by_source/local_compute"] == 100


def test_prefills_of_a_rank_run_one_after_the_other():
    async def work():
        bench = Bench()
        for name in "abc":
            bench.submit(name, 100, 1)
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert [bench.first(name) for name in "abc"] == pytest.approx([0.120, 0.240, 0.360], abs=3e-3)


def test_a_step_takes_longer_with_more_sequences():
    async def work():
        bench = Bench()
        for name in "abcdefgh":
            bench.submit(name, 1, 60)
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert bench.steps("h")[1] == pytest.approx(0.010 + 8 * 0.001, abs=1e-3)
    assert bench.steps("a")[0] == pytest.approx(0.010 + 1 * 0.001, abs=1e-3)


def test_a_prefill_that_ends_in_a_step_waits_for_its_end():
    async def work():
        bench = Bench()
        bench.submit("a", 1, 40)
        await asyncio.sleep(0.0305)
        bench.submit("b", 1, 3)
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert bench.first("b") in [moment for moment, _ in bench.at["a"]]
    assert 0.021 <= bench.first("b") - 0.0305 <= 0.021 + 0.011 + 3e-3


def test_seats_are_given_in_order():
    async def work():
        bench = Bench(max_seqs=1)
        bench.submit("a", 10, 3)
        bench.submit("b", 10, 3)
        assert bench.gauges == (1, 1, 1 / 256)
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert bench.first("b") == pytest.approx(bench.at["a"][-1][0] + 0.030, abs=2e-3)
    assert bench.gauges == (0, 0, 0.0)
    waited = [value for value, _ in bench.times["request_queue_time_seconds"]]
    assert max(waited) == pytest.approx(bench.at["a"][-1][0], abs=2e-3)


def test_cached_prefixes_are_not_computed_again():
    async def work():
        bench = Bench()
        bench.submit("a", 0, 1, words(100))
        await bench.finish()
        began = bench.loop.time()
        bench.submit("b", 0, 1, words(100))
        await bench.finish()
        return bench, began

    bench, began = run_virtual(work())
    cached = 99 // BLOCK * BLOCK
    assert bench.counts["prefix_cache_hits"] == cached
    assert bench.counts["prompt_tokens_by_source/local_cache_hit"] == cached
    assert bench.first("b") - began == pytest.approx(0.020 + (100 - cached) / 1000, abs=2e-3)


def test_the_last_token_of_a_cached_prompt_is_computed():
    cache = KvCache(1024, BLOCK)
    hashes = prompts.block_hashes(prompts.from_text(words(BLOCK * 2)), BLOCK)
    cache.store(hashes)
    assert cache.hits(hashes, BLOCK * 2) == BLOCK
    assert cache.hits(hashes, BLOCK * 2 + 1) == BLOCK * 2


def test_a_full_cache_preempts_the_request_that_came_last():
    async def work():
        bench = Bench(kv_tokens=BLOCK * 6)
        bench.submit("a", 30, 40)
        bench.submit("b", 30, 40)
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert bench.counts["num_preemptions"] >= 1
    assert max(bench.steps("b")) > 0.05 > max(bench.steps("a")[1:])
    assert {name: sum(tokens for _, tokens in got) for name, got in bench.at.items()} == {"a": 40, "b": 40}
    assert bench.counts["prompt_tokens"] == 60, "a prompt that is computed anew is not counted twice"
    assert bench.scheduler.kv.used == 0


def test_draft_tokens_come_along():
    async def work():
        bench = Bench(drafts=3)
        bench.submit("a", 10, 400)
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert sum(tokens for _, tokens in bench.at["a"]) == 400
    drafts, accepted = bench.counts["spec_decode_num_drafts"], bench.counts["spec_decode_num_accepted_tokens"]
    assert accepted / drafts == pytest.approx(0.5 + 0.25 + 0.125, abs=0.2)
    by_position = [bench.counts[f"spec_decode_num_accepted_tokens_per_pos/{n}"] for n in range(3)]
    assert by_position == sorted(by_position, reverse=True)
    assert sum(by_position) == accepted


def test_an_aborted_request_gives_everything_back():
    async def work():
        bench = Bench()
        bench.submit("a", 100, 1000)
        bench.submit("b", 100, 2)
        await asyncio.sleep(0.2)
        bench.scheduler.abort("a")
        bench.scheduler.abort("nobody")
        await bench.finish()
        return bench

    bench = run_virtual(work())
    assert bench.ended == {"a": "abort", "b": "length"}
    assert bench.scheduler.kv.used == 0


def test_a_frozen_rank_does_nothing():
    async def work():
        bench = Bench()
        bench.submit("a", 10, 1000)
        await asyncio.sleep(0.2)
        bench.scheduler.freeze()
        before = len(bench.at["a"])
        bench.submit("b", 10, 1)
        await asyncio.sleep(10)
        return bench, before

    bench, before = run_virtual(work())
    assert len(bench.at["a"]) == before
    assert "b" not in bench.at
