"""Flags against the argument list of the engine's version."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_toolkit import vllm_args
from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.recipe import Recipe


def check_flags(recipe: Recipe) -> Iterator[Fault]:
    """Unknown flags, wrong values and flags that the toolkit sets, in the engine's and in each role's args."""
    version = recipe.engine.version
    unknown = vllm_args.unknown_version(version)
    if unknown:
        yield Fault(("engine", "version"), unknown.message, unknown.hint, warning=True)
    places: list[FieldPath] = [("engine", "args"), *(("roles", role.name, "args") for role in recipe.roles)]
    for at, args in zip(places, [recipe.engine.args, *(role.args for role in recipe.roles)], strict=True):
        for problem in vllm_args.check(args, version, ".".join(map(str, at))):
            yield Fault((*at, problem.key), problem.message, problem.hint, key=True, warning=problem.warning)
