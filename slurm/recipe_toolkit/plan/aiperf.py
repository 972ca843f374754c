"""AIPerf's command line (0.13)."""

from __future__ import annotations

from recipe_toolkit.plan.load import Load, word
from recipe_toolkit.plan.values import Value

# With these AIPerf takes a tokenizer's path for a repository in the hub's cache, and stops.
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

RESERVED = {
    **dict.fromkeys(("url", "u", "model", "model-names", "m"), "the plan sets it"),
    **dict.fromkeys(("tokenizer", "tokenizer-revision"), "it stands in model.tokenizer"),
    **dict.fromkeys(("isl", "prompt-input-tokens-mean"), "it stands in isl"),
    **dict.fromkeys(("osl", "output-tokens-mean", "prompt-output-tokens-mean"), "it stands in osl"),
    "endpoint-type": "it stands in endpoint",
    "concurrency": "it stands in concurrency or max_concurrency",
    "request-rate": "it stands in request_rate",
    **dict.fromkeys(("request-count", "num-requests"), "it stands in requests or requests_per_concurrency"),
    **dict.fromkeys(("warmup-request-count", "num-warmup-requests"), "it stands in warmup or warmup_per_concurrency"),
    "random-seed": "it stands in seed",
    "num-dataset-entries": "each request has a prompt of its own",
    "goodput": "it follows from slo",
    **dict.fromkeys(("artifact-dir", "output-artifact-dir", "profile-export-prefix"), "artifacts have one place"),
    **dict.fromkeys(("export-level", "profile-export-level"), "results are checked against the records"),
    "ui": "output goes to a log",
    "ui-type": "output goes to a log",
}


def arguments(load: Load) -> list[Value]:
    """What follows the program's name; the recipe's own flags come after it."""
    words: list[Value] = ["profile", "--model", load.model, "--url", load.entry]
    words += ["--endpoint-type", load.endpoint, "--streaming", "--tokenizer", load.tokenizer.where]
    words += ["--tokenizer-revision", load.tokenizer.revision] if load.tokenizer.revision else []
    words += ["--isl", str(load.isl), "--isl-stddev", "0", "--osl", str(load.osl), "--osl-stddev", "0"]
    # Counted by the server: text that is split into tokens once more gives other numbers.
    words += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
    if load.concurrency is not None:
        words += ["--concurrency", word(load.concurrency)]
    if load.request_rate is not None:
        words += ["--request-rate", word(load.request_rate)]
    if load.max_concurrency is not None:
        words += ["--concurrency", str(load.max_concurrency)]
    words += ["--request-count", word(load.requests)]
    if load.warmup:
        words += ["--warmup-request-count", word(load.warmup)]
    # By default it makes 100 prompts and sends them again: those would be prefix-cache hits.
    words += ["--num-dataset-entries", word(load.prompts)]
    words += ["--random-seed", word(load.seed)]
    bounds = load.goodput("time_to_first_token", "inter_token_latency", "request_latency")
    words += ["--goodput", " ".join(bounds)] if bounds else []
    words += ["--artifact-dir", load.folder, "--export-level", "records", "--ui", "none"]
    # The lead scrapes every engine itself; AIPerf would see the router's counters alone.
    return [*words, "--no-server-metrics", "--no-gpu-telemetry"]
