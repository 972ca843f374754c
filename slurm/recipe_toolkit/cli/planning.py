"""What the verbs that need a plan have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from recipe_toolkit.cli.advice import site_problems
from recipe_toolkit.cli.foreign import load_any
from recipe_toolkit.cluster_loader import LoadedCluster, load_cluster
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.fitting import Memory, memory_of
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.recipe_loader import LoadedRecipe


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made from.

    ``memory``: a line a role, where the model and the GPU are known. ``warnings``: warnings and notes, of the
    profile too.
    """

    file: Path
    recipe: LoadedRecipe
    cluster: LoadedCluster
    plan: Plan
    memory: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()


def plan_files(
    file: Path, cluster: str | None, sets: Sequence[str], *, rehearse: bool = False, strict: bool = False
) -> Planned:
    """Load a recipe and a profile and plan; warnings go to stderr. ``strict``: a warning refuses.

    Raises InputError with every problem, each with its line.
    """
    (planned,) = plan_all([file], cluster, sets, rehearse=rehearse, strict=strict)
    return planned


def plan_all(
    files: Sequence[Path], cluster: str | None, sets: Sequence[str], *, rehearse: bool, strict: bool = False
) -> list[Planned]:
    """:func:`plan_files` for several recipes. Raises InputError with the problems of all."""
    site = load_cluster(cluster)
    planned: list[Planned] = []
    problems: list[Problem] = []
    told: list[Problem] = list(site.warnings)
    for file in files:
        try:
            planned.append(_plan(file, site, sets, rehearse))
            told += planned[-1].warnings[len(site.warnings) :]
        except InputError as error:
            problems += [problem for problem in error.problems if problem.refuses]
            told += [problem for problem in error.problems if not problem.refuses]
    if not problems and strict and any(problem.severity == "warning" for problem in told):
        raise InputError(told)
    for problem in told:
        click.echo(problem.render(), err=True)
    if problems:
        raise InputError(problems)
    return planned


def _plan(file: Path, site: LoadedCluster, sets: Sequence[str], rehearse: bool) -> Planned:
    recipe = load_any(file, sets)
    try:
        plan = build_plan(recipe.recipe, site.cluster, rehearse=rehearse)
    except InputError as error:
        # The planner knows fields; where they stand is known to the loader.
        placed = [recipe.place(item) if item.file == "recipe" else item for item in error.problems]
        raise InputError([*recipe.warnings, *placed]) from error
    memory = Memory() if rehearse else memory_of(recipe.recipe, site.cluster)
    found = [recipe.place(item) for item in memory.problems]
    if any(problem.refuses for problem in found):
        raise InputError([*recipe.warnings, *found])
    if not rehearse:
        found += site_problems(recipe, site, memory)
    return Planned(file, recipe, site, plan, memory.lines, (*site.warnings, *recipe.warnings, *found))
