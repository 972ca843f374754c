"""Submission on this machine through submitit: one controller, and a task for each node of the plan."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

from submitit.core import core
from submitit.local.local import LocalExecutor, LocalJob

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import SubmitError
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit import controller, slurm_commands
from recipe_toolkit.submit.slurm import python_command


class TaskExecutor(LocalExecutor):
    """submitit's executor with a controller that outlives the terminal and the command that started it."""

    def _submit_command(self, command: str) -> LocalJob[Any]:
        tasks = int(self.parameters["tasks_per_node"])
        log = self.folder / "controller.log"
        with log.open("ab") as file:
            # Its own session: neither the terminal's Ctrl-C nor its end reaches it. No pipe of ours is
            # held open by it, so that a caller who reads our output sees its end.
            process = subprocess.Popen(
                [sys.executable, "-m", "submitit.local._local", str(self.folder)],
                env=self._environment(command, tasks),
                cwd=self.folder.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        return LocalJob(folder=self.folder, job_id=str(process.pid), process=process, tasks=list(range(tasks)))

    def _environment(self, command: str, tasks: int) -> dict[str, str]:
        """What submitit's controller reads; CUDA_VISIBLE_DEVICES stays the caller's, the agents share it out."""
        return {
            **slurm_commands.environment(),
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_NTASKS": str(tasks),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": str(self.parameters["signal_delay_s"]),
            "SUBMITIT_LOCAL_TIMEOUT_S": str(self.parameters["timeout_s"]),
            "SUBMITIT_LOCAL_WITH_SHELL": "",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
        }


def _parameters(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    limit = max(1, int(plan.time_limit_s))
    lead = max(1, min(cluster.slurm.signal_lead_s, limit // 4))
    return {
        "nodes": 1,
        "tasks_per_node": len(plan.nodes),
        "timeout_s": limit,
        "timeout_min": -(-limit // 60),
        "signal_delay_s": lead,
    }


def check(run: RunDir) -> None:
    """Refuse a run folder that submitit would read as another. Raises SubmitError."""
    if "%" in str(run.root):
        raise SubmitError(
            f"{str(run.root)!r}: a path with % cannot be used: submitit expands %j and the like in paths",
            hint="choose another folder: `runs` in the profile",
        )


def launch(run: RunDir, plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Start the run's controller; returns what ``job.json`` holds. Raises SubmitError."""
    from recipe_toolkit.run.agent import run_agent  # late: `submit` is imported by verbs that run nothing

    executor = TaskExecutor(run.job_folder, python=python_command(cluster))
    executor.update_parameters(**_parameters(plan, cluster))
    job: core.Job[Any] = executor.submit(run_agent, str(run.root))
    return {"scheduler": "local", "job_id": job.job_id, **controller.identify(int(job.job_id))}


def describe(run: RunDir, plan: Plan, cluster: Cluster) -> str:
    """What :func:`launch` would start, for a dry run."""
    task = f"{python_command(cluster)} -u -m submitit.core._submit {shlex.quote(str(run.job_folder))}"
    limit = _parameters(plan, cluster)["timeout_s"]
    return "\n".join(
        [
            f"# on {os.uname().nodename}: {len(plan.nodes)} tasks, at most {limit} s, in {run.root}",
            *(f"SUBMITIT_LOCAL_GLOBALID={index} {task}" for index in range(len(plan.nodes))),
            "",
        ]
    )
