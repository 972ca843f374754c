"""What Slurm's job runs on every node: the agent, with the one question that it asks Slurm."""

from __future__ import annotations


def run_job(run_folder: str) -> None:
    """Run this node's part of the run to its end. Raises RunError if the run did not end well."""
    from recipe_toolkit.run.agent import run_agent
    from recipe_toolkit.submit.slurm_commands import preempted

    run_agent(run_folder, preempted)
