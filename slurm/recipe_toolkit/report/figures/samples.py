"""The latencies of each request of a point, from the files that its client left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_toolkit.results.aiperf import RECORDS
from recipe_toolkit.results.model import number
from recipe_toolkit.results.vllm_bench import SUMMARY

# The files hold a number for every chunk of every answer.
BUDGET_BYTES = 128 * 1024 * 1024
_AIPERF = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "itl": "inter_chunk_latency"}


@dataclass
class Samples:
    """Milliseconds: of each answered request of the measured phase TTFT and TPOT, of each gap between chunks ITL."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ttft or self.tpot or self.itl)


def file_of(client: str, artifacts: Path) -> Path | None:
    """The file with a client's records; None for a client that leaves none."""
    name = {"aiperf": RECORDS, "vllm-bench": SUMMARY}.get(client)
    return None if name is None else artifacts / name


def read_samples(client: str, path: Path) -> Samples:
    """What the file holds; nothing of a file that is damaged or not there, and what can be read of one that is cut."""
    found = Samples()
    try:
        rows = _aiperf(path) if client == "aiperf" else _vllm_bench(path)
        for row in rows:
            for name, value in row.items():
                values = value if isinstance(value, list) else [value]
                getattr(found, name).extend(ms for item in values if (ms := number(item)) is not None and ms >= 0)
    except (OSError, ValueError, RecursionError):
        pass
    return found


def _aiperf(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not isinstance(record, dict) or record.get("error"):
                continue
            metadata, metrics = record.get("metadata"), record.get("metrics")
            if not isinstance(metadata, dict) or not isinstance(metrics, dict):
                continue
            if metadata.get("benchmark_phase", "profiling") == "profiling":
                yield {
                    name: metric.get("value")
                    for name, theirs in _AIPERF.items()
                    if isinstance(metric := metrics.get(theirs), dict)
                }


def _vllm_bench(path: Path) -> Iterator[Mapping[str, Any]]:
    """Seconds there. An answer's time is that of the first chunk and of all gaps where the file (0.22) has no other."""
    data = json.loads(path.read_bytes())
    columns = [data.get(key) if isinstance(data, dict) else None for key in ("ttfts", "itls", "output_lens", "errors")]
    if not all(isinstance(column, list) for column in columns):
        return
    ends = data.get("latencies")
    for index, (first, gaps, length, error) in enumerate(zip(*columns, strict=False)):
        ttft, tokens = number(first), number(length)
        if error or ttft is None or not isinstance(gaps, list):
            continue
        between = [value for value in map(number, gaps) if value is not None]
        row: dict[str, Any] = {"ttft": ttft * 1000, "itl": [value * 1000 for value in between]}
        last = number(ends[index]) if isinstance(ends, list) and index < len(ends) else ttft + sum(between)
        if last is not None and tokens is not None and tokens > 1:
            row["tpot"] = (last - ttft) * 1000 / (tokens - 1)
        yield row
