"""What a job waits for in the queue: ``--dependency`` as sbatch takes it, with our runs in place of job ids."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

from recipe_toolkit.errors import SubmitError
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.record import read_record
from recipe_toolkit.submit.state import RunState, run_state

# `man sbatch`, --dependency. `expand` is of jobs that grow, and gone from Slurm.
KINDS = ("after", "afterany", "afternotok", "afterok", "aftercorr", "afterburstbuffer")
SINGLETON = "singleton"
_FORM = "KIND:JOB[:JOB…], several joined by `,` (all) or `?` (any); KIND is " + ", ".join(KINDS) + f"; or {SINGLETON}"
_JOB = re.compile(r"\d+(_\d+|\+\d+)?")  # a task of an array, a part of a heterogeneous job
_DELAY = re.compile(r"(.+)\+(\d+)")  # after:JOB+MINUTES


@dataclass(frozen=True)
class Queueing:
    """How a job stands in the queue. ``dependency``: in sbatch's words. ``hold``: until somebody releases it."""

    hold: bool = False
    dependency: str | None = None

    def after(self, job: str) -> Queueing:
        """The same, and not before the job has ended, however it ends."""
        both = [self.dependency] if self.dependency else []
        return dataclasses.replace(self, dependency=",".join([*both, f"afterany:{job}"]))

    @property
    def singleton(self) -> bool:
        """Whether it waits for other jobs of its name."""
        return SINGLETON in re.split("[,?]", self.dependency or "")


PLAIN = Queueing()


@dataclass(frozen=True)
class _Item:
    kind: str
    jobs: tuple[str, ...] = ()


def check_form(spec: str) -> None:
    """Raise ValueError if ``spec`` has no form that sbatch takes. What stands for a job is not looked at."""
    _parse(spec)


def _parse(spec: str) -> tuple[list[_Item], str]:
    """The items, and the sign between them."""
    if "," in spec and "?" in spec:
        raise ValueError(f"{spec!r} has both `,` (all of them) and `?` (any of them)")
    sign = "?" if "?" in spec else ","
    items = []
    for part in spec.split(sign):
        kind, *jobs = part.strip().split(":")
        if kind == SINGLETON and not jobs:
            items.append(_Item(kind))
        elif kind in KINDS and jobs and all(jobs):
            items.append(_Item(kind, tuple(jobs)))
        elif kind in KINDS:
            raise ValueError(f"{part.strip()!r} names no job: {_FORM}")
        else:
            raise ValueError(f"{part.strip()!r} is none of sbatch's dependencies: {_FORM}")
    return items, sign


def resolve(spec: str, find: Callable[[str], RunDir]) -> str | None:
    """``spec`` with the job of each run that it names, None if nothing is left to wait for.

    A run that has ended is judged here: Slurm soon forgets its job, and takes a job that it does not know for
    one that ended as wished. Raises ValueError for a wrong form, UnknownRun, and SubmitError for what will
    never be fulfilled.
    """
    items, sign = _parse(spec)
    left: list[str] = []
    refusal: SubmitError | None = None
    for item in items:
        try:
            jobs = [job for word in item.jobs if (job := _job(item.kind, word, find)) is not None]
        except _Never as error:
            refusal = error
            if sign == ",":
                raise
            continue
        if item.jobs and not jobs:  # fulfilled already
            if sign == "?":
                return None
            continue
        left.append(":".join([item.kind, *jobs]))
    if refusal is not None and not left:
        raise refusal
    return sign.join(left) or None


class _Never(SubmitError):
    """A dependency that cannot be fulfilled any more."""


def _job(kind: str, word: str, find: Callable[[str], RunDir]) -> str | None:
    """The job that a word stands for; None if it is a run that has ended as ``kind`` wants it."""
    if _JOB.fullmatch(word) or (kind == "after" and re.fullmatch(r"\d+\+\d+", word)):
        return word
    delayed = _DELAY.fullmatch(word) if kind == "after" else None
    run = find(delayed[1] if delayed else word)
    state = run_state(run)
    if state.final:
        _judge(kind, state)
        return None
    job = read_record(run).job
    if job is None:
        raise SubmitError(f"{run.id} is being submitted: its job is not known yet", hint="try again in a moment")
    if job.get("scheduler") != "slurm":
        raise SubmitError(
            f"{run.id} runs outside Slurm, which cannot wait for it", hint=f"`recipe wait {run.id}` first, then submit"
        )
    return f"{job['job_id']}+{delayed[2]}" if delayed else str(job["job_id"])


def _judge(kind: str, state: RunState) -> None:
    well = state.state == "done"
    if (kind in ("afterok", "aftercorr") and not well) or (kind == "afternotok" and well):
        raise _Never(
            f"{kind}:{state.id}: that run has ended as {state.state}, so this one would never start",
            hint="afterany waits for its end alone",
        )
