"""Submission to Slurm through submitit: one job, one task a node, the agent as its function."""

from __future__ import annotations

import math
import shlex
import sys
from typing import Any

from submitit.core import core
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import SubmitError
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit import slurm_commands
from recipe_toolkit.submit.dependency import PLAIN, Queueing

# For the lead to write what was measured, after all that an agent's end may come before: the bind phase, or the drain.
_WRITES_S = 600


def srun_args(wait_s: int) -> tuple[str, ...]:
    """srun's arguments for one task a node. ``wait_s``: from the first task's end to the last's; 0: any time.

    A dead agent must not take the lead with it, which has the results to write: no --kill-on-bad-exit, and no end of
    the step 30 s after the first task's. One task has the whole node, so it is bound to no CPU.
    """
    return ("--kill-on-bad-exit=0", f"--wait={wait_s}", "--cpu-bind=none")


class AgentExecutor(SlurmExecutor):
    """submitit's executor with our own call of sbatch, usable for a dry run where there is no Slurm."""

    cluster: str | None = None  # the cluster's name, where sbatch told one
    said: str = ""  # what sbatch said beside the job's id

    @classmethod
    def affinity(cls) -> int:
        """Available, also where no srun is: a script can be written anywhere."""
        return 2

    def script(self) -> str:
        """The batch script, byte for byte."""
        return self._make_submission_file_text(self._submitit_command_str, "")

    def _submit_command(self, command: str) -> core.Job[Any]:
        """Write the script under a name that stays, submit it, and hand back submitit's job."""
        script = self.folder / "submission.sh"
        script.write_text(self._make_submission_file_text(command, ""), encoding="utf-8")
        job_id, self.cluster, self.said = slurm_commands.sbatch(script, self.folder.parent)
        job: core.Job[Any] = SlurmJob(folder=self.folder, job_id=job_id, tasks=list(range(self._num_tasks())))
        job.paths.submission_file.symlink_to(script.name)
        return job


def executor(run: RunDir, plan: Plan, cluster: Cluster, queueing: Queueing) -> AgentExecutor:
    """The executor that submits this run. Raises SubmitError for what the batch script could not hold."""
    for path in (str(run.root), cluster.python or sys.executable, *cluster.pythonpath):
        check_path(path)
    for path in cluster.pythonpath:
        if ":" in path:
            raise SubmitError(f"{path!r}: a path with : cannot be in pythonpath, where it separates paths")
    made = AgentExecutor(run.job_folder, python=python_command(cluster))
    made.update_parameters(**parameters(run, plan, cluster, queueing))
    return made


def check_path(path: str) -> None:
    """Refuse what sbatch would read as something else. Raises SubmitError."""
    for sign, why in (
        ("%", "sbatch and submitit expand %j and the like in paths"),
        ("\\", "sbatch takes a backslash in a file name as an escape"),
    ):
        if sign in path:
            raise SubmitError(f"{path!r}: a path with {sign} cannot be used: {why}", hint="choose another folder")
    if not path.isprintable():
        raise SubmitError(f"{path!r}: a path with control characters cannot be used", hint="choose another folder")


def python_command(cluster: Cluster) -> str:
    """The shell words that start the nodes' Python with this package on its path."""
    python = [cluster.python or sys.executable]
    if cluster.pythonpath:
        python = ["env", f"PYTHONPATH={':'.join(cluster.pythonpath)}", *python]
    return shlex.join(python)


def parameters(run: RunDir, plan: Plan, cluster: Cluster, queueing: Queueing = PLAIN) -> dict[str, Any]:
    """submitit's parameters for this run. The profile's loader has refused directives that are set here."""
    site, waits = cluster.slurm, plan.deadlines
    minutes = max(1, -(-plan.time_limit_s // 60))
    # Slurm may send the warning up to a minute early (`man sbatch`, --signal): short runs keep most of their time.
    lead = max(1, min(site.signal_lead_s, minutes * 60 // 4))
    further: dict[str, Any] = {"chdir": str(run.root), "signal": f"USR2@{lead}"}
    if site.reservation:
        further["reservation"] = site.reservation
    if site.segment:
        further["segment"] = site.segment
    further.update({key: value for key, value in site.directives.items() if value is not False})
    if plan.rehearsal:
        further = {key: value for key, value in further.items() if not _asks_for_gpus(key, value)}
    if queueing.hold:
        further["hold"] = True
    if queueing.dependency:
        # A job that can never start would wait for ever, and so would those who wait for it.
        further = {"kill-on-invalid-dep": "yes", **further}
    return {
        # Slurm's `singleton` goes by the name, which is otherwise a run's own.
        "job_name": plan.label if queueing.singleton else f"{plan.label}-{run.id[-4:]}",
        "dependency": queueing.dependency,
        "nodes": len(plan.nodes),
        "ntasks_per_node": 1,
        "time": minutes,
        "signal_delay_s": lead,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        # Whole nodes would be held with their GPUs, asked for or not.
        "exclusive": True if site.exclusive and not plan.rehearsal else None,
        **_gpus(plan, cluster),
        "setup": list(site.setup) or None,
        # A lead that hangs, as on a file system that does, would hold all nodes until the time limit.
        "srun_args": [*srun_args(_WRITES_S + math.ceil(max(waits.bind, waits.drain))), *site.srun_args],
        "stderr_to_stdout": True,
        "wckey": None,  # submitit's default, which a site that checks them refuses
        "additional_parameters": further,
    }


def _gpus(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    site = cluster.slurm
    if plan.device != "gpu" or plan.rehearsal or site.gpus == "none":
        return {}
    count = plan.gpus_per_node if site.exclusive else max(node.gpus for node in plan.nodes)
    if site.gpus == "gpus-per-node":
        kind = site.gres_name.partition(":")[2]  # gpu:h200 -> h200:8
        return {"gpus_per_node": f"{kind}:{count}" if kind else count}
    return {"gres": f"{site.gres_name}:{count}"}


def _asks_for_gpus(key: str, value: object) -> bool:
    """Whether a directive of the profile says how many GPUs the job gets, or what comes with each."""
    return "gpu" in key or (key in ("gres", "tres-per-node", "tres-per-task") and "gpu" in str(value))


def launch(run: RunDir, plan: Plan, cluster: Cluster, queueing: Queueing) -> dict[str, Any]:
    """Submit the run; returns what ``job.json`` holds, and what sbatch ``said`` else. Raises SubmitError."""
    made = executor(run, plan, cluster, queueing)
    from recipe_toolkit.submit.job import run_job  # late: it imports the agent

    job = made.submit(run_job, str(run.root))
    return {"scheduler": "slurm", "job_id": job.job_id, "cluster": made.cluster, "said": made.said}


def script(run: RunDir, plan: Plan, cluster: Cluster, queueing: Queueing = PLAIN) -> str:
    """The batch script that :func:`launch` would submit. Raises SubmitError."""
    return executor(run, plan, cluster, queueing).script()
