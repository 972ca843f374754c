"""The rules of the validity gate: their names, which do not change, what each finds, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """``when``: the point is invalid where this holds. ``do``: what to do, the end of each of its reasons."""

    when: str
    do: str


@dataclass(frozen=True)
class Reason:
    """Why a point is invalid: the rule's name, and what was found and wanted."""

    rule: str
    said: str

    @property
    def text(self) -> str:
        """The sentence that results, tables and pages show."""
        return f"{self.said}; {RULES[self.rule].do}"


RULES: Mapping[str, Rule] = {
    "client-failed": Rule(
        "the client ended by a signal or with another code than 0",
        "see its log beside its artifacts",
    ),
    "client-files": Rule(
        "the client's own files contradict each other, are cut or unreadable, or say that it was cancelled or that "
        "answers were cut short",
        "see its artifacts, and measure again",
    ),
    "requests-failed": Rule(
        "any request failed or was cancelled, or none was answered",
        "none may fail: see the client's records and the engines' logs",
    ),
    "requests-missing": Rule(
        "more or fewer requests were made than wanted, or the client does not say how many",
        "measure again; a time-out or a flag in `args` may have cut it short",
    ),
    "tokens-missing": Rule(
        "input or output tokens were not counted, or the output rate is 0",
        "see what the engine answered, and whether it reports usage",
    ),
    "input-length": Rule(
        "the mean input is more than 2 % off (2 tokens more are allowed in any case, 64 for chat: its template)",
        "check the tokenizer that the client uses",
    ),
    "output-length": Rule(
        "the mean output is more than 1 % off",
        "check that ignore_eos reaches the engine, and max-model-len",
    ),
    "warmup-missing": Rule(
        "the recipe asks for warm-up requests, and the client's records hold fewer",
        "without them the first figures are of cold caches and connections: measure again",
    ),
    "too-few-requests": Rule(
        "a bound of the recipe's `slo` is on a percentile q for which there are fewer than 10 / (1 - q) requests",
        "raise `requests` or `requests_per_concurrency`, or bound a lower percentile",
    ),
    "client-saturated": Rule(
        "while requests were in flight, the busiest thread of the client's processes that send them took 95 % of a "
        "core or, beside GPUs, took or waited for it, over five samples (seconds) or more; a note where the engines "
        "are simulated",
        "the client was the bottleneck: give it more or faster cores, or lower the load",
    ),
    "answers-whole": Rule(
        "over 5 % of the answers came to the client in one piece: 16 tokens or more, in less than 0.05 ms each; a note "
        "where the engines are on CPUs or simulated",
        "TTFT is then the whole answer's, and TPOT nothing: find what holds the stream back (a proxy, a client that is "
        "late), or ask for longer answers",
    ),
    "engine-restarted": Rule(
        "an engine's counters fell, or it says another time of start",
        "see its log: the point holds its loading too",
    ),
    "engine-preempted": Rule(
        "engines preempted more than 1 % of their requests",
        "their KV cache was full and prompts were computed again: lower the load or max-num-seqs, or give KV more room",
    ),
    "prefix-cache-hits": Rule(
        "over 5 % of the prompt tokens of a pool other than decode were prefix-cache hits, where prompts are random",
        "use another seed, or no-enable-prefix-caching",
    ),
    "spec-decode-silent": Rule(
        "speculative decoding is asked for, and the engines' counters hold no draft",
        "its acceptance is part of the result: see the engine's log why it does not draft",
    ),
    "local-prefill": Rule(
        "the decode pool computed prompts itself: more than 1 token a request (a block with files) and 1 % of its "
        "prompt tokens",
        "the figures are of another deployment than the recipe's: see the KV connector's lines in its logs",
    ),
    "pool-idle": Rule(
        "the prefill or the decode pool saw no prompt",
        "see the router's log",
    ),
    "kv-transfer-failed": Rule(
        "a KV transfer failed",
        "see the connector's lines in the decode engines' logs, and `recipe check` for the network",
    ),
    "kv-transfer-late": Rule(
        "a KV transfer ended after its lease: its blocks may have been overwritten",
        "raise kv_lease_duration, or find what makes transfers slow",
    ),
    "score-low": Rule(
        "a score is below its `min`",
        "see docs/accuracy.md",
    ),
    "score-missing": Rule(
        "no score was found for a task that has a `min`",
        "name the task as lm-eval does",
    ),
}
