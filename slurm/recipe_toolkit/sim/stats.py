"""What one DP rank counts and times between two batches."""

from __future__ import annotations


class Stats:
    """Increases of counters, and observations for histograms by value: equal ones are kept as one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._times: dict[str, dict[float, int]] = {}

    def count(self, name: str, increase: int = 1) -> None:
        """Add to a counter."""
        if increase:
            self._counts[name] = self._counts.get(name, 0) + increase

    def time(self, name: str, value: float) -> None:
        """Add an observation to a histogram."""
        values = self._times.setdefault(name, {})
        values[value] = values.get(value, 0) + 1

    def take(self) -> tuple[dict[str, int], dict[str, list[tuple[float, int]]]]:
        """Everything since the last call."""
        counts, times = self._counts, {name: list(values.items()) for name, values in self._times.items()}
        self._counts, self._times = {}, {}
        return counts, times
