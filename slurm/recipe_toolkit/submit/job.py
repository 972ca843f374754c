"""What Slurm's job runs on every node: the agent, with the one question that it asks Slurm.

Everything is imported here and not when it is called: submitit reads the job first, and only then ignores TERM.
"""

from __future__ import annotations

from recipe_toolkit.run.agent import run_agent
from recipe_toolkit.submit.slurm_commands import preempted


def run_job(run_folder: str) -> None:
    """Run this node's part of the run to its end. Raises RunError if the run did not end well."""
    run_agent(run_folder, preempted)
