"""Setup steps: before an engine serves, inside its container."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import Problem
from recipe_toolkit.plan.model import Process, SetupStep
from recipe_toolkit.plan.sim import engine_runner
from recipe_toolkit.plan.values import RunPath
from recipe_toolkit.recipe import Recipe

FOLDER = "setup"
RUNNER = f"{FOLDER}/run.sh"


def steps(recipe: Recipe) -> tuple[SetupStep, ...]:
    """The recipe's steps, in order, each with the hash of its file."""
    return tuple(
        SetupStep(step.name, hashlib.sha256(step.script.encode()).hexdigest(), f"{FOLDER}/{index:02}-{step.name}.sh")
        for index, step in enumerate(recipe.setup, 1)
    )


def prepared(process: Process) -> Process:
    """The process behind a script that runs every step and then becomes what it was."""
    return replace(process, argv=("/bin/sh", RunPath(RUNNER), *process.argv))


def problems(recipe: Recipe, cluster: Cluster) -> Iterator[Problem]:
    """Steps that would not run in a container. Raises InputError for an image without a runtime."""
    if recipe.setup and engine_runner(recipe, cluster).image is None:
        message = (
            f"the profile {cluster.name} runs the engine on the node itself, whose own environment the steps would "
            "change, for every other program too"
        )
        hint = (
            "a container runtime and an image for the engine in the profile; or change the environment by hand and "
            "leave the steps out: --set setup=null"
        )
        yield Problem("recipe", 0, 0, "setup", message, hint)
