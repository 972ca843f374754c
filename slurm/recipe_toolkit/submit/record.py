"""What a run folder says of its run, whatever state the folder is in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.rundir import RunDir, read_json

_EVENTS_TAIL = 64 * 1024
FINAL = ("done", "failed", "cancelled", "timeout", "preempted")


@dataclass(frozen=True)
class Record:
    """``job``: of job.json (None: not submitted, as far as the folder says). ``state``: of state.json, or None.

    ``born``: when the folder was made, 0 if it is gone or cannot be looked into. ``cut``: the end is from the
    events alone: state.json could not be written any more. ``copy``: `recipe collect` made the folder, so that
    no scheduler may be asked about its job. ``foreign``: another user's. ``trouble``: files that could not be read.
    ``asked_to_end``: by `recipe cancel`.
    """

    id: str
    job: Mapping[str, Any] | None = None
    state: str | None = None
    phase: str | None = None
    attempt: int = 0
    updated: float | None = None
    message: str | None = None
    valid: bool | None = None
    nodes: tuple[Mapping[str, Any], ...] = ()
    processes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    points: Mapping[str, str] = field(default_factory=dict)
    searches: Mapping[str, str] = field(default_factory=dict)
    born: float = 0.0
    cut: bool = False
    tasks_ended: bool = False
    asked_to_end: bool = False
    rehearsal: bool = False
    model: str | None = None
    copy: bool = False
    foreign: bool = False
    trouble: tuple[str, ...] = ()

    @property
    def final(self) -> bool:
        """Whether the run wrote its own end."""
        return self.state in FINAL


def read_record(run: RunDir) -> Record:
    """Read job.json and state.json; what is missing or broken is left out and said, never raised."""
    trouble: list[str] = []
    try:
        # Opening the folder makes an NFS client ask for files that were replaced a moment ago.
        found = run.root.stat()
        born, foreign = found.st_mtime, os.getuid() not in (0, found.st_uid)
        next(run.root.iterdir(), None)
    except OSError:
        born, foreign = 0.0, False
    job = _document(run, "job.json", trouble)
    if job is not None and not _names_a_job(job):
        trouble.append("job.json: names no job")
        job = None
    job = job or _recovered_job(run)
    state = _document(run, "state.json", trouble) or {}
    updated = state.get("updated")
    end = None if state.get("state") in FINAL else _last_event(run)
    if end is not None:
        state = {**state, **end}
    about = _about(run, job)
    return Record(
        id=run.id,
        job=job,
        state=_text(state.get("state")),
        phase=_text(state.get("phase")),
        attempt=state["attempt"] if isinstance(state.get("attempt"), int) else 0,
        updated=float(updated) if isinstance(updated, (int, float)) else None,
        message=_text(state.get("message")),
        valid=state["valid"] if isinstance(state.get("valid"), bool) else None,
        nodes=tuple(
            item for item in _list(state.get("nodes")) if isinstance(item, dict) and isinstance(item.get("index"), int)
        ),
        processes={name: view for name, view in _mapping(state.get("processes")).items() if isinstance(view, dict)},
        points={name: view for name, view in _mapping(state.get("points")).items() if isinstance(view, str)},
        searches={name: said for name, said in _mapping(state.get("searches")).items() if isinstance(said, str)},
        born=born,
        cut=end is not None,
        tasks_ended=state.get("state") not in FINAL and _tasks_ended(run),
        asked_to_end=_asked_to_end(run),
        rehearsal=about.get("rehearsal") is True,
        model=_text(about.get("model")),
        copy=_is_copy(run),
        foreign=foreign,
        trouble=tuple(trouble),
    )


def _tasks_ended(run: RunDir) -> bool:
    """Whether submitit has written what a task of the job returned."""
    try:
        return any(run.job_folder.glob("*_result.pkl"))
    except OSError:
        return False


def _asked_to_end(run: RunDir) -> bool:
    try:
        return run.cancelled.exists()
    except OSError:
        return False


def _about(run: RunDir, job: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """``rehearsal`` and ``model`` as job.json says, or the plan, which is longer, where no job was submitted."""
    if job is not None and "rehearsal" in job and "model" in job:
        return job
    plan = _document(run, "plan.json", []) or {}
    return {"rehearsal": plan.get("rehearsal"), "model": plan.get("served_name"), **(job or {})}


def _is_copy(run: RunDir) -> bool:
    """A run has its token, and a copy never: most folders are settled without a look into the manifest."""
    if run.token.exists():
        return False
    manifest = _document(run, run.manifest.name, [])
    return manifest is not None and manifest.get("copy") is True


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names_a_job(job: Mapping[str, Any]) -> bool:
    """Whether everything stands there that finding the job needs."""
    if job.get("scheduler") in ("local", "ssh"):
        return all(isinstance(job.get(key), int) for key in ("pid", "start_ticks")) and "job_id" in job
    return isinstance(job.get("scheduler"), str) and str(job.get("job_id", "")).isdigit()


def _document(run: RunDir, name: str, trouble: list[str]) -> dict[str, Any] | None:
    path = run.root / name
    try:
        data = read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        trouble.append(f"{name}: {error.strerror}")
        return None
    except ValueError:
        trouble.append(f"{name}: not JSON")
        return None
    if not isinstance(data, dict):
        trouble.append(f"{name}: not an object")
        return None
    return data


def _last_event(run: RunDir) -> dict[str, Any] | None:
    """State and message of a run whose last event is its end: an event may find room where a whole file does not."""
    try:
        with run.events.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _EVENTS_TAIL))
            events = [_event(line) for line in file.read().splitlines()]
    except OSError:
        return None
    if not events or events[-1].get("event") != "run_ended" or events[-1].get("state") not in FINAL:
        return None
    outcome: dict[str, Any] = next((event for event in reversed(events) if event.get("event") == "outcome"), {})
    return {"state": events[-1]["state"], "message": outcome.get("message"), "updated": events[-1].get("t")}


def _event(line: bytes) -> dict[str, Any]:
    try:
        return _mapping(json.loads(line))
    except ValueError:
        return {}


def _recovered_job(run: RunDir) -> dict[str, Any] | None:
    """The job, where the submitting command was killed between sbatch and job.json: submitit names files by it."""
    try:
        names = [path.name for path in run.job_folder.iterdir()]
    except OSError:
        return None
    for name in names:
        found = re.fullmatch(r"(\d+)(_submission\.sh|_0_log\.out|_submitted\.pkl)", name)
        if found and "submission.sh" in names:
            return {"scheduler": "slurm", "job_id": found[1]}
    return None
