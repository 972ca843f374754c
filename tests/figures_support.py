"""What figures are made of, for the tests of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PUBLISHED = [
    {"concurrency": 8, "metrics": {"total_tps_per_gpu": 9000, "tps_per_user": 120, "e2e_mean_ms": 150}},
    {"per_gpu": "decode", "metrics": {"total_tps_per_gpu": 5, "tps_per_user": 1}},
    {"metrics": {"ttft_mean_ms": 5}},
]


def scrape(folder: Path, process: str, *lines: Any) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / f"{process}.jsonl").write_text(text)


def sample(t: float, running: float, kv: float, tokens: float) -> dict[str, Any]:
    values = {
        'vllm:num_requests_running{engine="0"}': running,
        'vllm:num_requests_running{engine="1"}': running,
        'vllm:kv_cache_usage_perc{engine="0"}': kv,
        'vllm:kv_cache_usage_perc{engine="1"}': kv / 2,
        "vllm:generation_tokens_total": tokens,
        "vllm:request_success_total": 3,
    }
    return {"t": t, "point": "c1", "values": values}


def searched() -> dict[str, Any]:
    def load(value: float, verdict: str, seen: float) -> dict[str, Any]:
        bound = {"bound": 20.0, "seen": seen, "low": seen * 0.95, "high": seen * 1.05, "met": seen <= 20}
        return {
            "load": value,
            "verdict": verdict,
            "sure": True,
            "objective": value * 100,
            "bounds": {"tpot_mean_ms": bound},
            "points": [f"s-c{value:g}-1"],
            "left_out": [],
        }

    return {
        "benchmark": "s",
        "over": "concurrency",
        "least": 1,
        "most": 64,
        "maximize": "total_tps_per_gpu",
        "resolution": 0.1,
        "repeats": 3,
        "confidence_wanted": 0.95,
        "bounds": {"tpot_mean_ms": 20.0},
        "state": "ended",
        "outcome": "found",
        "why": "the knee is known as closely as was asked.",
        "answer": {
            "load": 16,
            "objective": 1600,
            "objective_low": 1500,
            "objective_high": 1700,
            "slo": {"tpot_mean_ms": 18.0},
            "points": ["s-c16-1"],
        },
        "knee": {"met": 16, "missed": 24},
        "confidence": 0.97,
        "binding": ["tpot_mean_ms"],
        "monotone": True,
        "noise_ratio": 0.02,
        "loads": [load(1, "met", 8), load(16, "met", 18), load(24, "missed", 22), load(64, "missed", 41)],
        "points_measured": 4,
        "points_most": 20,
        "measuring_s": 100.0,
        "notes": ["look <here>"],
    }
