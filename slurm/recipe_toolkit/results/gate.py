"""The validity gate: why a point may not be compared with others.

Tolerances. OSL 1 %: with ``ignore_eos`` a server answers exactly as long as asked. ISL 2 % either
way, because clients make prompts of words and the server's tokenizer splits them its own way; and
a few tokens more at short lengths, which a chat template or a BOS token adds. Lengths drawn from a
range stray from its middle by chance, the fewer the requests the more. The rules have names (``rules.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recipe_toolkit.plan.model import Plan, Point
from recipe_toolkit.results.model import PointResult, Score
from recipe_toolkit.results.rules import Reason

OSL_TOLERANCE = 0.01
ISL_TOLERANCE = 0.02
CHAT_TEMPLATE_TOKENS = 64
SPECIAL_TOKENS = 2
# Of the decode pool's prompt tokens, beyond what each pulled prompt explains.
LOCAL_PREFILL_TOLERANCE = 0.01
# Of a pool's requests.
PREEMPTION_TOLERANCE = 0.01
PREFIX_HITS_TOLERANCE = 0.05
# Of a core, by the client's busiest thread: what it took and what it waited for.
CLIENT_BUSY = 0.95
CLIENT_SAMPLES = 5
# Of the answers.
WHOLE_TOLERANCE = 0.05
# Requests that a percentile needs so that ten of them lie beyond it.
NEEDED = {"p90": 100, "p99": 1000}
# vLLM's block on CPU is 128 and none is larger by default; used where the engine does not say.
_LARGEST_BLOCK = 128
# Flags with which prompts are no longer random, or begin alike on purpose.
_MEANT = re.compile(
    r"--(no-)?(input-file|custom-dataset|public-dataset|.*prefix-(prompt|len|repetition)|num-prefix|shared-system|"
    r"user-context|conversation|num-conversations|session|random-prefix|dataset-name)"
)
_PERCENTILE = re.compile(r"(?:^|_)(p[0-9]{2})(?:_|$)")


def judge(plan: Plan, point: Point, result: PointResult) -> list[Reason]:
    """Why the point is invalid, in sentences with numbers; empty if nothing speaks against it."""
    return [
        *_exit(result),
        *_requests(result),
        *_tokens(point, result),
        *_lengths(point, result),
        *_too_few(plan, result),
        *(_client(plan, result) if plan.engine != "sim" else ()),
        *(_whole(result) if _apart(plan) else ()),
        *_engines(plan, point, result),
        *_disaggregation(plan, point, result),
        *_accuracy(point, result),
    ]


def few_for(ok: int | None) -> tuple[str, ...]:
    """The percentiles for which so many answered requests are too few."""
    return tuple(name for name, needed in NEEDED.items() if ok is not None and ok < needed)


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


def _accuracy(point: Point, result: PointResult) -> Iterator[Reason]:
    """Thresholds that are missed, or that no score can be held against."""
    if point.accuracy is None:
        return
    for score in result.accuracy:
        if score.met is False:
            error = "" if score.stderr is None else f" ± {score.stderr:.2f}"
            of = f"{score.metric}, {score.filter}, {score.samples} documents"
            said = f"{score.task} scored {score.score:.2f}{error} % ({of}), and at least {score.min:g} % is asked"
            yield Reason("score-low", said)
    if not result.accuracy:
        return  # said already
    for key in point.accuracy.minimum:
        named = (key in (score.task, f"{score.task}/{score.metric},{score.filter}") for score in result.accuracy)
        if not any(named):
            least = point.accuracy.minimum[key]
            yield Reason("score-missing", f"no score for {key}, of which at least {least:g} % is asked")


def remarks(plan: Plan, point: Point, result: PointResult) -> list[str]:
    """What a reader of the point should know and is no reason against it."""
    found = []
    if point.osl is not None and result.requests.ok and result.ttft_ms is None:
        found.append("no time to first token: the answers were not streamed")
    if plan.engine == "sim":
        # Engines that are simulated share the machine's cores with the client, and say nothing of a model.
        found += [reason.said for reason in _client(plan, result)]
    if not _apart(plan):
        found += [reason.said for reason in _whole(result)]
    for role, pool in result.pools.items():
        found += _pool_remarks(role, pool, point)
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


def _exit(result: PointResult) -> Iterator[Reason]:
    if result.exit_code < 0:
        yield Reason("client-failed", f"the client was ended by signal {-result.exit_code}")
    elif result.exit_code:
        yield Reason("client-failed", f"the client ended with exit code {result.exit_code}")


def _requests(result: PointResult) -> Iterator[Reason]:
    wanted, ok, failed = result.requests.wanted, result.requests.ok, result.requests.failed or 0
    if failed:
        yield Reason("requests-failed", f"{failed} of {failed + (ok or 0)} requests failed")
    elif ok == 0:
        yield Reason("requests-failed", "no request was answered")
    if wanted is not None and ok is None:
        said = f"{wanted} requests were wanted, and the client does not say how many it made"
        yield Reason("requests-missing", said)
    elif wanted is not None and ok is not None and ok + failed != wanted:
        yield Reason("requests-missing", f"{wanted} requests were wanted and {ok + failed} were made")


def _tokens(point: Point, result: PointResult) -> Iterator[Reason]:
    if not result.requests.ok:
        return
    if point.isl is not None and not result.isl.seen_mean_tokens:
        yield Reason("tokens-missing", "no input tokens were counted")
    if point.osl is not None and not result.osl.seen_mean_tokens:
        yield Reason("tokens-missing", "no output tokens were counted")
    if result.output_tps == 0:
        yield Reason("tokens-missing", "the output rate is 0 tokens/s")


def _too_few(plan: Plan, result: PointResult) -> Iterator[Reason]:
    ok = result.requests.ok
    for bound in plan.slo if ok else ():
        for name in _PERCENTILE.findall(bound):
            needed = math.ceil(10 / (1 - int(name[1:]) / 100) - 1e-9)
            if ok is not None and ok < needed:
                said = f"slo.{bound} is on the {name} of {ok} requests, and {needed:,} are needed for one"
                yield Reason("too-few-requests", said)


def _client(plan: Plan, result: PointResult) -> Iterator[Reason]:
    """Engines on CPUs take the cores that the client waits for, by design: there it is judged by what it took."""
    load = result.client_load
    if load is None or load.samples < CLIENT_SAMPLES or load.busiest_thread_ratio is None:
        return
    waited = load.waiting_ratio or 0.0 if plan.device == "gpu" else 0.0
    if load.busiest_thread_ratio + waited >= CLIENT_BUSY:
        yield Reason(
            "client-saturated",
            f"the client's busiest thread took {load.busiest_thread_ratio:.0%} of a core and waited {waited:.0%} of "
            f"the time for one, over {load.samples} s, where less than {CLIENT_BUSY:.0%} together are wanted",
        )


def _apart(plan: Plan) -> bool:
    """Whether the engines leave cores to the client and to what streams: not where they are on CPUs or simulated."""
    return plan.engine != "sim" and plan.device == "gpu"


def _whole(result: PointResult) -> Iterator[Reason]:
    ok, whole = result.requests.ok or 0, result.whole_answers or 0
    if whole > ok * WHOLE_TOLERANCE:
        said = f"{whole:,} of {ok:,} answers came in one piece, and {WHOLE_TOLERANCE:.0%} are allowed"
        yield Reason("answers-whole", said)


def _chance(shortest: int | None, longest: int | None, requests: int | None) -> float:
    """Tokens by which the mean of so many uniform lengths strays from the middle but once in 10,000 points."""
    if shortest is None or longest is None or not requests:
        return 0.0
    return 4 * (longest - shortest) / math.sqrt(12 * requests)


def _lengths(point: Point, result: PointResult) -> Iterator[Reason]:
    extra = CHAT_TEMPLATE_TOKENS if result.endpoint == "chat" else SPECIAL_TOKENS
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
            yield Reason(
                f"{name}-length",
                f"{name} length: {wanted} tokens a request were wanted and {seen:.2f} seen "
                f"({over / wanted:+.1%}, {tolerance:.0%} are allowed)",
            )


def _engines(plan: Plan, point: Point, result: PointResult) -> Iterator[Reason]:
    for role, pool in result.pools.items():
        for process in pool.get("restarted") or ():
            yield Reason("engine-restarted", f"counters of {process} began anew: the engine restarted")
        preempted, requests = pool.get("preemptions") or 0, pool.get("requests") or 0
        if preempted > requests * PREEMPTION_TOLERANCE:
            said = f"the {role} engines preempted {preempted:,.0f} of {requests:,.0f} requests, and 1% are allowed"
            yield Reason("engine-preempted", said)
        if role != "decode" and random_prompts(point):
            yield from _hits(role, pool, point)
        silent = pool.get("processes") and result.requests.ok and not (pool.get("spec_decode") or {}).get("drafts")
        if role != "prefill" and silent and _speculates(plan, role):
            said = f"speculative decoding is asked of the {role} engines, and they counted no draft"
            yield Reason("spec-decode-silent", said)


def random_prompts(point: Point) -> bool:
    """Whether no two prompts of the point are meant to begin alike. A command's may be anything."""
    if point.client not in ("aiperf", "vllm-bench"):
        return False
    words = [word for word in point.process.argv if isinstance(word, str)]
    own = [word for word in words if _MEANT.match(word)]
    return own == (["--dataset-name"] if point.client == "vllm-bench" else []) or not own


