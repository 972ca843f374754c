"""What the engines' own counters say of one point, summed over each role's processes.

Names are vLLM's (``vllm/v1/metrics/loggers.py`` and the connectors' ``stats.py``, 0.32). Transfers
are counted on the side that pulls, the decode. A metric that no process delivered is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.results.prometheus import parse

ROLES = ("serve", "prefill", "decode")
PREFIX = "vllm:"

_HISTOGRAMS = {
    "server_ttft_mean_ms": "time_to_first_token_seconds",
    "server_tpot_mean_ms": "request_time_per_output_token_seconds",
    "server_itl_mean_ms": "inter_token_latency_seconds",
    "server_e2e_mean_ms": "e2e_request_latency_seconds",
    "server_queue_mean_ms": "request_queue_time_seconds",
    "server_prefill_mean_ms": "request_prefill_time_seconds",
    "server_decode_mean_ms": "request_decode_time_seconds",
}
_KV_COUNTERS = {
    "failed_transfers": "nixl_num_failed_transfers_total",
    "failed_notifications": "nixl_num_failed_notifications_total",
    "expired_requests": "nixl_num_kv_expired_reqs_total",
    "late_notifications": "nixl_num_notifications_after_expiry_total",
}
# vLLM with several API servers says only the second.
_BORN = ("process_start_time_seconds", f"{PREFIX}prompt_tokens_created")
_GAUGES = {
    "kv_cache_usage_perc": "kv_usage",
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
}


def role_of(process: str) -> str | None:
    """The role of a process of the plan by its name (``prefill-0.1``); None for what is no engine."""
    role = process.partition("-")[0]
    return role if role in ROLES else None


@dataclass
class _Track:
    total: float = 0.0
    count: int = 0
    high: float | None = None

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1
        self.high = value if self.high is None else max(self.high, value)


@dataclass
class PoolGauges:
    """Gauges over the time of a point, from scrapes made meanwhile; holds sums, not texts.

    KV usage is averaged over engines and scrapes; running and waiting requests are summed over the
    engines of a role in each scrape.
    """

    _tracks: dict[tuple[str, str], _Track] = field(default_factory=dict)
    samples: int = 0

    def add(self, scrape: Mapping[str, str]) -> None:
        """Take one scrape, process to text."""
        self.samples += 1
        sums: dict[tuple[str, str], float] = {}
        for process, text in scrape.items():
            role = role_of(process)
            if role is None:
                continue
            for sample in parse(text, PREFIX):
                name = _GAUGES.get(sample.name[len(PREFIX) :])
                if name is None or not math.isfinite(sample.value):
                    continue
                if name == "kv_usage":
                    self._tracks.setdefault((role, name), _Track()).add(sample.value)
                else:
                    sums[role, name] = sums.get((role, name), 0.0) + sample.value
        for key, value in sums.items():
            self._tracks.setdefault(key, _Track()).add(value)

    def of(self, role: str) -> dict[str, float | None]:
        """Means and maxima of one role."""
        usage, running, waiting = (self._tracks.get((role, name), _Track()) for name in _GAUGES.values())
        return {
            "kv_usage_mean_ratio": usage.total / usage.count if usage.count else None,
            "kv_usage_max_ratio": usage.high,
            "running_max_requests": running.high,
            "waiting_max_requests": waiting.high,
        }


def _born(text: str) -> list[str]:
    """What a scrape says of when its process began; it does not change while the process lives."""
    return sorted(line for line in text.splitlines() if line.startswith(_BORN))


class _Deltas:
    """Differences of all series of one role, and what may not be differenced."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.by_label: dict[tuple[str, str, str], float] = {}
        self.info: list[Mapping[str, str]] = []
        self.scraped: list[str] = []
        self.unscraped: list[str] = []
        self.restarted: list[str] = []

    def add(self, process: str, before: str | None, after: str | None) -> None:
        if before is None or after is None:
            self.unscraped.append(process)
            return
        self.scraped.append(process)
        earlier = {sample.series: sample.value for sample in parse(before, PREFIX)}
        restarted = _born(before) != _born(after)
        for sample in parse(after, PREFIX):
            name = sample.name[len(PREFIX) :]
            if name == "cache_config_info":
                self.info.append(sample.labels)
            if not name.endswith(("_total", "_sum", "_count")) or not math.isfinite(sample.value):
                continue
            delta = sample.value - earlier.get(sample.series, 0.0)
            if delta < 0:
                # A counter only falls when its process began anew; all it holds is from since then.
                restarted, delta = True, sample.value
            self.values[name] = self.values.get(name, 0.0) + delta
            for label in ("source", "position"):
                if label in sample.labels:
                    key = (name, label, sample.labels[label])
                    self.by_label[key] = self.by_label.get(key, 0.0) + delta
        if restarted:
            self.restarted.append(process)

    def counter(self, name: str) -> float | None:
        return self.values.get(name)

    def mean(self, histogram: str, scale: float = 1.0) -> float | None:
        return _ratio(self.counter(f"{histogram}_sum"), self.counter(f"{histogram}_count"), scale)

    def labelled(self, name: str, label: str) -> dict[str, float] | None:
        found = {value: delta for (n, key, value), delta in self.by_label.items() if n == name and key == label}
        return found or None


