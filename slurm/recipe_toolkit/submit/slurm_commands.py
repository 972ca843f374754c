"""The only caller of sbatch, squeue, scontrol, sacct, scancel and sinfo."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe_toolkit.errors import SubmitError, printable

TIMEOUT_S = 30.0
HURRY_S = 5.0  # of a job that is about to be killed
SUBMIT_TIMEOUT_S = 120.0

# Of the caller's own Slurm variables only these say where the cluster is and who asks; all others
# (options of an allocation that the caller happens to be in, output formats) would change what we mean.
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET"}
_SCRUBBED = re.compile(r"(SLURM|SLURMD|SBATCH|SALLOC|SRUN|SQUEUE|SACCT|SCANCEL|SINFO|SCONTROL|SUBMITIT|PMI|PMIX|PMI2)_")

# squeue's words (`man squeue`, JOB STATE CODES), in four sets; nothing else decides what they mean.
WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
}
ACTIVE = {"RUNNING", "COMPLETING", "EXPEDITING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
ENDED = {
    "COMPLETED": "done",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "PREEMPTED": "preempted",
    "REVOKED": "cancelled",
    "BOOT_FAIL": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "RECONFIG_FAIL": "failed",
}

_HINTS = (
    ("account", "`sacctmgr show associations user=$USER` lists your accounts; the profile's slurm.account names one"),
    ("partition", "`sinfo -s` lists the partitions; the profile's slurm.partition names one"),
    ("qos", "`sacctmgr show qos` lists them; the profile's slurm.qos names one"),
    ("reservation", "`scontrol show reservations` lists them; the profile's slurm.reservation names one"),
    ("time limit", "the recipe's time_limit is longer than the partition allows"),
    ("node configuration", "no such nodes in this partition: compare `sinfo -Nel` with the recipe's resources"),
    ("node count", "the partition has fewer nodes than the recipe needs"),
    ("gres", "the site's name for GPUs stands in the profile: slurm.gres_name, or slurm.gpus: gpus-per-node"),
    ("dependency", "`squeue --me` shows the jobs; a run's id may stand for its job"),
    ("contact", "is slurmctld up? `scontrol ping`"),
)


@dataclass(frozen=True)
class JobInfo:
    """What Slurm says of a job. ``exit_code``: ``CODE:SIGNAL``. ``restarts``: how often it was requeued, if known."""

    state: str
    reason: str = ""
    nodes: str = ""
    exit_code: str = ""
    restarts: int | None = None
    source: str = "squeue"


@dataclass(frozen=True)
class Answer:
    """``jobs``: by id. ``error``: why Slurm did not answer; without it, a job that is not in ``jobs`` is gone."""

    jobs: Mapping[str, JobInfo]
    error: str | None = None


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without its Slurm and submitit settings, save what finds the cluster."""
    environ = os.environ if environ is None else environ
    return {key: value for key, value in environ.items() if key in _KEPT or not _SCRUBBED.match(key)}


def require_sbatch() -> None:
    """Raise SubmitError if there is no sbatch on PATH."""
    if shutil.which("sbatch") is None:
        raise SubmitError(
            "sbatch: not found on PATH",
            hint="submit from a login node of the cluster, look at the job with --dry-run, or use --cluster local",
        )


