"""What the verbs that need a plan have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli.advice import site_problems
from recipe_toolkit.cli.foreign import load_any
from recipe_toolkit.cluster_loader import LoadedCluster, load_cluster
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.fitting import Memory, memory_of
from recipe_toolkit.plan.any_site import any_site
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.recipe_loader import LoadedRecipe

if TYPE_CHECKING:
    from recipe_toolkit.sweep.load import SweptRun


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made from.

    ``memory``: a line a role, where the model and the GPU are known. ``warnings``: warnings and notes, of the
    profile too. ``swept``: which run of its file's sweep it is.
    """

    file: Path
    recipe: LoadedRecipe
    cluster: LoadedCluster
    plan: Plan
    memory: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
    swept: SweptRun | None = None

    @property
    def title(self) -> str:
        """What messages call it."""
        return str(self.file) if self.swept is None else f"{self.file} {self.swept.id}"

    @property
    def node_hours(self) -> float:
        """What it costs at most: all its nodes until its time limit."""
        return len(self.plan.nodes) * self.plan.time_limit_s / 3600


def plan_files(
    file: Path, cluster: str | None, sets: Sequence[str], *, rehearse: bool = False, strict: bool = False
) -> Planned:
    """Load a recipe, without its sweep, and a profile and plan; warnings go to stderr. ``strict``: a warning refuses.

    Raises InputError with every problem, each with its line.
    """
    site = load_cluster(cluster)
    return _told([file], site, strict, lambda _: [_planned(file, load_any(file, sets), site, rehearse)])[0]


def plan_all(
    files: Sequence[Path],
    cluster: str | None,
    sets: Sequence[str],
    *,
    rehearse: bool,
    strict: bool = False,
    only: str | None = None,
    left: Collection[str] | None = None,
) -> list[Planned]:
    """:func:`plan_files` for several recipes, and for every run of those with a sweep.

    ``only``: the variants of sweeps whose ids match; ``left``: those with these ids. Raises InputError with
    the problems of all.
    """
    site = load_cluster(cluster)

    def planned(file: Path) -> list[Planned]:
        recipe = load_any(file, sets)
        if "sweep" in recipe.document.data:
            return _plan_sweep(file, recipe, site, rehearse, only, left)
        if only is not None:
            raise InputError([Problem(str(file), 0, 0, "sweep", "has no sweep, so --only chooses nothing")])
        return [_planned(file, recipe, site, rehearse)]

    return _told(files, site, strict, planned)


def plan_sweeps(recipes: Mapping[Path, LoadedRecipe], cluster: str | None) -> list[Planned]:
    """:func:`plan_all` for recipes with sweeps that are loaded already, each under the name of a file."""
    site = load_cluster(cluster)
    files = list(recipes)
    return _told(files, site, False, lambda file: _plan_sweep(file, recipes[file], site, False, None, None))


def _told(
    files: Sequence[Path], site: LoadedCluster, strict: bool, planner: Callable[[Path], list[Planned]]
) -> list[Planned]:
    """What the planner makes of each file; says the warnings, each once, and raises the errors of all."""
    planned: list[Planned] = []
    problems: list[Problem] = []
    told: list[Problem] = list(site.warnings)
    for file in files:
        try:
            made = planner(file)
            planned += made
            # The runs of a sweep all have what is to be said of any.
            told += made[0].warnings[len(site.warnings) :]
        except InputError as error:
            problems += [problem for problem in error.problems if problem.refuses]
            told += [problem for problem in error.problems if not problem.refuses]
    if not problems and strict and any(problem.severity == "warning" for problem in told):
        raise InputError(told)
    for problem in dict.fromkeys(told):  # of a base that several files extend
        click.echo(problem.render(), err=True)
    if problems:
        raise InputError(problems)
    return planned


def judge(recipe: LoadedRecipe, site: LoadedCluster | None, *, rehearse: bool = False) -> tuple[Plan, Memory]:
    """The plan of a recipe, and what fits; the memory's problems have their places and are no errors.

    Without a profile, on any site that has the nodes. Raises InputError with every problem.
    """
    cluster = site.cluster if site else any_site(recipe.recipe)
    try:
        plan = build_plan(recipe.recipe, cluster, rehearse=rehearse)
    except InputError as error:
        # The planner knows fields; where they stand is known to the loader.
        placed = [recipe.place(item) if item.file == "recipe" else item for item in error.problems]
        raise InputError([*recipe.warnings, *placed]) from error
    if rehearse:
        return plan, Memory()
    memory = memory_of(recipe.recipe, site.cluster if site else None)
    found = [recipe.place(item) for item in memory.problems]
    if any(problem.refuses for problem in found):
        raise InputError([*recipe.warnings, *found])
    return plan, replace(memory, problems=(*found, *site_problems(recipe, site, memory)))


def plan_runs(
    loaded: LoadedRecipe,
    site: LoadedCluster | None,
    *,
    rehearse: bool = False,
    only: str | None = None,
    left: Collection[str] | None = None,
) -> tuple[list[tuple[SweptRun, Plan, Memory]], list[Problem]]:
    """The runs of a sweep with their plans, and warnings.

    Raises InputError with every problem of every variant, each once.
    """
    from recipe_toolkit.sweep.load import Findings, chosen, load_sweep

    meant = chosen(loaded, only, left)
    findings = Findings()
    runs = []
    for run in load_sweep(loaded, meant, findings):
        ids = [variant.id for variant in run.variants]
        try:
            plan, memory = judge(run.recipe, site, rehearse=rehearse)
        except InputError as error:
            findings.add(ids, (problem for problem in error.problems if problem.refuses))
            continue
        findings.add(ids, memory.problems)
        runs.append((run, plan, memory))
    problems = findings.problems(len(meant))
    if any(problem.refuses for problem in problems):
        raise InputError(problems)
    return runs, problems


def _plan_sweep(
    file: Path,
    recipe: LoadedRecipe,
    site: LoadedCluster,
    rehearse: bool,
    only: str | None,
    left: Collection[str] | None,
) -> list[Planned]:
    runs, warnings = plan_runs(recipe, site, rehearse=rehearse, only=only, left=left)
    told = (*site.warnings, *warnings)
    return [Planned(file, run.recipe, site, plan, memory.lines, told, run) for run, plan, memory in runs]


def _planned(file: Path, recipe: LoadedRecipe, site: LoadedCluster, rehearse: bool) -> Planned:
    plan, memory = judge(recipe, site, rehearse=rehearse)
    told = (*site.warnings, *recipe.warnings, *memory.problems)
    return Planned(file, recipe, site, plan, memory.lines, told)
