"""A planned run becomes a job: Slurm's, or one on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_toolkit.errors import SubmitError

if TYPE_CHECKING:
    from recipe_toolkit.cluster_loader import LoadedCluster
    from recipe_toolkit.plan.model import Plan
    from recipe_toolkit.recipe_loader import LoadedRecipe


@dataclass(frozen=True)
class Submitted:
    """A run that the scheduler has taken."""

    run_id: str
    folder: Path
    job_id: str
    scheduler: str

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "run": self.run_id,
            "folder": str(self.folder),
            "scheduler": self.scheduler,
            "job_id": self.job_id,
        }


def submit(recipe: LoadedRecipe, cluster: LoadedCluster, plan: Plan) -> Submitted:
    """Write the run folder, then hand one job to the scheduler.

    Raises SubmitError. What can be refused beforehand leaves nothing behind; a job that the scheduler
    refuses leaves its folder, listed as failed with the scheduler's words.
    """
    # submitit takes longer to import than all else: verbs that do not submit never pay for it.
    from recipe_toolkit.submit import folder, local, slurm, slurm_commands

    site = cluster.cluster
    run = folder.new_run(site.runs, plan.name)
    if site.scheduler == "slurm":
        slurm_commands.require_sbatch()
        slurm.script(run, plan, site)
    run = folder.write_run(run, recipe.data, cluster.data, plan)
    try:
        job = (slurm if site.scheduler == "slurm" else local).launch(run, plan, site)
    except SubmitError as error:
        folder.write_refusal(run, error.message)
        raise
    folder.write_job(run, job)
    return Submitted(run.id, run.root, str(job["job_id"]), site.scheduler)


def dry_run(cluster: LoadedCluster, plan: Plan) -> str:
    """What :func:`submit` would hand to the scheduler, under a run id of its own; nothing is written.

    Raises SubmitError.
    """
    from recipe_toolkit.submit import folder, local, slurm

    site = cluster.cluster
    run = folder.new_run(site.runs, plan.name)
    if site.scheduler == "slurm":
        return slurm.script(run, plan, site)
    return local.describe(run, plan, site)