def _call(argv: Sequence[str], timeout_s: float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs. Raises SubmitError if it is missing or does not come back."""
    try:
        return subprocess.run(
            argv,
            env=environment(),
            cwd=cwd,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,  # the terminal's Ctrl-C must not cut a submission in two
        )
    except FileNotFoundError as error:
        raise SubmitError(f"{argv[0]}: not found on PATH", hint="run this on a login node of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise SubmitError(f"{shlex.join(argv)}: no answer in {timeout_s:g} s") from error
    except OSError as error:
        raise SubmitError(f"{argv[0]}: {error.strerror or error}") from error


def sbatch(script: Path, run_folder: Path) -> tuple[str, str | None, str]:
    """Submit ``script``; returns the job's id, the cluster's name where several are federated, and what else it said.

    Raises SubmitError with the command, its exit code and its own words.
    """
    argv = ["sbatch", "--parsable", str(script)]
    try:
        done = _call(argv, SUBMIT_TIMEOUT_S, cwd=run_folder)
    except SubmitError as error:
        raise SubmitError(
            f"{error.message}\n  run folder: {run_folder}",
            hint=error.hint or "slurmctld may have taken the job all the same: look with `squeue --me`",
        ) from error
    before, _, last = done.stdout.strip().rpartition("\n")
    parsed = re.fullmatch(r"(\d+)(?:;(\S+))?", last)
    if done.returncode == 0 and parsed:
        return parsed[1], parsed[2], f"{before}\n{done.stderr}".strip()
    words = done.stderr.strip() or done.stdout.strip()
    said = "\n    ".join(map(printable, words.splitlines())) or "nothing"
    what = "sbatch refused the job" if done.returncode else "sbatch printed no job id"
    raise SubmitError(
        f"{what}\n  command: {shlex.join(argv)}\n  exit code: {done.returncode}\n"
        f"  it said: {said}\n  run folder: {run_folder}",
        hint=next((hint for word, hint in _HINTS if word in words.lower()), None),
    )


def scancel(job_id: str, cluster: str | None = None) -> None:
    """Cancel a job; one that is gone already is no error. Raises SubmitError."""
    argv = ["scancel", *_cluster(cluster), job_id]
    done = _call(argv, TIMEOUT_S)
    if done.returncode and "invalid job id" not in done.stderr.lower():
        raise SubmitError(f"{shlex.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")


def query(job_ids: Sequence[str], cluster: str | None = None, *, recall: Collection[str] | None = None) -> Answer:
    """What Slurm knows of these jobs: squeue, then for those it has forgotten sacct, with and without slurmdbd.

    ``recall``: the jobs that are worth asking sacct about (None: all). One call of each program, however
    many jobs; never raises.
    """
    if not job_ids:
        return Answer({})
    failure: str | None = None
    jobs: dict[str, JobInfo] = {}
    try:
        jobs = _squeue(job_ids, cluster)
    except SubmitError as error:
        failure = error.message
    missing = [job_id for job_id in job_ids if job_id not in jobs and (recall is None or job_id in recall)]
    # Where squeue got no answer, scontrol asks the same daemon, and would be waited for once more.
    if missing and len(job_ids) == 1 and failure is None:
        jobs |= _scontrol(missing[0], cluster)
        missing = [job_id for job_id in missing if job_id not in jobs]
    if missing:
        jobs |= _sacct(missing, cluster)
    if all(job_id in jobs for job_id in job_ids):
        failure = None
    return Answer(jobs, failure)


def _cluster(cluster: str | None) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


_FIELDS = ("JobID", "State", "Reason", "NodeList", "exit_code", "RestartCnt")


def _squeue(job_ids: Sequence[str], cluster: str | None) -> dict[str, JobInfo]:
    """Jobs that slurmctld still holds, ended ones for MinJobAge. Raises SubmitError if squeue fails."""
    # "NAME:|" prints the whole value and a bar; without the colon squeue cuts it to 20 characters.
    format_ = ",".join(f"{name}:|" for name in _FIELDS)
    argv = ["squeue", *_cluster(cluster), "--states=all", "--noheader", f"--Format={format_}"]
    argv.append(f"--jobs={','.join(job_ids)}")
    done = _call(argv, TIMEOUT_S)
    if done.returncode:
        if "invalid job id" in done.stderr.lower():  # of one job only; of several squeue leaves it out
            return {}
        raise SubmitError(f"{shlex.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
    jobs = {}
    for line in done.stdout.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) > len(_FIELDS) - 1 and fields[0]:
            job_id, state, reason, nodes, code, restarts = fields[: len(_FIELDS)]
            jobs[job_id] = JobInfo(
                state=state,
                reason="" if reason == "None" else reason,
                nodes=nodes,
                exit_code=_exit_code(code),
                restarts=int(restarts) if restarts.isdigit() else None,
            )
    return jobs


def _exit_code(text: str) -> str:
    """squeue prints the wait status, not the code: 768 is 3."""
    return f"{int(text) >> 8}:{int(text) & 127}" if text.isdigit() else text


def _scontrol(job_id: str, cluster: str | None) -> dict[str, JobInfo]:
    """The job, where squeue hides it (partitions that are not the caller's); empty if scontrol fails."""
    try:
        done = _call(["scontrol", *_cluster(cluster), "--oneliner", "show", "job", job_id], TIMEOUT_S)
    except SubmitError:
        return {}
    fields = dict(re.findall(r"(?:^|\s)(JobId|JobState|Reason|NodeList|ExitCode|Restarts)=(\S+)", done.stdout))
    if done.returncode or "JobState" not in fields:
        return {}
    return {
        job_id: JobInfo(
            state=fields["JobState"],
            reason="" if fields.get("Reason") == "None" else fields.get("Reason", ""),
            nodes="" if fields.get("NodeList") == "(null)" else fields.get("NodeList", ""),
            exit_code=fields.get("ExitCode", ""),
            restarts=int(fields["Restarts"]) if fields.get("Restarts", "").isdigit() else None,
            source="scontrol",
        )
    }


def hides_jobs(cluster: str | None) -> bool:
    """Whether the cluster shows a job to its owner alone (PrivateData); False also where it does not say."""
    try:
        done = _call(["scontrol", *_cluster(cluster), "show", "config"], TIMEOUT_S)
    except SubmitError:
        return False
    private = re.search(r"^PrivateData\s*=\s*(\S+)", done.stdout, re.MULTILINE)
    return private is not None and bool({"jobs", "all"} & set(private[1].split(",")))


def preempted(job_id: str) -> str | None:
    """Slurm's state of a job that is being preempted: RUNNING in its grace time; None for any other job.

    None also where Slurm does not say: no scontrol here, no answer in 5 s.
    """
    try:
        done = _call(["scontrol", "--oneliner", "show", "job", job_id], HURRY_S)
    except SubmitError:
        return None
    fields = dict(re.findall(r"(?:^|\s)(JobState|PreemptTime)=(\S+)", done.stdout))
    when = fields.get("PreemptTime", "")
    return fields.get("JobState") if when[:1].isdigit() else None


def _sacct(job_ids: Sequence[str], cluster: str | None) -> dict[str, JobInfo]:
    """Ended jobs from slurmdbd, else from jobcomp's file (``--completion``); empty if the site keeps neither."""
    rest = ["--allocations", "--noheader", "--parsable2", "--format=JobID,State,ExitCode,NodeList"]
    for extra in (_cluster(cluster), ["--completion"]):
        try:
            done = _call(["sacct", *extra, *rest, f"--jobs={','.join(job_ids)}"], TIMEOUT_S)
        except SubmitError:
            return {}
        if done.returncode == 0:
            break
    else:
        return {}
    jobs = {}
    for line in done.stdout.splitlines():
        fields = line.split("|")
        if len(fields) == 4 and fields[0] in job_ids:
            # "CANCELLED by 1000"
            jobs[fields[0]] = JobInfo(fields[1].split(" ")[0], "", fields[3], fields[2], source="sacct")
    return jobs


_GPUS = re.compile(r"(?:^|,)gpu:(?:([^:,()]+):)?([0-9]+)")
SINFO_TIMEOUT_S = 5.0


def partitions() -> dict[str, tuple[str | None, int] | None]:
    """The partitions, the default first, with the GPUs of a node: (kind or None, how many); None where nodes differ.

    Empty where sinfo does not answer in five seconds: a person is waiting, and can type a name.
    """
    try:
        done = _call(["sinfo", "--noheader", "--format=%P|%G"], SINFO_TIMEOUT_S)
    except SubmitError:
        return {}
    found: dict[str, set[tuple[str | None, int] | None]] = {}
    default = None
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, bar, gres = line.strip().partition("|")
        if not bar or not name:
            continue
        if name.endswith("*"):
            name = default = name[:-1]
        gpus = _GPUS.findall(gres)
        known = (_kind(gpus[0][0]), int(gpus[0][1])) if len(gpus) == 1 else None
        found.setdefault(name, set()).add(known)
    names = sorted(found, key=lambda name: name != default)
    return {name: next(iter(found[name])) if len(found[name]) == 1 else None for name in names}


def _kind(gres: str) -> str | None:
    """As people write it: ``nvidia_h200`` (NVML's name, which AutoDetect gives) is H200."""
    return gres.removeprefix("nvidia_").upper() or None
