"""The state of a run: what the scheduler says, joined with what the run wrote.

The run's own word wins where it wrote its end, because it knows more (a job that fails because a rank
died, and one that drained at the warning signal, are both FAILED for Slurm). The scheduler's wins where
the run could not write, and where only the scheduler knows why the agents were told to end. A job that
nobody knows any more is *lost*, never done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit import controller, leftovers, slurm_commands
from recipe_toolkit.submit.record import Record, read_record
from recipe_toolkit.submit.slurm_commands import ACTIVE, ENDED, WAITING, JobInfo

FINAL = ("done", "failed", "cancelled", "timeout", "preempted", "lost")
EXIT_CODES = {"failed": 100, "lost": 102, "cancelled": 103, "timeout": 105, "preempted": 106}
NOT_FINISHED = 101
INVALID = 104

# A job whose run has ended may linger: Slurm can keep one COMPLETING for minutes when a slurmd is gone.
LINGER_S = 60.0
SUBMITTING_S = 120.0

# Reasons for which a job waits that time alone does not end.
STUCK = "will not start as it is"
_STUCK = {
    "AssocMaxNodePerJobLimit": "the account may not use so many nodes in a job",
    "BadConstraints": "no node has what slurm.constraint asks for",
    "DependencyNeverSatisfied": "the job that it depends on did not end as asked",
    "InvalidAccount": "the account is not known",
    "InvalidQOS": "the QOS is not known",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; `scontrol release {job}` lets it go",
    "PartitionConfig": "the partition cannot hold it",
    "PartitionNodeLimit": "the partition has, or allows, fewer nodes",
    "PartitionTimeLimit": "the partition allows a shorter time limit only",
    "QOSMaxNodePerJobLimit": "the QOS allows fewer nodes in a job",
}


@dataclass(frozen=True)
class Word:
    """What the scheduler says. ``kind``: waiting, active, ended, gone, silent (it did not answer), or hidden.

    A hidden job is another user's on a cluster that shows jobs to their owners alone.
    """

    kind: str
    state: str = ""
    reason: str = ""
    exit_code: str = ""
    restarts: int | None = None
    nodes: str = ""


@dataclass(frozen=True)
class RunState:
    """One run, as people and scripts are told of it. Times are Unix times.

    ``stale``: the run ended without a word, so nodes, processes and points are as they were last known.
    ``searches``: of each search how far it is.
    ``rehearsal``: the simulated engine stands in for the recipe's.
    ``hidden``: the scheduler never tells us of this job; the folder alone does.
    ``certain``: False where a state.json that is still on its way could change the state.
    """

    id: str
    folder: str
    state: str
    message: str | None = None
    phase: str | None = None
    valid: bool | None = None
    attempt: int = 0
    scheduler: str | None = None
    job_id: str | None = None
    job_state: str | None = None
    submitted: float | None = None
    updated: float | None = None
    nodes: tuple[Any, ...] = ()
    processes: dict[str, Any] = field(default_factory=dict)
    points: dict[str, str] = field(default_factory=dict)
    searches: dict[str, str] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()
    stale: bool = False
    rehearsal: bool = False
    model: str | None = None
    hidden: bool = field(default=False, compare=False)
    certain: bool = field(default=True, compare=False)

    @property
    def final(self) -> bool:
        """Whether it will not change any more."""
        return self.state in FINAL

    @property
    def exit_code(self) -> int:
        """The exit code of ``recipe wait``."""
        if self.state == "done":
            return INVALID if self.valid is False else 0
        return EXIT_CODES.get(self.state, NOT_FINISHED)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        data = asdict(self)
        del data["certain"], data["hidden"]
        return data


def run_state(run: RunDir) -> RunState:
    """The state of one run; never raises."""
    return run_states([run])[0]


def run_states(runs: Sequence[RunDir]) -> list[RunState]:
    """The states of many runs with one call of squeue; never raises."""
    records = [read_record(run) for run in runs]
    words = _slurm_words(records)
    now = time.time()
    found = []
    for run, record in zip(runs, records, strict=True):
        state = join(record, words.get(record.id) or _local_word(record), now, str(run.root))
        if state.state in FINAL and record.state is not None and not record.final and not record.copy:
            state = replace(state, message=_both(state.message, leftovers.containers(run, record.attempt)))
        found.append(state)
    return found


def _slurm_words(records: Sequence[Record]) -> dict[str, Word]:
    """Run id → word, of the runs of Slurm whose folder alone does not settle the matter."""
    asked: dict[str | None, dict[str, Record]] = {}
    for record in records:
        if record.copy:
            continue
        if record.job and record.job.get("scheduler") == "slurm" and record.state != "done":
            asked.setdefault(record.job.get("cluster"), {})[str(record.job["job_id"])] = record
    words: dict[str, Word] = {}
    for cluster, jobs in asked.items():
        # A failed run may have been requeued, which squeue knows; what accounting says of it changes nothing.
        recall = [job_id for job_id, record in jobs.items() if record.state != "failed"]
        answer = slurm_commands.query(list(jobs), cluster, recall=recall)
        for job_id, record in jobs.items():
            if job_id in answer.jobs:
                words[record.id] = slurm_word(answer.jobs[job_id])
            elif answer.error:
                words[record.id] = Word("silent", reason=answer.error)
            else:
                words[record.id] = Word("gone")
        unseen = [record.id for record in jobs.values() if record.foreign and words[record.id].kind == "gone"]
        if unseen and slurm_commands.hides_jobs(cluster):
            hidden = Word("hidden", reason="this cluster shows a job to its owner alone, and the run is another user's")
            words.update(dict.fromkeys(unseen, hidden))
    return words


def slurm_word(job: JobInfo) -> Word:
    """Sort one of Slurm's states."""
    if job.state in WAITING:
        kind = "waiting"
    elif job.state in ENDED:
        kind = "ended"
    else:
        kind = "active" if job.state in ACTIVE else "silent"
    reason = job.reason if kind != "silent" else f"job state {job.state!r} is not known to this version"
    return Word(kind, job.state, reason, job.exit_code, job.restarts, job.nodes)


