"""A calculation that can be read: each line with its term, its numbers, its result and where the rule comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10


@dataclass(frozen=True)
class Line:
    """One term. ``result`` is text with its unit, ``value`` the same in bytes, tokens or a count.

    ``high``: the upper end where the term is a range. ``source``: who says so.
    """

    term: str
    formula: str
    result: str
    value: float
    source: str = ""
    high: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {key: item for key, item in vars(self).items() if item not in ("", None)}


def size(number: float) -> str:
    """Bytes for people: ``168.8 GiB``, ``4.125 MiB``, ``2 KiB``."""
    amount = abs(number)
    if amount >= GIB:
        return f"{number / GIB:,.2f} GiB"
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if amount >= unit:
            return f"{number / unit:.3f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{number:.0f} B"


def span(low: float, high: float) -> str:
    """A range of bytes, or the one size where both ends are the same."""
    if size(low) == size(high):
        return size(low)
    if low >= GIB and high >= GIB:
        return f"{low / GIB:,.1f}-{high / GIB:,.1f} GiB"
    return f"{size(low)} - {size(high)}"
