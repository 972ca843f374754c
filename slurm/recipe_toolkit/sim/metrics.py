"""The figures of all DP ranks in Prometheus' text format, under vLLM's names.

Names, help texts and buckets: vllm/v1/metrics/loggers.py, buckets.py, spec_decode/metrics.py and
nixl/stats.py of 0.32.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from recipe_toolkit.sim.messages import Batch

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
_XFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_POST = (0.001, *_XFER)
_BYTES = tuple(2 ** (10 + power) for power in range(1, 25, 2))
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)

_GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_REASONS = ("stop", "length", "abort", "error", "repetition")
# name -> (help, label, its values)
_COUNTERS: dict[str, tuple[str, str, Sequence[str]]] = {
    "prefix_cache_queries": ("Prefix cache queries, in terms of number of queried tokens.", "", ()),
    "prefix_cache_hits": ("Prefix cache hits, in terms of number of cached tokens.", "", ()),
    "external_prefix_cache_queries": ("External prefix cache queries from KV connector cross-instance.", "", ()),
    "external_prefix_cache_hits": ("External prefix cache hits from KV connector cross-instance.", "", ()),
    "num_preemptions": ("Cumulative number of preemption from the engine.", "", ()),
    "prompt_tokens": ("Number of prefill tokens processed.", "", ()),
    "prompt_tokens_by_source": ("Number of prompt tokens by source.", "source", _SOURCES),
    "prompt_tokens_cached": ("Number of cached prompt tokens (local + external).", "", ()),
    "generation_tokens": ("Number of generation tokens processed.", "", ()),
    "request_success": ("Count of successfully processed requests.", "finished_reason", _REASONS),
}
_NIXL_COUNTERS = {
    "nixl_num_failed_transfers": "Number of failed NIXL KV Cache transfers.",
    "nixl_num_failed_notifications": "Number of failed NIXL KV Cache notifications.",
    "nixl_num_kv_expired_reqs": "Number of requests that had their KV expire. Tracked on the P instance.",
    "nixl_num_notifications_after_expiry": "Number of completion notifications for requests no longer tracked.",
}
_SPEC_COUNTERS = {
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _ITL),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _ITL),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", _TOKENS),
}
_NIXL_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "nixl_xfer_time_seconds": ("Histogram of transfer duration for NIXL KV Cache transfers.", _XFER),
    "nixl_post_time_seconds": ("Histogram of transfer post time for NIXL KV Cache transfers.", _POST),
    "nixl_bytes_transferred": ("Histogram of bytes transferred per NIXL KV Cache transfers.", _BYTES),
    "nixl_num_descriptors": ("Histogram of number of descriptors per NIXL KV Cache transfers.", _DESCRIPTORS),
}


@dataclass
class _Histogram:
    bounds: Sequence[float]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def add(self, value: float, times: int) -> None:
        self.total += value * times
        self.counts[bisect.bisect_left(self.bounds, value)] += times


class Metrics:
    """Takes in batches of every DP rank of this API server, and writes the text."""

    def __init__(self, model: str, ranks: Iterable[int], block_size: int, blocks: int, nixl: bool, drafts: int) -> None:
        self._model = _escape(model)
        self._ranks = tuple(ranks)
        self._created = time.time()
        self._cache = (block_size, blocks)
        self._gauges = dict.fromkeys(self._ranks, (0, 0, 0.0))
        self._counters = dict(_COUNTERS)
        self._histograms = dict(_HISTOGRAMS)
        if nixl:
            self._counters |= {name: (text, "", ()) for name, text in _NIXL_COUNTERS.items()}
            self._histograms |= _NIXL_HISTOGRAMS
        if drafts:
            positions = [str(position) for position in range(drafts)]
            self._counters |= {name: (text, "", ()) for name, text in _SPEC_COUNTERS.items()}
            self._counters["spec_decode_num_accepted_tokens_per_pos"] = (
                "Accepted tokens per draft position.",
                "position",
                positions,
            )
        self._counts = {
            (name, value, rank): 0
            for name, (_, _, values) in self._counters.items()
            for value in values or ("",)
            for rank in self._ranks
        }
        self._times = {
            (name, rank): _Histogram(bounds, counts=[0] * (len(bounds) + 1))
            for name, (_, bounds) in self._histograms.items()
            for rank in self._ranks
        }

    def absorb(self, batch: Batch) -> None:
        """Add what a batch says. Raises KeyError for a figure that is not known."""
        self._gauges[batch.rank] = batch.gauges
        for key, increase in batch.counts.items():
            name, _, value = key.partition("/")
            self._counts[name, value, batch.rank] += increase
        for name, observed in batch.times.items():
            histogram = self._times[name, batch.rank]
            for seconds, times in observed:
                histogram.add(seconds, times)

    def render(self) -> str:
        """The whole text, Prometheus' exposition format 0.0.4."""
        return "\n".join([*self._render_gauges(), *self._render_counters(), *self._render_histograms(), ""])

    def _labels(self, rank: int) -> str:
        return f'engine="{rank}",model_name="{self._model}"'

    def _render_gauges(self) -> Iterator[str]:
        for index, (name, text) in enumerate(_GAUGES.items()):
            yield from _head(f"vllm:{name}", text, "gauge")
            for rank in self._ranks:
                yield f"vllm:{name}{{{self._labels(rank)}}} {float(self._gauges[rank][index])}"
        yield from _head("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
        block_size, blocks = self._cache
        for rank in self._ranks:
            labels = f'block_size="{block_size}",engine="{rank}",num_gpu_blocks="{blocks}"'
            yield f"vllm:cache_config_info{{{labels}}} 1.0"

    def _render_counters(self) -> Iterator[str]:
        for name, (text, label, values) in self._counters.items():
            samples = [
                (f"{{{self._labels(rank)}" + (f',{label}="{value}"}}' if label else "}"), (name, value, rank))
                for rank in self._ranks
                for value in values or ("",)
            ]
            yield from _head(f"vllm:{name}_total", text, "counter")
            yield from (f"vllm:{name}_total{labels} {float(self._counts[key])}" for labels, key in samples)
            yield from _head(f"vllm:{name}_created", text, "gauge")
            yield from (f"vllm:{name}_created{labels} {self._created}" for labels, _ in samples)

    def _render_histograms(self) -> Iterator[str]:
        for name, (text, bounds) in self._histograms.items():
            full = f"vllm:{name}"
            yield from _head(full, text, "histogram")
            for rank in self._ranks:
                labels, histogram, below = self._labels(rank), self._times[name, rank], 0
                for bound, count in zip([*map(float, bounds), float("inf")], histogram.counts, strict=True):
                    below += count
                    edge = "+Inf" if bound == float("inf") else bound
                    yield f'{full}_bucket{{{labels},le="{edge}"}} {float(below)}'
                yield f"{full}_count{{{labels}}} {float(below)}"
                yield f"{full}_sum{{{labels}}} {histogram.total}"
            yield from _head(f"{full}_created", text, "gauge")
            yield from (f"{full}_created{{{self._labels(rank)}}} {self._created}" for rank in self._ranks)


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
