"""Where a flag went that a version does not have: from the lists, and from what was before the oldest of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recipe_toolkit.vllm_args.lists import ArgList, load, versions

BEFORE: Mapping[str, tuple[str, str | None]] = {
    "cuda-graph-sizes": ("0.12", "cudagraph-capture-sizes"),
    "device": ("0.9", None),
    "disable-async-output-proc": ("0.10", "async-scheduling: false"),
    "disable-frontend-multiprocessing": ("0.18", None),
    "disable-log-requests": ("0.16", "leave it out: requests are logged only where enable-log-requests says so"),
    "disable-mm-preprocessor-cache": ("0.12", "mm-processor-cache-gb: 0"),
    "enable-lora-bias": ("0.10", None),
    "enable-multimodal-encoder-data-parallel": ("0.12", "mm-encoder-tp-mode: data"),
    "enable-reasoning": ("0.9", "leave it out: reasoning-parser alone turns it on"),
    "eplb-log-balancedness": ("0.11", "eplb-config: {log_balancedness: …}"),
    "eplb-step-interval": ("0.11", "eplb-config: {step_interval: …}"),
    "eplb-window-size": ("0.11", "eplb-config: {window_size: …}"),
    "guided-decoding-backend": ("0.11", "structured-outputs-config: {backend: …}"),
    "guided-decoding-disable-additional-properties": (
        "0.11",
        "structured-outputs-config: {disable_additional_properties: …}",
    ),
    "guided-decoding-disable-any-whitespace": ("0.11", "structured-outputs-config: {disable_any_whitespace: …}"),
    "lora-extra-vocab-size": ("0.11", None),
    "max-seq-len-to-capture": ("0.10", "max-cudagraph-capture-size bounds the batch, not the length"),
    "multi-step-stream-outputs": ("0.9", None),
    "num-lookahead-slots": ("0.11", None),
    "num-redundant-experts": ("0.11", "eplb-config: {num_redundant_experts: …}"),
    "num-scheduler-steps": ("0.9", "async-scheduling: true"),
    "override-pooler-config": ("0.11", "pooler-config"),
    "preemption-mode": ("0.10", None),
    "rope-scaling": ("0.10", "hf-overrides: {rope_scaling: {…}}"),
    "rope-theta": ("0.10", "hf-overrides: {rope_theta: …}"),
    "scheduler-delay-factor": ("0.10", None),
    "swap-space": ("0.17", None),
    "task": ("0.12", "runner and convert"),
}
"""Flags that vLLM had before the oldest list: the last release series with it, and what to write instead.

Read from `vllm/engine/arg_utils.py` and `vllm/entrypoints/openai/cli_args.py` of the wheels 0.9.2 to 0.19.1.
"""


def whereabouts(has: Callable[[ArgList], object], version: str) -> str | None:
    """Which other list has something: ``0.30.0 is the first to have it``; None where none has."""
    known = versions()
    place = known.index(version)
    later = next((item for item in known[place + 1 :] if has(load(item))), None)
    earlier = next((item for item in reversed(known[:place]) if has(load(item))), None)
    if earlier:
        return f"{earlier} was the last to have it"
    return f"{later} is the first to have it" if later else None