def _local_word(record: Record) -> Word | None:
    if record.copy or not record.job or record.job.get("scheduler") not in ("local", "ssh"):
        return None
    host = controller.elsewhere(record.job)
    if host:
        return Word("silent", reason=f"the run is on {host}: ask there")
    return Word("active", "RUNNING") if controller.lives(record.job) else Word("gone")


def join(record: Record, word: Word | None, now: float, folder: str) -> RunState:
    """The state that follows from both. ``word``: None where no job is known, or the folder settles it."""
    state, message = _judge(record, word, now)
    job = record.job or {}
    submitted = job.get("submitted")
    return RunState(
        id=record.id,
        folder=folder,
        state=state,
        message=message,
        phase=record.phase if word is None or (word.kind != "waiting" and _current(record, word)) else None,
        valid=record.valid if state in FINAL else None,
        attempt=record.attempt,
        scheduler=job.get("scheduler"),
        job_id=str(job["job_id"]) if "job_id" in job else None,
        job_state=word.state if word and word.state else None,
        submitted=submitted if isinstance(submitted, (int, float)) else None,
        updated=record.updated,
        nodes=record.nodes,
        processes=dict(record.processes),
        points=dict(record.points),
        searches=dict(record.searches),
        trouble=record.trouble,
        stale=state in FINAL and (record.cut or not record.final),
        rehearsal=record.rehearsal,
        model=record.model,
        hidden=word is not None and word.kind == "hidden",
        certain=record.final or _certain(record, word),
    )


def _certain(record: Record, word: Word | None) -> bool:
    """Whether a state.json that has not arrived yet could change nothing."""
    if word is None or word.kind not in ("ended", "gone"):
        return True
    return record.state is None and word.state == "CANCELLED"  # it never started


def _judge(record: Record, word: Word | None, now: float) -> tuple[str, str | None]:
    if word is None:
        return _without_job(record, now)
    if word.kind in ("silent", "hidden"):
        unsure = None if record.final else f"the scheduler does not say: {word.reason}"
        return record.state or "pending", _both(record.message, unsure)
    if word.kind == "waiting":
        return "pending", _waiting(word, str((record.job or {}).get("job_id")))
    if word.kind == "active":
        return _active(record, word, now)
    if word.kind == "gone":
        return _gone(record)
    return _ended(record, word)


