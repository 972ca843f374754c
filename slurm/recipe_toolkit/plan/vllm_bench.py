"""The command line of ``vllm bench serve`` (0.32; facts from ``vllm/benchmarks/serve.py``).

It is told the tokenizer's path or repository alone: it knows no revision. Its ready check and its
warm-up send the first prompt that is measured, so that one is a prefix-cache hit after a warm-up.
A rate's arrivals are a Poisson process, as AIPerf's.
"""

from __future__ import annotations

import math

from recipe_toolkit.plan import flags
from recipe_toolkit.plan.load import Load, word
from recipe_toolkit.plan.values import Json, Value

SUMMARY = "vllm_bench.json"

_ENDPOINTS = {"completions": ("openai", "/v1/completions"), "chat": ("openai-chat", "/v1/chat/completions")}

RESERVED = {
    **dict.fromkeys(("base-url", "host", "port", "model", "served-model-name"), "the plan sets it"),
    **dict.fromkeys(("tokenizer", "skip-tokenizer-init"), "it stands in model.tokenizer"),
    **dict.fromkeys(("random-input-len", "input-len"), "it stands in isl"),
    **dict.fromkeys(("random-output-len", "output-len"), "it stands in osl"),
    "random-range-ratio": "lengths are those of isl and osl, or from isl_min and osl_min up to them",
    "random-batch-size": "a request is one prompt",
    **dict.fromkeys(("dataset-name", "dataset-path"), "prompts are random, of the length isl"),
    **dict.fromkeys(("backend", "endpoint"), "it stands in endpoint"),
    "max-concurrency": "it stands in concurrency or max_concurrency",
    "request-rate": "it stands in request_rate",
    **dict.fromkeys(("ramp-up-strategy", "ramp-up-start-rps", "ramp-up-end-rps"), "a point is one load"),
    "num-prompts": "it stands in requests or requests_per_concurrency",
    "num-warmups": "it stands in warmup or warmup_per_concurrency",
    "seed": "it stands in seed",
    "goodput": "it follows from slo",
    "ignore-eos": "answers are as long as osl",
    **dict.fromkeys(("result-dir", "result-filename"), "artifacts have one place"),
    **dict.fromkeys(("save-result", "append-result", "save-detailed"), "results are checked against the records"),
    **dict.fromkeys(("percentile-metrics", "metric-percentiles"), "results have one set of figures"),
    "ready-check-timeout-sec": "the run has shown that the engines answer",
    "disable-tqdm": "output goes to a log",
}


def arguments(load: Load) -> list[Value]:
    """What follows the program's name; the recipe's own flags come after it."""
    backend, path = _ENDPOINTS[load.endpoint]
    words: list[Value] = ["bench", "serve", "--model", load.model, "--base-url", load.entry]
    words += ["--backend", backend, "--endpoint", path, "--tokenizer", load.tokenizer.where]
    isl, osl, ratio = _lengths(load)
    words += ["--dataset-name", "random", "--random-input-len", isl, "--random-output-len", osl]
    words += ["--random-range-ratio", ratio, "--ignore-eos"]
    if load.concurrency is not None:
        words += ["--max-concurrency", word(load.concurrency)]
    if load.request_rate is not None:
        words += ["--request-rate", word(load.request_rate)]
    if load.max_concurrency is not None:
        words += ["--max-concurrency", str(load.max_concurrency)]
    words += ["--num-prompts", word(load.requests)]
    if load.warmup:
        words += ["--num-warmups", word(load.warmup)]
    words += ["--seed", word(load.seed)]
    bounds = load.goodput("ttft", "tpot", "e2el")
    words += ["--goodput", *bounds] if bounds else []
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
    words += ["--save-result", "--save-detailed", "--result-dir", load.folder, "--result-filename", SUMMARY]
    # Engines, router and KV transfer were proved before; its own check would send a prompt that is measured.
    return [*words, "--ready-check-timeout-sec", "0", "--disable-tqdm"]


def _lengths(load: Load) -> tuple[Value, Value, Value]:
    """The middle of each range and how far lengths may stray from it, which is how this client takes a range.

    It draws from floor(middle * (1 - ratio)) to ceil(middle * (1 + ratio)) (``datasets/utils.py``); in other
    clients the ratio is the share that is left of the longest. One ratio serves both where that moves no end by
    more than a token: old versions take no other.
    """
    isl, strays = _middle(load.isl_min, load.isl or 1)
    osl, other = _middle(load.osl_min, load.osl or 1)
    ratio: Value = flags.number(strays)
    if abs(strays - other) * osl > 1:
        ratio = Json({"input": strays, "output": other})
    return str(isl), str(osl), ratio


def _middle(shortest: int | None, longest: int) -> tuple[int, float]:
    shortest = longest if shortest is None else shortest
    middle = (shortest + longest) // 2
    # A little less, so that the floor of the lower end is the shortest length and not one less.
    return middle, max(math.floor((middle - shortest - 0.01) / middle * 1e7) / 1e7, 0.0)
