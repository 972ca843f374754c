"""The validity gate: why a point may not be compared with others.

Tolerances. OSL 1 %: with ``ignore_eos`` a server answers exactly as long as asked. ISL 2 % either
way, because clients make prompts of words and the server's tokenizer splits them its own way; and
a few tokens more at short lengths, which a chat template or a BOS token adds. Lengths drawn from a
range stray from its middle by chance, the fewer the requests the more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recipe_toolkit.plan.model import Plan, Point
from recipe_toolkit.results.model import PointResult, Score

OSL_TOLERANCE = 0.01
ISL_TOLERANCE = 0.02
CHAT_TEMPLATE_TOKENS = 64
SPECIAL_TOKENS = 2
# Of the decode pool's prompt tokens, beyond what each pulled prompt explains.
LOCAL_PREFILL_TOLERANCE = 0.01
# vLLM's block on CPU is 128 and none is larger by default; used where the engine does not say.
_LARGEST_BLOCK = 128
_PREFIX_HITS_NOTED = 0.05


def judge(plan: Plan, point: Point, result: PointResult) -> list[str]:
    """Why the point is invalid, in sentences with numbers; empty if nothing speaks against it."""
    return [
        *_exit(result),
        *_requests(result),
        *_tokens(point, result),
        *_lengths(point, result),
        *_engines(result),
        *_disaggregation(plan, point, result),
        *_accuracy(point, result),
    ]


def held(plan: Plan, point: Point, scores: Sequence[Score]) -> tuple[Score, ...]:
    """The scores beside the thresholds of the recipe; answers of the simulated engine are held against none."""
    wanted = point.accuracy.minimum if point.accuracy else {}
    found = []
    for score in scores:
        bound = wanted.get(f"{score.task}/{score.metric},{score.filter}")
        if bound is None and score.main:
            bound = wanted.get(score.task)
        met = None if bound is None or plan.engine == "sim" else score.score >= bound
        found.append(replace(score, min=bound, met=met))
    return tuple(found)


def _accuracy(point: Point, result: PointResult) -> Iterator[str]:
    """Thresholds that are missed, or that no score can be held against."""
    if point.accuracy is None:
        return
    for score in result.accuracy:
        if score.met is False:
            error = "" if score.stderr is None else f" ± {score.stderr:.2f}"
            of = f"{score.metric}, {score.filter}, {score.samples} documents"
            yield f"{score.task} scored {score.score:.2f}{error} % ({of}), and at least {score.min:g} % is asked"
    if not result.accuracy:
        return  # said already
    for key in point.accuracy.minimum:
        named = (key in (score.task, f"{score.task}/{score.metric},{score.filter}") for score in result.accuracy)
        if not any(named):
            yield f"no score for {key}, of which at least {point.accuracy.minimum[key]:g} % is asked"


def remarks(plan: Plan, point: Point, result: PointResult) -> list[str]:
    """What a reader of the point should know and is no reason against it."""
    found = []
    if point.osl is not None and result.requests.ok and result.ttft_ms is None:
        found.append("no time to first token: the answers were not streamed")
    for role, pool in result.pools.items():
        found += _pool_remarks(role, pool, shared=point.accuracy is not None)
    # vLLM's warm-up is the first measured prompt over and over.
    hits = (pool.get("prefix_cache_hit_ratio") for role, pool in result.pools.items() if role != "decode")
    if point.client == "vllm-bench" and point.warmup and any(hits):
        found.append("the warm-up sends the first measured prompt, so that request may be a prefix-cache hit")
    if plan.engine == "sim" and point.accuracy is not None:
        found.append("the answers are simulated, so the scores say nothing and are held against no threshold")
    decode = result.pools.get("decode")
    if "decode" in plan.gpus.by_role and (decode is None or decode.get("prompt_tokens_by_source") is None):
        found.append("the decode pool's counters were not read, so silent local prefill is not ruled out")
    return found


def _exit(result: PointResult) -> list[str]:
    if result.exit_code < 0:
        return [f"the client was ended by signal {-result.exit_code}"]
    if result.exit_code:
        return [f"the client ended with exit code {result.exit_code}"]
    return []


def _requests(result: PointResult) -> list[str]:
    wanted, ok, failed = result.requests.wanted, result.requests.ok, result.requests.failed or 0
    reasons = []
    if failed:
        reasons.append(f"{failed} of {failed + (ok or 0)} requests failed")
    elif ok == 0:
        reasons.append("no request was answered")
    if wanted is not None and ok is None:
        reasons.append(f"{wanted} requests were wanted, and the client does not say how many it made")
    elif wanted is not None and ok is not None and ok + failed != wanted:
        reasons.append(f"{wanted} requests were wanted and {ok + failed} were made")
    return reasons


def _tokens(point: Point, result: PointResult) -> list[str]:
    if not result.requests.ok:
        return []
    reasons = []
    if point.isl is not None and not result.isl.seen_mean_tokens:
        reasons.append("no input tokens were counted")
    if point.osl is not None and not result.osl.seen_mean_tokens:
        reasons.append("no output tokens were counted")
    if result.output_tps == 0:
        reasons.append("the output rate is 0 tokens/s")
    return reasons


def _chance(shortest: int | None, longest: int | None, requests: int | None) -> float:
    """Tokens by which the mean of so many uniform lengths strays from the middle but once in 10,000 points."""
    if shortest is None or longest is None or not requests:
        return 0.0
    return 4 * (longest - shortest) / math.sqrt(12 * requests)


def _lengths(point: Point, result: PointResult) -> list[str]:
    extra = CHAT_TEMPLATE_TOKENS if result.endpoint == "chat" else SPECIAL_TOKENS
    reasons = []
    for name, length, shortest, longest, least, room in (
        ("input", result.isl, point.isl_min, point.isl, ISL_TOLERANCE, extra),
        ("output", result.osl, point.osl_min, point.osl, OSL_TOLERANCE, 0),
    ):
        wanted, seen = length.wanted_tokens, length.seen_mean_tokens
        if not wanted or not seen:
            continue
        tolerance = least + _chance(shortest, longest, result.requests.ok) / wanted
        over = seen - wanted
        if over > max(wanted * tolerance, room) or -over > wanted * tolerance:
            reasons.append(
                f"{name} length: {wanted} tokens a request were wanted and {seen:.2f} seen "
                f"({over / wanted:+.1%}, {tolerance:.0%} are allowed)"
            )
    return reasons


def _engines(result: PointResult) -> list[str]:
    return [
        f"counters of {process} began anew: the engine restarted"
        for pool in result.pools.values()
        for process in pool.get("restarted") or ()
    ]


def _disaggregation(plan: Plan, point: Point, result: PointResult) -> list[str]:
    if "decode" not in plan.gpus.by_role:
        return []
    reasons = []
    for role in ("prefill", "decode"):
        pool = result.pools.get(role)
        if pool is not None and pool.get("prompt_tokens") == 0 and result.requests.ok:
            reasons.append(f"the {role} pool saw no prompt")
    late = sum((pool.get("kv_transfer") or {}).get("late_notifications") or 0 for pool in result.pools.values())
    if late:
        reasons.append(f"{late:,.0f} KV transfers ended after their lease: their blocks may have been overwritten")
    decode = result.pools.get("decode")
    if decode is None:
        return reasons
    failed = (decode.get("kv_transfer") or {}).get("failed_transfers")
    if failed:
        reasons.append(f"{failed:,.0f} KV transfers failed")
    return reasons + _local_prefill(plan, point, decode)


def _local_prefill(plan: Plan, point: Point, decode: Mapping[str, Any]) -> list[str]:
    """A decode engine that gets no KV prefills by itself, and says so in its counters alone.

    Of a prompt that was pulled, one token may be computed anew; of one that was loaded from files,
    what is left over beyond whole blocks.
    """
    sources = decode.get("prompt_tokens_by_source")
    total = sum(sources.values()) if sources else 0.0
    if not sources or not total:
        return []
    requests = decode.get("requests") or float((point.requests or 0) + (point.warmup or 0))
    explained = 1 if plan.proof.two_step else int(decode.get("block_size_tokens") or _LARGEST_BLOCK)
    local = sources.get("local_compute", 0.0)
    if local - requests * explained <= total * LOCAL_PREFILL_TOLERANCE:
        return []
    return [
        f"the decode pool computed {local:,.0f} of its {total:,.0f} prompt tokens itself ({local / total:.1%}; "
        f"up to {explained} a request is normal): KV did not arrive for all requests"
    ]


def _pool_remarks(role: str, pool: Mapping[str, Any], shared: bool) -> list[str]:
    """``shared``: whether prompts are meant to begin alike, as those with solved examples do."""
    found = []
    if pool.get("preemptions"):
        found.append(f"the {role} engines preempted {pool['preemptions']:,.0f} requests: their KV cache was full")
    ratio = pool.get("prefix_cache_hit_ratio")
    # What a decode engine pulled may count as a hit; what it computed is judged above.
    if ratio and ratio > _PREFIX_HITS_NOTED and role != "decode" and not shared:
        found.append(f"{ratio:.1%} of the {role} pool's prompt tokens were prefix-cache hits")
    if pool.get("unscraped"):
        found.append(f"the counters of {', '.join(pool['unscraped'])} could not be read")
    transfer = pool.get("kv_transfer") or {}
    if transfer.get("expired_requests"):
        found.append(f"{transfer['expired_requests']:,.0f} prefilled requests of the {role} pool were never fetched")
    return found
