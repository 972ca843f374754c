"""Prometheus' text format, as much of it as engines speak."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"[ \t]+(?P<value>\S+)"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True)
class Sample:
    """One line: a series and its value (NaN and infinity included)."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def series(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What identifies the series in another scrape."""
        return self.name, tuple(sorted(self.labels.items()))


def parse(text: str, prefix: str = "") -> Iterator[Sample]:
    """The samples whose name starts with ``prefix``; comments and lines that are none are skipped.

    Buckets and ``*_created`` (a time, which counters of the Python client carry along) are left out.
    """
    for line in text.splitlines():
        if not line.startswith(prefix) or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or match["name"].endswith(("_bucket", "_created")):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {key: _unescape(raw) for key, raw in _LABEL.findall(match["labels"] or "")}
        yield Sample(match["name"], value, labels)


def _unescape(raw: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), raw) if "\\" in raw else raw