def _hits(role: str, pool: Mapping[str, Any], point: Point) -> Iterator[Reason]:
    queries, hits = pool.get("prefix_cache_queries_tokens") or 0, pool.get("prefix_cache_hits_tokens") or 0
    # vLLM's warm-up is the first measured prompt over and over: each but the first may be a hit, and the measured one.
    explained = (point.warmup or 0) * (point.isl or 0) if point.client == "vllm-bench" else 0
    over = hits - explained
    if queries and over > queries * PREFIX_HITS_TOLERANCE:
        said = (
            f"{over:,.0f} of the {queries:,.0f} prompt tokens of the {role} pool were prefix-cache hits "
            f"({over / queries:.1%}, {PREFIX_HITS_TOLERANCE:.0%} are allowed), where prompts are random"
        )
        yield Reason("prefix-cache-hits", said)


def _speculates(plan: Plan, role: str) -> bool:
    words: Iterable[object] = (word for item in plan.processes if item.role == role for word in item.argv)
    return plan.engine == "vllm" and not plan.rehearsal and any(word == "--speculative-config" for word in words)


def _disaggregation(plan: Plan, point: Point, result: PointResult) -> Iterator[Reason]:
    if "decode" not in plan.gpus.by_role:
        return
    for role in ("prefill", "decode"):
        pool = result.pools.get(role)
        if pool is not None and pool.get("prompt_tokens") == 0 and result.requests.ok:
            yield Reason("pool-idle", f"the {role} pool saw no prompt")
    late = sum((pool.get("kv_transfer") or {}).get("late_notifications") or 0 for pool in result.pools.values())
    if late:
        said = f"{late:,.0f} KV transfers ended after their lease: their blocks may have been overwritten"
        yield Reason("kv-transfer-late", said)
    decode = result.pools.get("decode")
    if decode is None:
        return
    failed = (decode.get("kv_transfer") or {}).get("failed_transfers")
    if failed:
        yield Reason("kv-transfer-failed", f"{failed:,.0f} KV transfers failed")
    yield from _local_prefill(plan, point, decode)


