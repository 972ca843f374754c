"""Which points no other is better than, in any number of figures, each with its direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Which way is better of the figures that a predicted point has.
DIRECTIONS: Mapping[str, str] = {
    "output_tps_per_user": "max",
    "total_tps_per_gpu": "max",
    "output_tps_per_gpu": "max",
    "requests_per_s": "max",
    "output_tps": "max",
    "total_tps": "max",
    "ttft_ms": "min",
    "tpot_ms": "min",
    "e2e_ms": "min",
    "gpus": "min",
}


@dataclass(frozen=True)
class Axis:
    """A figure. ``better``: ``max`` or ``min``."""

    metric: str
    better: str


def axis(text: str) -> Axis:
    """``METRIC`` or ``METRIC:max``. Raises ValueError for a figure or a direction that is not known."""
    name, _, better = text.partition(":")
    if name not in DIRECTIONS:
        raise ValueError(f"no figure {name!r}: one of {', '.join(DIRECTIONS)}")
    if better not in ("", "max", "min"):
        raise ValueError(f"{better!r} is no direction: max or min")
    return Axis(name, better or DIRECTIONS[name])


def dominant(rows: Sequence[Mapping[str, float]], axes: Sequence[Axis]) -> list[bool]:
    """Of each row, whether no other is at least as good in all figures and better in one."""
    signed = [tuple(row[item.metric] * (1 if item.better == "max" else -1) for item in axes) for row in rows]
    order = sorted(range(len(rows)), key=lambda at: signed[at], reverse=True)
    found = [False] * len(rows)
    front: list[tuple[float, ...]] = []
    for at in order:
        # What dominates it has come before: it is not smaller in the first figure where they differ.
        if not any(_dominates(other, signed[at]) for other in front):
            found[at] = True
            front.append(signed[at])
    return found


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))
