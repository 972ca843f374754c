"""A run at this moment, on as many lines as a terminal has."""

from __future__ import annotations

import re
import time
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import printable
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.events import EventReader, render_event
from recipe_toolkit.submit.logs import list_logs, tail
from recipe_toolkit.submit.progress import Progress, ProgressReader
from recipe_toolkit.submit.record import Record, read_record
from recipe_toolkit.submit.state import RunState

_LAST_LINES = 3
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class View:
    """What is known of a run now. ``began``: phases with their Unix times. ``line``: the last of the log ``log``."""

    state: RunState
    record: Record
    now: float
    began: tuple[tuple[str, float], ...]
    point: str | None = None
    progress: Progress | None = None
    log: str = ""
    line: str = ""
    event: str = ""


class Viewer:
    """Looks at a run again and again."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._events = EventReader(run)
        self._progress = ProgressReader(run)
        self._began: list[tuple[str, float]] = []
        self._event = ""
        self.new: list[dict[str, Any]] = []

    def look(self, state: RunState) -> View:
        """The run now; ``state``: what the scheduler said last. ``new`` has the events since the last look."""
        self.new = list(self._events.new())
        for event in self.new:
            self._event = render_event(event)
            if event.get("event") == "run_started":
                self._began.clear()
            if event.get("event") == "phase" and isinstance(event.get("t"), (int, float)):
                self._began.append((str(event.get("phase")), float(event["t"])))
        record = read_record(self._run)
        point = next((name for name, said in record.points.items() if said == "running"), None)
        log, line = self._last_line(point)
        progress = self._progress.of(point) if point is not None else None
        return View(state, record, time.time(), tuple(self._began), point, progress, log, line, self._event)

    def _last_line(self, point: str | None) -> tuple[str, str]:
        """The log that was written last (while a point is measured its client's), and its last line."""
        try:
            logs = [(log.path.stat().st_mtime, log) for log in list_logs(self._run)]
        except OSError:
            return "", ""
        # All points of a search have one client, which is called as their names begin.
        clients = [item for item in logs if point is not None and f"bench-{point}-".startswith(f"{item[1].name}-")]
        if not logs:
            return "", ""
        log = max(clients or logs, key=lambda item: item[0])[1]
        return log.name, _line(log.path)


def _line(path: Path) -> str:
    try:
        text = tail(path, _LAST_LINES)[0].decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return _COLOUR.sub("", lines[-1]).strip() if lines else ""


def draw(view: View, width: int, height: int) -> list[str]:
    """The lines, none wider than ``width``, not more than ``height``: processes give way where there are many."""
    state = view.state
    head = f"{state.id}: {'rehearsal ' if state.rehearsal else ''}{state.state}"
    job = (
        ""
        if state.job_id is None
        else f"{state.scheduler} job {state.job_id}" + (f" ({state.job_state})" if state.job_state else "")
    )
    top = [head, *(part for part in (job, _phases(view)) if part)]
    top += [f"  {line}" for line in (state.message or "").splitlines()[:4]]
    bottom = _points(view)
    bottom += [f"{view.log} | {view.line}"] if view.line else []
    bottom += [view.event] if view.event else []
    room = max(1, height - len(top) - len(bottom))
    lines = [*top, *_processes(view.record.processes, room), *bottom]
    return [_cut(printable(line.expandtabs(4)), width) for line in lines[:height]]


def _phases(view: View) -> str:
    """``bind 1 s, launch 0 s, ready 45 s …``: the last one goes on."""
    last = view.record.updated if view.state.final else view.now
    ends = [*(at for _, at in view.began[1:]), last or view.now]
    spans: dict[str, float] = {}
    for (name, at), end in zip(view.began, ends, strict=False):
        spans[name] = spans.get(name, 0.0) + max(0.0, end - at)
    parts = [f"{name} {_span(span)}" for name, span in spans.items()]
    return ", ".join(parts) + ("" if view.state.final or not parts else " …")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _processes(processes: Mapping[str, Mapping[str, Any]], room: int) -> list[str]:
    """A line a process; where there is no room for all, those that are not as most are come first."""
    if not processes:
        return []
    said = {name: str(view.get("state")) for name, view in processes.items()}
    rows = {name: _process(name, view, max(map(len, processes))) for name, view in processes.items()}
    if len(rows) <= room:
        return list(rows.values())
    usual = Counter(said.values()).most_common(1)[0][0]
    order = sorted(rows, key=lambda name: said[name] == usual)
    shown, rest = order[: room - 1], order[room - 1 :]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(said[name] for name in rest).items())
    return [*(rows[name] for name in shown), f"  … and {counts}"]


def _process(name: str, view: Mapping[str, Any], width: int) -> str:
    node, code = view.get("node"), view.get("exit_code")
    line = f"  {name.ljust(width)}  {view.get('state')}"
    line += f" with {code}" if code is not None else ""
    return line + (f", node {node}" if node is not None else "")


def _points(view: View) -> list[str]:
    points = view.record.points
    if not points:
        return []
    done = sum(said == "done" for said in points.values())
    line = f"points: {done} of {len(points)} done"
    if view.point is not None:
        line += f"; {view.point}: {view.progress if view.progress is not None else 'running'}"
    failed: Sequence[str] = [name for name, said in points.items() if said == "failed"]
    searches = [f"search {name}: {said}" for name, said in view.record.searches.items()]
    return [line + (f"; failed: {', '.join(failed)}" if failed else ""), *searches]


def _cut(line: str, width: int) -> str:
    """The line in ``width`` columns; ideographs take two."""
    taken = 0
    for index, sign in enumerate(line):
        taken += 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if taken > width - (index + 1 < len(line)):
            return f"{line[:index]}…"
    return line