def _without_job(record: Record, now: float) -> tuple[str, str | None]:
    if record.final:
        return str(record.state), record.message
    if not record.born:
        return "lost", "its folder is gone, or cannot be read; a job of it may go on: `squeue --me`"
    if record.copy:
        return "lost", f"this is a copy that was made before the run's end; {_last(record)}"
    if record.job is not None:  # a scheduler that this version does not know
        return record.state or "pending", record.message
    if record.state:
        return "lost", f"the folder names no job, and the run wrote no end; its last word is {_last(record)}"
    if now - record.born < SUBMITTING_S:
        return "pending", "being submitted"
    return "failed", "it was never submitted: the submission was interrupted"


def _current(record: Record, word: Word) -> bool:
    """Whether the run's last word is of the attempt that the scheduler speaks of."""
    return record.attempt >= (word.restarts or 0)


def _requeued(word: Word) -> str | None:
    return f"requeued, attempt {word.restarts}" if word.restarts else None


def _waiting(word: Word, job: str) -> str | None:
    again = _requeued(word)
    stuck = _STUCK.get(word.reason)
    # In words, with blanks from squeue and lines from scontrol: "launch failed requeued held".
    if stuck is None and {"requeued", "held"} <= set(re.split("[ _]", word.reason)):
        stuck = "Slurm has put it back and holds it; `scontrol release {job}` lets it go"
    if stuck is not None:
        why = stuck.replace("{job}", job)
        return _both(again, f"{STUCK}: {why} ({word.reason})")
    return _both(again, f"waits for {word.reason}" if word.reason else None)


def _active(record: Record, word: Word, now: float) -> tuple[str, str | None]:
    if not _current(record, word):
        # Its first attempt is being cleared away, or its next has not reported yet.
        return ("pending" if word.state == "COMPLETING" else "running"), _requeued(word)
    if not record.final:
        return "running", record.message or (None if record.state else "the agents have not reported yet")
    settled = record.state in ("done", "failed")
    if record.state == "preempted":
        return "running", _both(record.message, "Slurm ends or requeues it when its grace time is over")
    lingers = record.updated is not None and now - record.updated > LINGER_S
    if lingers or (settled and word.state == "COMPLETING"):
        return str(record.state), record.message
    return "running", _both(record.message, "ending")


def _gone(record: Record) -> tuple[str, str | None]:
    job = record.job or {}
    if record.final:
        return str(record.state), record.message
    if record.asked_to_end:
        return "cancelled", f"ended before the run could say so; {_last(record)}"
    if job.get("scheduler") in ("local", "ssh"):
        if record.tasks_ended:
            return "failed", f"the agents ended without a word; see `recipe logs {record.id} job`"
        return "lost", f"process {job.get('pid')} is gone, and the run wrote no end; {_last(record)}"
    return "lost", (
        f"neither squeue nor sacct know job {job.get('job_id')} any more, and the run wrote no end; {_last(record)}"
    )


def _ended(record: Record, word: Word) -> tuple[str, str | None]:
    mapped = ENDED[word.state]
    said = f"Slurm: {word.state}" + (f" ({word.reason})" if word.reason and word.reason != word.state else "")
    if word.exit_code not in ("", "0:0"):
        said += f", exit code {word.exit_code}"
    if record.final and _current(record, word):
        # TERM reaches the agents for several reasons; only Slurm knows which.
        if record.state == "cancelled" and mapped in ("timeout", "preempted"):
            return mapped, said
        abnormal = mapped not in ("done", "failed", record.state) or word.state in ("NODE_FAIL", "OUT_OF_MEMORY")
        return str(record.state), _both(record.message, said if abnormal else None)
    if mapped == "done":
        return "failed", f"{said}, but the run wrote no end; {_last(record)}"
    return mapped, f"{said}; {_last(record)}"


def _last(record: Record) -> str:
    if record.state is None:
        return f"no agent has reported; see `recipe logs {record.id} job`"
    at = time.strftime("%H:%M:%S", time.localtime(record.updated)) if record.updated else "unknown time"
    known = f"last known: {record.state}, phase {record.phase}, at {at}"
    return f"{known}; see `recipe logs {record.id} job`"


def _both(first: str | None, second: str | None) -> str | None:
    return "; ".join(part for part in (first, second) if part) or None
