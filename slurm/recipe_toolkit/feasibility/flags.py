"""Flags against the argument list of the engine's version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.recipe import Recipe


def check_flags(recipe: Recipe) -> Iterator[Fault]:
    """Unknown flags, wrong types and flags that the toolkit sets, in the engine's and in each role's args."""
    yield from _check(recipe, recipe.engine.args, ("engine", "args"))
    for role in recipe.roles:
        yield from _check(recipe, role.args, ("roles", role.name, "args"))


def _check(recipe: Recipe, args: Mapping[str, Any], at: FieldPath) -> Iterator[Fault]:
    from recipe_toolkit import vllm_args

    for problem in vllm_args.check(args, recipe.engine.version, ".".join(map(str, at))):
        yield Fault((*at, problem.key), problem.message, problem.hint)
