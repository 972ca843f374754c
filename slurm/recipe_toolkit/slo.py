"""The names of the bounds of ``slo``: which figure of a point each one bounds. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Aggregate:
    """A figure of a point. ``stat``: the distribution in the results; ``key``: which number of it; ``scale``: from
    its milliseconds to the bound's unit. ``above``: share of the requests that are slower (None for a mean)."""

    stat: str
    key: str
    scale: float
    above: float | None = None

    @property
    def requests(self) -> int:
        """How many requests a point needs, so that at least ten of them lie above the figure."""
        return 1 if self.above is None else round(10 / self.above)


_KEYS = {"mean": None, "p50": 0.5, "p90": 0.1, "p99": 0.01}

# Bounds on a point's aggregates; the others of `slo` are bounds on each request, for goodput.
AGGREGATES = {
    **{f"ttft_{key}_s": Aggregate("ttft_ms", key, 0.001, above) for key, above in _KEYS.items()},
    **{f"tpot_{key}_ms": Aggregate("tpot_ms", key, 1.0, above) for key, above in _KEYS.items()},
}

_WORDS = {
    **{f"ttft_{key}_s": (f"{key} TTFT", "s") for key in _KEYS},
    **{f"tpot_{key}_ms": (f"{key} TPOT", "ms") for key in _KEYS},
    "ttft_s": ("TTFT of each request", "s"),
    "tpot_ms": ("TPOT of each request", "ms"),
    "e2e_s": ("E2E of each request", "s"),
}


def figure(name: str) -> str:
    """What a bound of ``slo`` is a bound of: ``mean TTFT``."""
    return _WORDS.get(name, (name, ""))[0]


def unit(name: str) -> str:
    """``s`` or ``ms``."""
    return _WORDS.get(name, (name, ""))[1]


def said(name: str, bound: float) -> str:
    """A bound of ``slo``: ``mean TTFT ≤ 2.5 s``."""
    return f"{figure(name)} ≤ {bound:g} {unit(name)}".strip()
