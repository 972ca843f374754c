"""What the verbs that need a plan have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from recipe_toolkit.cli.foreign import load_any
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.cluster_loader import LoadedCluster, load_cluster
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.fitting import memory_of
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.recipe_loader import LoadedRecipe


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made from. ``memory``: a line a role, where the model and the GPU are known."""

    file: Path
    recipe: LoadedRecipe
    cluster: LoadedCluster
    plan: Plan
    memory: tuple[str, ...] = ()


def plan_files(file: Path, cluster: str | None, sets: Sequence[str], *, rehearse: bool = False) -> Planned:
    """Load a recipe and a profile and plan; warnings go to stderr.

    Raises InputError with every problem, each with its line.
    """
    site = load_cluster(cluster)
    _warn(site.warnings)
    return _plan(file, site, sets, rehearse)


def plan_all(files: Sequence[Path], cluster: str | None, sets: Sequence[str], *, rehearse: bool) -> list[Planned]:
    """:func:`plan_files` for several recipes. Raises InputError with the problems of all."""
    site = load_cluster(cluster)
    _warn(site.warnings)
    planned: list[Planned] = []
    problems: list[Problem] = []
    for file in files:
        try:
            planned.append(_plan(file, site, sets, rehearse))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return planned


def _warn(warnings: Sequence[Problem]) -> None:
    for warning in warnings:
        click.echo(warning.render(), err=True)


def _plan(file: Path, site: LoadedCluster, sets: Sequence[str], rehearse: bool) -> Planned:
    recipe = load_any(file, sets)
    _warn(recipe.warnings)
    try:
        plan = build_plan(recipe.recipe, site.cluster, rehearse=rehearse)
    except InputError as error:
        # The planner knows fields; where they stand is known to the loader.
        raise InputError([recipe.place(item) if item.file == "recipe" else item for item in error.problems]) from error
    return Planned(file, recipe, site, plan, () if rehearse else checked_memory(recipe, site.cluster))


def checked_memory(recipe: LoadedRecipe, cluster: Cluster) -> tuple[str, ...]:
    """What fits, in a line a role; warnings go to stderr. Raises InputError for what cannot load."""
    memory = memory_of(recipe.recipe, cluster)
    problems = [recipe.place(item) for item in memory.problems]
    if any(problem.refuses for problem in problems):
        raise InputError(problems)
    _warn(problems)
    return memory.lines