def pool_metrics(
    before: Mapping[str, str],
    after: Mapping[str, str],
    gauges: PoolGauges | None = None,
    transports: Mapping[str, list[str]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Role to its metrics between two scrapes (process name to Prometheus text).

    Processes that are no engine are ignored; one that is in a single scrape is ``unscraped`` and
    adds nothing. ``gauges``: scrapes made in between, without which KV usage is None. ``transports``: role to how
    its engines pulled KV.
    """
    deltas: dict[str, _Deltas] = {}
    for process in dict.fromkeys((*before, *after)):
        role = role_of(process)
        if role is not None:
            deltas.setdefault(role, _Deltas()).add(process, before.get(process), after.get(process))
    gauges = gauges or PoolGauges()
    pools = {role: {**_pool(deltas[role]), **gauges.of(role)} for role in ROLES if role in deltas}
    for role, ways in (transports or {}).items():
        if ways and role in pools and pools[role]["kv_transfer"] is not None:
            pools[role]["kv_transfer"]["transports"] = ways
    return pools


def _pool(deltas: _Deltas) -> dict[str, Any]:
    queries, hits = deltas.counter("prefix_cache_queries_total"), deltas.counter("prefix_cache_hits_total")
    return {
        "processes": deltas.scraped,
        "unscraped": deltas.unscraped,
        "restarted": deltas.restarted,
        "requests": deltas.counter("request_success_total"),
        "prompt_tokens": deltas.counter("prompt_tokens_total"),
        "generation_tokens": deltas.counter("generation_tokens_total"),
        "prompt_tokens_by_source": deltas.labelled("prompt_tokens_by_source_total", "source"),
        "preemptions": deltas.counter("num_preemptions_total"),
        "prefix_cache_queries_tokens": queries,
        "prefix_cache_hits_tokens": hits,
        "prefix_cache_hit_ratio": _ratio(hits, queries),
        **{key: deltas.mean(name, 1000.0) for key, name in _HISTOGRAMS.items()},
        "block_size_tokens": _info_max(deltas.info, "block_size"),
        "kv_blocks": _info_sum(deltas.info, "num_gpu_blocks"),
        "spec_decode": _spec_decode(deltas),
        "kv_transfer": _kv_transfer(deltas),
    }


def _spec_decode(deltas: _Deltas) -> dict[str, Any] | None:
    drafts = deltas.counter("spec_decode_num_drafts_total")
    if drafts is None:
        return None
    drafted = deltas.counter("spec_decode_num_draft_tokens_total")
    accepted = deltas.counter("spec_decode_num_accepted_tokens_total")
    extra = _ratio(accepted, drafts)
    positions = deltas.labelled("spec_decode_num_accepted_tokens_per_pos_total", "position") or {}
    numbered = sorted((int(key), count) for key, count in positions.items() if key.isdigit())
    return {
        "drafts": drafts,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_ratio": _ratio(accepted, drafted),
        # The target model adds one token of its own to each draft.
        "mean_acceptance_length_tokens": None if extra is None else 1 + extra,
        "accepted_by_position_ratio": [_ratio(count, drafts) for _, count in numbered],
    }


def _kv_transfer(deltas: _Deltas) -> dict[str, Any] | None:
    counters = {key: deltas.counter(name) for key, name in _KV_COUNTERS.items()}
    transfers, total = deltas.counter("nixl_xfer_time_seconds_count"), deltas.counter("nixl_bytes_transferred_sum")
    if transfers is None and all(value is None for value in counters.values()):
        return None
    time_s = deltas.counter("nixl_xfer_time_seconds_sum")
    return {
        "transfers": transfers,
        "time_total_s": time_s,
        "time_mean_ms": deltas.mean("nixl_xfer_time_seconds", 1000.0),
        "post_time_mean_ms": deltas.mean("nixl_post_time_seconds", 1000.0),
        "bytes_total": total,
        "bytes_mean": deltas.mean("nixl_bytes_transferred"),
        "bytes_per_s": _ratio(total, time_s),
        "descriptors_mean": deltas.mean("nixl_num_descriptors"),
        **counters,
    }


def _ratio(part: float | None, whole: float | None, scale: float = 1.0) -> float | None:
    return part / whole * scale if part is not None and whole else None


def _info_numbers(info: Iterable[Mapping[str, str]], label: str) -> list[int]:
    return [int(labels[label]) for labels in info if labels.get(label, "").isdigit()]


def _info_max(info: Iterable[Mapping[str, str]], label: str) -> int | None:
    return max(_info_numbers(info, label), default=None)


def _info_sum(info: Iterable[Mapping[str, str]], label: str) -> int | None:
    found = _info_numbers(info, label)
    return sum(found) if found else None
