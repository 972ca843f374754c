"""What the verbs that need a plan have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from recipe_toolkit.cluster_loader import LoadedCluster, load_cluster
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.recipe_loader import LoadedRecipe, load_recipe


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made from."""

    recipe: LoadedRecipe
    cluster: LoadedCluster
    plan: Plan


def plan_files(file: Path, cluster: str | None, sets: Sequence[str], *, rehearse: bool = False) -> Planned:
    """Load a recipe and a profile and plan; warnings go to stderr.

    Raises InputError with every problem, each with its line.
    """
    recipe, site = load_recipe(file, sets), load_cluster(cluster)
    for warning in (*recipe.warnings, *site.warnings):
        click.echo(warning.render(), err=True)
    try:
        plan = build_plan(recipe.recipe, site.cluster, rehearse=rehearse)
    except InputError as error:
        # The planner knows fields; where they stand is known to the loader.
        raise InputError([recipe.place(item) if item.file == "recipe" else item for item in error.problems]) from error
    return Planned(recipe, site, plan)