def _local_prefill(plan: Plan, point: Point, decode: Mapping[str, Any]) -> Iterator[Reason]:
    """A decode engine that gets no KV prefills by itself, and says so in its counters alone.

    Of a prompt that was pulled, one token may be computed anew; of one that was loaded from files,
    what is left over beyond whole blocks.
    """
    sources = decode.get("prompt_tokens_by_source")
    total = sum(sources.values()) if sources else 0.0
    if not sources or not total:
        return
    requests = decode.get("requests") or float((point.requests or 0) + (point.warmup or 0))
    explained = 1 if plan.proof.two_step else int(decode.get("block_size_tokens") or _LARGEST_BLOCK)
    local = sources.get("local_compute", 0.0)
    if local - requests * explained > total * LOCAL_PREFILL_TOLERANCE:
        yield Reason(
            "local-prefill",
            f"the decode pool computed {local:,.0f} of its {total:,.0f} prompt tokens itself ({local / total:.1%}; "
            f"up to {explained} a request is normal): KV did not arrive for all requests",
        )


def _pool_remarks(role: str, pool: Mapping[str, Any], point: Point) -> list[str]:
    found = []
    preempted = pool.get("preemptions") or 0
    if 0 < preempted <= (pool.get("requests") or 0) * PREEMPTION_TOLERANCE:
        found.append(f"the {role} engines preempted {preempted:,.0f} requests: their KV cache was full")
    ratio = pool.get("prefix_cache_hit_ratio")
    # What a decode engine pulled may count as a hit. Tasks with solved examples have prompts that begin alike.
    meant = random_prompts(point) or point.accuracy is not None
    if ratio and ratio > PREFIX_HITS_TOLERANCE and role != "decode" and not meant:
        found.append(f"{ratio:.1%} of the {role} pool's prompt tokens were prefix-cache hits")
    if pool.get("unscraped"):
        found.append(f"the counters of {', '.join(pool['unscraped'])} could not be read")
    transfer = pool.get("kv_transfer") or {}
    if transfer.get("expired_requests"):
        found.append(f"{transfer['expired_requests']:,.0f} prefilled requests of the {role} pool were never fetched")
    return found
