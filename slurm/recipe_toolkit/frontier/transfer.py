"""The time in which the KV of one request goes from prefill to decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transfer:
    """``bytes``: of one request at one decode GPU; ``bytes_per_s``: of one transfer. ``seconds`` is None if unknown.

    ``post_s``: of the seconds those in which the engine starts the transfer and takes no decode step; None if unknown.
    ``source``: where they are from, or what is missing.
    """

    seconds: float | None
    source: str
    bytes: float | None = None
    bytes_per_s: float | None = None
    post_s: float | None = None


def measured(points: Sequence[tuple[str, Mapping[str, Any]]], isl: int) -> Transfer | None:
    """By the decode engines' own counters of valid prefill/decode points, as (run, point); None where none has any.

    At the wanted input length a transfer's mean times are taken as they were counted; at another they grow with the
    length, as the bytes and the blocks do. NIXL counts both times from the call that posts a transfer, so that its
    start is in its time (``nixlXferReqH::updateRequestStats``).
    """
    found = list(_counted(points))
    same = [item for item in found if item[1] == isl]
    chosen = same or found
    if not chosen:
        return None
    transfers = sum(counts for _, _, counts, *_ in chosen)
    seconds = sum(time for _, _, _, time, _, _ in chosen) / transfers
    post = sum(held for *_, held, _ in chosen) / transfers
    size = sum(total for *_, total in chosen) / transfers
    runs = ", ".join(dict.fromkeys(run for run, *_ in chosen))
    if same:
        return Transfer(seconds, f"counters of {runs}", size, size / seconds, post)
    length = sum(length * counts for _, length, counts, *_ in chosen) / transfers
    scaled, said = isl / length, f"counters of {runs} at ISL {length:,.0f}"
    return Transfer(seconds * scaled, said, size * scaled, size / seconds, post * scaled)


def _counted(points: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, int, float, float, float, float]]:
    """(run, ISL, transfers, seconds, of them to post, bytes)."""
    for run, point in points:
        counters = (point["pools"].get("decode") or {}).get("kv_transfer") or {}
        count, time, size = (counters.get(key) for key in ("transfers", "time_total_s", "bytes_total"))
        length = point["isl"]["wanted_tokens"]
        if count and time and length:
            post = (counters.get("post_time_mean_ms") or 0.0) / 1000 * count
            yield run, length, count, time, post, size or 0.0


def by_rate(size: float | None, gb_per_s: float, source: str) -> Transfer:
    """By a rate that is given. ``size``: bytes of a request at one decode GPU, and where they are from."""
    rate = gb_per_s * 1e9
    if size is None:
        return Transfer(None, f"{gb_per_s:g} GB/s are given, but {source}", None, rate)
    return Transfer(size / rate, f"{source}, at {gb_per_s:g} GB/s", size, rate)
