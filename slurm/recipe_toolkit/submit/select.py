"""Which of many runs are meant: by name, time, state, model, validity."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from recipe_toolkit.durations import parse_duration
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import all_runs
from recipe_toolkit.submit.state import FINAL, RunState, run_states
from recipe_toolkit.submit.sweeps import find_sweep

STATES = ("pending", "running", *FINAL)
_ID = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)-(.+)-[0-9a-f]{4}")
_DATES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S")
SORTS: dict[str, Callable[[RunState], str]] = {
    "time": lambda _state: "",  # as they come
    "name": lambda state: name_of(state.id),
    "state": lambda state: f"{STATES.index(state.state):02d}",
}


@dataclass(frozen=True)
class Selection:
    """What a run must be; None and empty: anything. ``since``: a Unix time. Names and models may be patterns.

    ``sweep``: as :func:`recipe_toolkit.submit.sweeps.find_sweep` takes it.
    """

    states: tuple[str, ...] = ()
    name: str | None = None
    since: float | None = None
    model: str | None = None
    valid: bool | None = None
    sweep: str | None = None
    sort: str = "time"
    last: int | None = None


def select(folders: Sequence[Path], wanted: Selection) -> list[RunState]:
    """The states of the runs in the folders that are meant, sorted.

    What the name says is looked at before any file of a run, so that few runs of many are quick.
    Raises UnknownRun if there is no such sweep.
    """
    known = all_runs(folders) if wanted.sweep is None else find_sweep(wanted.sweep, folders).runs
    runs = [run for run in known if _is_named(run, wanted)]
    tells = not wanted.states and wanted.model is None and wanted.valid is None and wanted.sort == "time"
    states = [state for state in run_states(runs[-(wanted.last or 0) :] if tells else runs) if _is_meant(state, wanted)]
    states.sort(key=SORTS[wanted.sort])
    return states[-(wanted.last or 0) :]


def name_of(run_id: str) -> str:
    """What a run is called without its time and its suffix."""
    match = _ID.fullmatch(run_id)
    return match[2] if match else run_id


def parse_since(text: str, now: float) -> float:
    """The Unix time of ``2d``, ``90m`` (before ``now``), or of a local date. Raises ValueError."""
    for form in _DATES:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    try:
        return now - parse_duration(text)
    except ValueError as error:
        raise ValueError(
            f"{text[:40]!r} is neither a span (90m, 2d) nor a date (2026-11-29, 2026-11-29T17:40)"
        ) from error


def _is_named(run: RunDir, wanted: Selection) -> bool:
    if wanted.name is not None and not any(fnmatchcase(word, wanted.name) for word in (run.id, name_of(run.id))):
        return False
    return wanted.since is None or _began(run) >= wanted.since


def _began(run: RunDir) -> float:
    """When the run was submitted, by its id; of a folder with another name, when that last changed."""
    match = _ID.fullmatch(run.id)
    try:
        return (
            float(calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H-%M-%S"))) if match else run.root.stat().st_mtime
        )
    except (ValueError, OverflowError, OSError):
        return 0.0


def _is_meant(state: RunState, wanted: Selection) -> bool:
    if wanted.states and state.state not in wanted.states:
        return False
    if wanted.model is not None and not fnmatchcase(state.model or "", wanted.model):
        return False
    return wanted.valid is None or state.valid is wanted.valid
