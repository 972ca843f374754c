"""What the rules of the lint say of a recipe where it is to run."""

from __future__ import annotations

from recipe_toolkit.cluster_loader import LoadedCluster
from recipe_toolkit.errors import Problem
from recipe_toolkit.feasibility.lint import Setting, lint_site
from recipe_toolkit.fitting import Memory
from recipe_toolkit.recipe_loader import LoadedRecipe


def site_problems(recipe: LoadedRecipe, site: LoadedCluster | None, memory: Memory) -> list[Problem]:
    """Warnings and notes, each with its place in the recipe or in the profile."""
    problems = []
    for told in lint_site(Setting(recipe.recipe, site.cluster if site else None, memory.reads)):
        document = site.document if told.profile and site else recipe.document
        problems.append(document.problem(told.fault))
    return sorted(problems)
