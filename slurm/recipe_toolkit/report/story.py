"""The run as it went: its phases as a bar, and everything that happened."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.html import Markup, el
from recipe_toolkit.report.tables import table

_EVENTS_SHOWN = 500
_VALUE = 300


@dataclass(frozen=True)
class Phase:
    """A stretch of the run. ``end`` is None where nothing says that it ended."""

    name: str
    start: float
    end: float | None


def phases(events: Sequence[Mapping[str, Any]]) -> list[Phase]:
    """The phases in order, each until the next one or the last event; those of an earlier attempt too."""
    timed = [event for event in events if _at(event) is not None]
    starts = [(str(event.get("phase")), _at(event) or 0.0) for event in timed if event.get("event") == "phase"]
    if not starts:
        return []
    last = max(_at(event) or 0.0 for event in timed)
    ends = [start for _, start in starts[1:]] + [last]
    return [Phase(name, start, max(start, end)) for (name, start), end in zip(starts, ends, strict=True)]


def story(events: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Bar, table of phases and the events; None where there are none."""
    if not events:
        return None
    found = phases(events)
    return el("div", _bar(found), _phase_table(found), _event_table(events))


def stamp(at: float) -> str:
    """A time of day in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _bar(found: Sequence[Phase]) -> Markup | None:
    spans = [((phase.end or phase.start) - phase.start, phase) for phase in found]
    total = sum(length for length, _ in spans)
    if not total > 0:
        return None
    parts = [
        el(
            "span",
            phase.name if length / total > 0.06 else "",
            class_=phase.name if phase.name == "bench" else None,
            style=f"flex: {max(length / total, 0.003):.4f} 1 0",
            title=f"{phase.name}: {text.span(length)}",
        )
        for length, phase in spans
    ]
    return el("div", *parts, class_="bar", aria_hidden="true")


def _phase_table(found: Sequence[Phase]) -> Markup | None:
    if not found:
        return None
    head = el(
        "tr",
        el("th", "phase", scope="col", class_="text"),
        *(el("th", name, scope="col") for name in ("began", "took")),
    )
    rows = [
        el(
            "tr",
            el("th", phase.name, scope="row"),
            el("td", stamp(phase.start)),
            el("td", text.span((phase.end or phase.start) - phase.start)),
        )
        for phase in found
    ]
    return el("div", table("Phases.", [head], rows), class_="narrow")


def _event_table(events: Sequence[Mapping[str, Any]]) -> Markup:
    times = [at for event in events if (at := _at(event)) is not None]
    first = min(times, default=0.0)
    shown = events if len(events) <= _EVENTS_SHOWN else [*events[: _EVENTS_SHOWN // 2], *events[-_EVENTS_SHOWN // 2 :]]
    rows = []
    for event in shown:
        at = _at(event)
        fields = {key: value for key, value in event.items() if key not in ("t", "event")}
        said = ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in fields.items())
        rows.append(
            el(
                "tr",
                el("td", text.MISSING if at is None else time.strftime("%H:%M:%S", time.gmtime(at))),
                el("td", text.MISSING if at is None else f"+{at - first:,.1f} s"),
                el("td", str(event.get("event", "?")).replace("_", " "), class_="text"),
                el("td", said, class_="text"),
            )
        )
    heads = ("UTC", "since the first", "event", "what")
    head = el(
        "tr", *(el("th", name, scope="col", class_="text" if name in ("event", "what") else None) for name in heads)
    )
    left_out = len(events) - len(shown)
    title = f"All {len(events)} events" if not left_out else f"{len(shown)} of {len(events)} events"
    return el("details", el("summary", title), table(f"{title}.", [head], rows, class_="events"))


def _at(event: Mapping[str, Any]) -> float | None:
    at = event.get("t")
    # Far-off numbers are no times that a calendar knows.
    return float(at) if isinstance(at, (int, float)) and not isinstance(at, bool) and 0 <= at < 1e11 else None


def _plain(value: Any) -> str:
    said = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return said if len(said) <= _VALUE else f"{said[: _VALUE - 1]}…"
