"""Phase *prove*: the deployment does what it is for, before anything is measured.

Ready engines still prefill by themselves while the first handshakes between prefill and decode time
out, and say so in a counter alone. So the lead makes the two-step exchange itself, rank by rank,
with fresh prompts (a repeated one is a prefix-cache hit), until KV has moved.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.errors import DeadlineError, RunError
from recipe_toolkit.results import prometheus
from recipe_toolkit.run import http
from recipe_toolkit.run.context import Clock, Context, Target
from recipe_toolkit.run.http import HttpError
from recipe_toolkit.run.metrics import scrape
from recipe_toolkit.run.transport import require_rdma

_REQUEST_S = 120.0
_METRICS_S = 10.0
_COUNTER_S = 3.0  # how far /metrics may be behind an answer
_PAUSE_S = 0.5
_ALL_PAIRS = 16  # up to so many, every prefill rank is tried with every decode rank
_TOKENS = 8
_TRIES = 3  # prompts that must all differ before an answer counts as wrong
_WORDS = (
    "river",
    "stone",
    "cloud",
    "winter",
    "copper",
    "garden",
    "signal",
    "market",
    "candle",
    "forest",
    "engine",
    "harbor",
    "silver",
    "window",
)

_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_CACHE = "vllm:cache_config_info"
_RETRIED = (408, 425, 429)

log = logging.getLogger("recipe_toolkit.run")


class NotYet(Exception):
    """An attempt that may succeed when it is repeated; the message says what was missing."""


async def prove(context: Context) -> None:
    """Until KV has moved between all ranks (where it should) and the entry has answered.

    Raises DeadlineError with what the last attempts lacked, RunError for an answer that is wrong, or for TCP in place
    of RDMA.
    """
    await require_rdma(context)
    clock = Clock(context.plan.deadlines.prove)
    words = await _words(context)
    pairs: list[tuple[Target, Target]] = []
    if context.plan.proof.kind == "kv_transfer":
        pairs = choose_pairs(context.role_targets("prefill"), context.role_targets("decode"))
        compared: set[str] = set()
        for prefill, decode in pairs:
            with _naming_logs(context, prefill.process, decode.process):
                await _pair(context, clock, prefill, decode, words)
                if decode.instance not in compared:
                    compared.add(decode.instance)
                    await _compare(context, clock, prefill, decode, words)
    with _naming_logs(context, context.plan.entry):
        await _entry(context, clock, words)
    context.journal.event("proved", pairs=len(pairs), prompt_words=words)


@contextmanager
def _naming_logs(context: Context, *processes: str) -> Iterator[None]:
    """Add where the logs of those who took part are: the lead sees their answers alone."""
    try:
        yield
    except RunError as error:
        logs = "".join(f"\n{context.log_of(name)}" for name in processes)
        raise type(error)(error.message + logs, hint=error.hint) from error


def choose_pairs(prefill: Sequence[Target], decode: Sequence[Target]) -> list[tuple[Target, Target]]:
    """All pairs where they are few; else each prefill and each decode rank at least once."""
    if len(prefill) * len(decode) <= _ALL_PAIRS:
        return list(itertools.product(prefill, decode))
    count = max(len(prefill), len(decode))
    return [(prefill[i % len(prefill)], decode[i % len(decode)]) for i in range(count)]


async def _until(context: Context, clock: Clock, what: str, attempt: Any) -> Any:
    """Repeat ``attempt()`` while it raises NotYet. Raises DeadlineError with what was missing last."""
    tries = 0
    while True:
        tries += 1
        try:
            result = await attempt()
        except NotYet as error:
            problem = str(error)
        else:
            if tries > 1:
                context.journal.event("proof_retried", what=what, tries=tries, last=problem)
            return result
        if clock.left() < _PAUSE_S:
            raise DeadlineError(f"prove: {what}: still not after {tries} attempts in {clock.seconds:g} s: {problem}")
        log.info("prove: %s: attempt %d: %s", what, tries, problem)
        await asyncio.sleep(_PAUSE_S)


def fresh_prompt(words: int) -> str:
    """A prompt that no cache holds: random words after a random beginning."""
    return " ".join([f"proof {secrets.token_hex(4)}", *(random.choice(_WORDS) for _ in range(max(1, words)))])


async def _words(context: Context) -> int:
    """Words of a prompt that fills a KV block of every engine, and half of the next.

    The plan goes by the recipe's flags; a hybrid model settles on blocks of thousands of tokens by itself, and
    says so in ``vllm:cache_config_info`` alone.
    """
    sizes = [
        int(sample.labels["block_size"])
        for text in (await scrape(context)).values()
        for sample in prometheus.parse(text, _CACHE)
        if sample.labels.get("block_size", "").isdigit()
    ]
    block = max(sizes, default=0)
    return max(context.plan.proof.prompt_words, block + block // 2 + 16 if block else 0)


async def _complete(
    context: Context, clock: Clock, url: str, headers: Mapping[str, str], prompt: str, **extra: Any
) -> dict[str, Any]:
    """One answer. Raises NotYet where a repetition may help, else RunError."""
    body = {
        "model": context.plan.served_name,
        "prompt": prompt,
        "max_tokens": _TOKENS,
        "temperature": 0,
        "stream": False,
        "ignore_eos": True,
        **extra,
    }
    try:
        answer = await http.post(f"{url}/v1/completions", body, max(1.0, min(_REQUEST_S, clock.left())), headers)
        if answer.status == 200:
            document = answer.json()
            if isinstance(document, dict):
                return document
            raise NotYet(f"{url} answers something else than an object")
    except HttpError as error:
        raise NotYet(str(error)) from error
    text = f"{url} answers {answer.status}: {answer.text[:300]}"
    if answer.status >= 500 or answer.status in _RETRIED:
        raise NotYet(text)
    raise RunError(f"prove: {text}")


def _text(answer: Mapping[str, Any]) -> str:
    try:
        return str(answer["choices"][0]["text"])
    except (KeyError, IndexError, TypeError):
        return ""


@dataclass(frozen=True)
class Count:
    """Prompt tokens of the decode side so far: those that came from where they should, and all others."""

    moved: float = 0.0
    others: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(self.moved + other.moved, self.others + other.others)


async def _count(context: Context, processes: Sequence[str], engine: str | None = None) -> Count:
    """The counters of some processes, of one engine or of all. Raises NotYet."""
    proof = context.plan.proof
    total = Count()
    for process in processes:
        try:
            answer = await http.get(context.base_url(process) + "/metrics", _METRICS_S)
        except HttpError as error:
            raise NotYet(str(error)) from error
        for sample in prometheus.parse(answer.text, proof.counter):
            if sample.name == proof.counter and engine in (None, sample.labels.get("engine", "0")):
                from_there = sample.labels.get("source") == proof.source
                total += Count(sample.value, 0.0) if from_there else Count(0.0, sample.value)
    return total


async def _pair(context: Context, clock: Clock, prefill: Target, decode: Target, words: int) -> None:
    what = f"KV from {prefill} to {decode}"

    async def attempt() -> None:
        before = await _count(context, [decode.process], decode.engine)
        await _two_steps(context, clock, prefill, decode, fresh_prompt(words))
        await _moved(context, [decode.process], before, decode.engine)

    await _until(context, clock, what, attempt)
    context.journal.event("proof_pair", prefill=str(prefill), decode=str(decode))


async def _two_steps(context: Context, clock: Clock, prefill: Target, decode: Target, prompt: str) -> str:
    """What a router does: prefill for one token, then decode with what the prefill handed on."""
    request = {"X-Request-Id": f"proof-{secrets.token_hex(8)}"}
    two_step = context.plan.proof.two_step
    first = await _complete(
        context,
        clock,
        context.base_url(prefill.process),
        {**request, **prefill.headers},
        prompt,
        max_tokens=1,
        **({"kv_transfer_params": _REMOTE_DECODE} if two_step else {}),
    )
    handed = first.get("kv_transfer_params")
    if two_step and not handed:
        raise NotYet(f"{prefill} handed no kv_transfer_params on")
    second = await _complete(
        context,
        clock,
        context.base_url(decode.process),
        {**request, **decode.headers},
        prompt,
        **({"kv_transfer_params": handed} if two_step else {}),
    )
    text = _text(second)
    if not text:
        raise NotYet(f"{decode} answered nothing")
    return text


async def _moved(context: Context, processes: Sequence[str], before: Count, engine: str | None) -> None:
    """Wait until the counters, which are written a moment after the answer, show that KV came. Raises NotYet."""
    clock = Clock(_COUNTER_S)
    while True:
        now = await _count(context, processes, engine)
        if now.moved > before.moved:
            return
        # All sources of a request are counted at once: where another one grew, this one will not.
        if now.others > before.others or clock.over():
            proof = context.plan.proof
            raise NotYet(
                f"{proof.counter}{{source={proof.source}}} of {', '.join(processes)} did not grow: "
                "the decode side computed the prompt itself"
            )
        await asyncio.sleep(0.1)


async def _compare(context: Context, clock: Clock, prefill: Target, decode: Target, words: int) -> None:
    """The decode's answers over moved KV against the prefill instance's own, at temperature 0.

    Rounding may make two right engines differ (other TP sizes, other batch), so one difference is
    only noted. KV that was garbled in transfer makes every answer differ from its first word on:
    when that is so for all of several prompts, the answer counts as wrong.
    """
    seen: list[tuple[str, str]] = []
    for _ in range(_TRIES):
        prompt = fresh_prompt(words)

        async def attempt(prompt: str = prompt) -> tuple[str, str]:
            over = await _two_steps(context, clock, prefill, decode, prompt)
            own = await _complete(context, clock, context.base_url(prefill.process), prefill.headers, prompt)
            return _text(own), over

        own, over = await _until(context, clock, f"the same answer from {prefill} and {decode}", attempt)
        if own == over:
            return
        seen.append((own, over))
        context.journal.event("proof_differs", prefill=str(prefill), decode=str(decode), own=own, over_kv=over)
        log.warning("prove: %s says %r, %s over moved KV %r", prefill, own, decode, over)
    if not any(own.split()[:1] == over.split()[:1] for own, over in seen):
        own, over = seen[-1]
        raise RunError(
            f"prove: wrong answer: over KV from {prefill}, {decode} says {over!r} where {prefill} itself says {own!r}, "
            f"and so for {_TRIES} prompts",
            hint="the two sides may differ in KV layout, dtype or weights",
        )


async def _entry(context: Context, clock: Clock, words: int) -> None:
    """One generation the way clients come; with disaggregation, one whose KV moved."""
    plan = context.plan
    url = context.base_url(plan.entry)
    decode = context.role_targets("decode") if plan.proof.kind == "kv_transfer" else ()
    processes = sorted({target.process for target in decode})

    async def attempt() -> str:
        before = await _count(context, processes)
        answer = await _complete(context, clock, url, {}, fresh_prompt(words))
        text = _text(answer)
        if not text:
            raise NotYet(f"{plan.entry} answered nothing: {str(answer)[:300]}")
        if processes:
            await _moved(context, processes, before, None)
        return text

    text = await _until(context, clock, f"a generation through {plan.entry}", attempt)
    context.journal.event("proof_entry", entry=plan.entry, text=text[:200])
