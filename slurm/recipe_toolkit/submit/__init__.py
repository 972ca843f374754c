"""A planned run becomes a job: Slurm's, one on hosts by ssh, or one on this machine."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_toolkit import __version__
from recipe_toolkit.errors import SubmitError

if TYPE_CHECKING:
    from recipe_toolkit.cluster import Cluster
    from recipe_toolkit.cluster_loader import LoadedCluster
    from recipe_toolkit.plan.model import Plan
    from recipe_toolkit.recipe_loader import LoadedRecipe
    from recipe_toolkit.rundir import RunDir
    from recipe_toolkit.submit.dependency import Queueing


@dataclass(frozen=True)
class Submitted:
    """A run that the scheduler has taken. ``interrupted``: how often Ctrl-C came in the meantime.

    ``said``: the scheduler's warnings and news.
    """

    run_id: str
    folder: Path
    job_id: str
    scheduler: str
    interrupted: int = 0
    rehearsal: bool = False
    said: str = ""
    sweep: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            **({"sweep": self.sweep} if self.sweep else {}),
            "run": self.run_id,
            "folder": str(self.folder),
            "scheduler": self.scheduler,
            "job_id": self.job_id,
            "rehearsal": self.rehearsal,
        }


def check(cluster: LoadedCluster, plan: Plan, queueing: Queueing) -> None:
    """Raise SubmitError for what can be refused before anything is written."""
    # submitit takes longer to import than all else: verbs that do not submit never pay for it.
    from recipe_toolkit.submit import folder, local, slurm, slurm_commands, ssh
    from recipe_toolkit.submit.dependency import PLAIN

    site = cluster.cluster
    run = folder.new_run(site.runs, plan.label)
    if site.scheduler == "slurm":
        slurm_commands.require_sbatch()
        slurm.script(run, plan, site, queueing)
        return
    if site.scheduler == "ssh":
        ssh.check()
    else:
        local.check(run)
    if queueing != PLAIN:
        raise SubmitError(
            f"profile {site.name} submits to no queue (scheduler: {site.scheduler}): nothing can be held there, "
            "or wait for another job",
            hint="leave out --hold and --dependency, or name a cluster's profile",
        )


def submit(
    recipe: LoadedRecipe,
    cluster: LoadedCluster,
    plan: Plan,
    queueing: Queueing,
    sweep: Mapping[str, Any] | None = None,
) -> Submitted:
    """Write the run folder, then hand one job to the scheduler. ``sweep``: of which it is a part, for sweep.json.

    Raises SubmitError. What can be refused beforehand leaves nothing behind; a job that the scheduler
    refuses leaves its folder, listed as failed with the scheduler's words.
    """
    from recipe_toolkit.submit import folder

    check(cluster, plan, queueing)
    site = cluster.cluster
    run = folder.write_run(folder.new_run(site.runs, plan.label), recipe.data, cluster.data, plan, sweep)
    with _uninterrupted() as pressed:
        job = _launch(run, plan, site, queueing)
        said = job.pop("said", "")
        try:
            folder.write_job(run, {**job, **_about(plan)})
        except OSError as error:
            raise SubmitError(
                f"job {job['job_id']} was submitted, but {run.job} cannot be written: {error.strerror or error}",
                hint=f"`recipe status {run.root}` finds the job all the same",
            ) from error
    of = None if sweep is None else str(sweep["sweep"])
    return Submitted(run.id, run.root, str(job["job_id"]), site.scheduler, len(pressed), plan.rehearsal, said, of)


def _about(plan: Plan) -> dict[str, Any]:
    """What a list of runs shows and filters by, so that it need not read whole plans."""
    return {"toolkit": __version__, "recipe": plan.name, "model": plan.served_name, "rehearsal": plan.rehearsal}


def _launch(run: RunDir, plan: Plan, site: Cluster, queueing: Queueing) -> dict[str, Any]:
    """Hand the job to the scheduler; a refusal is written into the run folder too. Raises SubmitError."""
    from recipe_toolkit.submit import folder, local, slurm, ssh

    try:
        if site.scheduler == "slurm":
            return slurm.launch(run, plan, site, queueing)
        return ssh.launch(run, plan, site) if site.scheduler == "ssh" else local.launch(run, plan, site)
    except SubmitError as error:
        refusal = error
    except OSError as error:
        refusal = SubmitError(f"cannot submit: {error}\n  run folder: {run.root}")
    with contextlib.suppress(OSError):  # the reason may be the file system itself
        folder.write_refusal(run, refusal.message)
    raise refusal


@contextlib.contextmanager
def _uninterrupted() -> Iterator[list[int]]:
    """Hold Ctrl-C back until the job and the folder know of each other; yields the list of those that came."""
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    previous = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def dry_run(cluster: LoadedCluster, plan: Plan, queueing: Queueing) -> str:
    """What :func:`submit` would hand to the scheduler, under a run id of its own; nothing is written.

    Raises SubmitError.
    """
    from recipe_toolkit.submit import folder, local, slurm, ssh

    site = cluster.cluster
    run = folder.new_run(site.runs, plan.label)
    if site.scheduler == "slurm":
        return slurm.script(run, plan, site, queueing)
    return ssh.describe(run, plan, site) if site.scheduler == "ssh" else local.describe(run, plan, site)
