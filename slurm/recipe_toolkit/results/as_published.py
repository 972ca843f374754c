"""Results as the items of a recipe's ``published``: to hold a run against them, and to show them beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_PARTS = ("mean", "p50", "p90", "p99")


def published(results: Mapping[str, Any], url: str | None = None) -> list[dict[str, Any]]:
    """Items of a recipe's ``published``, one for each valid point of results.json's data."""
    found = []
    for point in results["points"]:
        if not point["valid"] or point["client"]["name"] == "lm-eval":
            continue
        metrics = dict(_published(point))
        load = {"concurrency": point["concurrency"], "request_rate": point["request_rate_rps"]}
        lengths = {key: point[key]["wanted_tokens"] for key in ("isl", "osl")}
        known = {"url": url, "client": _client(point), **lengths, **load}
        item = {key: value for key, value in known.items() if value is not None}
        if metrics:
            found.append({**item, "per_gpu": "working", "metrics": metrics, "note": _described(results, point)})
    return found


def _client(point: Mapping[str, Any]) -> str:
    name = point["client"]["name"]
    return name if name in ("aiperf", "vllm-bench") else "other"


def _described(results: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    known = results["gpus"]
    said = f"{results['model']} on {known['working']} {known['name']}"
    return "; ".join([said, *point["notes"]])


def _published(point: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for ours in _LATENCIES:
        for part in _PARTS:
            value = (point[ours] or {}).get(part)
            if value:
                yield f"{ours.removesuffix('_ms')}_{part}_ms", value
    for kind in ("input", "output", "total"):
        rate = point[f"{kind}_tps"]
        if rate:
            yield f"{kind}_tps", rate
            yield f"{kind}_tps_per_gpu", point[f"{kind}_tps_per_gpu"]["working"]
    speed = point["output_tps_per_user"]["from_median_tpot"]
    if speed:
        yield "tps_per_user", speed
