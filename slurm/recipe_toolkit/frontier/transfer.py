"""The time in which the KV of one request goes from prefill to decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transfer:
    """``bytes``: of one request at one decode GPU; ``bytes_per_s``: of one transfer. ``seconds`` is None if unknown.

    ``source``: where the two are from, or what is missing.
    """

    seconds: float | None
    source: str
    bytes: float | None = None
    bytes_per_s: float | None = None


def measured(points: Sequence[tuple[str, Mapping[str, Any]]], isl: int) -> Transfer | None:
    """By the decode engines' own counters of valid prefill/decode points, as (run, point); None where none has any.

    At the wanted input length a transfer's mean time is taken as it was counted, with what it takes beside its
    bytes (its start is counted apart); at another, the bytes grow with the length.
    """
    found = list(_counted(points))
    same = [item for item in found if item[1] == isl]
    chosen = same or found
    if not chosen:
        return None
    transfers = sum(counts for _, _, counts, _, _ in chosen)
    seconds = sum(time for _, _, _, time, _ in chosen) / transfers
    size = sum(total for _, _, _, _, total in chosen) / transfers
    runs = ", ".join(dict.fromkeys(run for run, *_ in chosen))
    if same:
        return Transfer(seconds, f"counters of {runs}", size, size / seconds if seconds else None)
    length = sum(length * counts for _, length, counts, _, _ in chosen) / transfers
    scaled = isl / length
    return Transfer(seconds * scaled, f"counters of {runs} at ISL {length:,.0f}", size * scaled, size / seconds)


def _counted(points: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, int, float, float, float]]:
    """(run, ISL, transfers, seconds, bytes)."""
    for run, point in points:
        counters = (point["pools"].get("decode") or {}).get("kv_transfer") or {}
        count, time, size = (counters.get(key) for key in ("transfers", "time_total_s", "bytes_total"))
        length = point["isl"]["wanted_tokens"]
        if count and time and length:
            post = (counters.get("post_time_mean_ms") or 0.0) / 1000 * count
            yield run, length, count, time + post, size or 0.0


def by_rate(size: float | None, gb_per_s: float, source: str) -> Transfer:
    """By a rate that is given. ``size``: bytes of a request at one decode GPU, and where they are from."""
    rate = gb_per_s * 1e9
    if size is None:
        return Transfer(None, f"{gb_per_s:g} GB/s are given, but {source}", None, rate)
    return Transfer(size / rate, f"{source}, at {gb_per_s:g} GB/s", size, rate)
