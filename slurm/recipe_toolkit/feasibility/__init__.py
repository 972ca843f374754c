"""What a recipe asks for and no cluster, vLLM or client could do; pure, told by field.

The schema says whether each field is well formed; here fields are held against each other. Facts about
vLLM are those of 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recipe_toolkit.faults import Fault, FieldPath, overlaps
from recipe_toolkit.feasibility import benchmarks, flags, layout, lint, search, serving, variables
from recipe_toolkit.recipe import Recipe

__all__ = ["check_recipe"]


def check_recipe(recipe: Recipe, untrusted: Sequence[FieldPath] = ()) -> list[Fault]:
    """Every fault of the recipe.

    ``untrusted``: fields that other checks have refused, and that the recipe holds stand-ins for;
    checks that read them are left out.
    """
    faults = list(_faults(recipe, untrusted))
    if not any(path[:1] == ("lint",) for path in untrusted):
        faults += lint.check_answers(recipe.lint, lint.RULES | lint.SITE_RULES)
    # Rules read everything: they are for a recipe that is otherwise right.
    if not untrusted and not any(fault.refuses for fault in faults):
        faults += lint.lint(recipe)
    return faults


@dataclass(frozen=True)
class _Trust:
    """Which parts of a recipe no other check has refused."""

    untrusted: Sequence[FieldPath]
    roles: tuple[str, ...]

    def all(self, *fields: FieldPath) -> bool:
        return not any(overlaps(one, other) for one in fields for other in self.untrusted)

    @property
    def set_of_roles(self) -> bool:
        """A role that is not read at all makes it doubtful; a wrong field within one does not."""
        return all(path[:1] != ("roles",) or len(path) > 2 for path in self.untrusted)

    def sizes(self, role: str) -> bool:
        return self.all(("roles", role, "parallel"), ("roles", role, "instances"))

    @property
    def every_size(self) -> bool:
        return self.set_of_roles and all(self.sizes(role) for role in self.roles)

    @property
    def args(self) -> bool:
        return self.set_of_roles and self.all(("engine", "args"), *(("roles", role, "args") for role in self.roles))


def _faults(recipe: Recipe, untrusted: Sequence[FieldPath]) -> Iterator[Fault]:
    trust = _Trust(untrusted, tuple(role.name for role in recipe.roles))
    if trust.all(("model",)):
        yield from serving.check_model(recipe.model)
    if trust.all(("engine", "image")):
        yield from serving.check_engine(recipe.engine)
    if trust.all(("resources",)):
        for role in recipe.roles:
            if trust.sizes(role.name):
                yield from layout.check_role(role, recipe.resources)
    yield from _serving_faults(recipe, trust)
    yield from _benchmark_faults(recipe, trust)
    if trust.all(("published",)):
        for index, item in enumerate(recipe.published):
            if not (item.metrics or item.accuracy):
                yield Fault(("published", index), "reports nothing", "metrics: {tpot_mean_ms: 20}, or accuracy")
    yield from variables.check_recipe(recipe)
    if trust.all(("engine", "version")):
        yield from flags.check_flags(recipe)


def _serving_faults(recipe: Recipe, trust: _Trust) -> Iterator[Fault]:
    if trust.set_of_roles:
        yield from serving.check_roles(recipe)
    if trust.every_size:
        yield from serving.check_tp(recipe)
    if trust.args and trust.all(("kv_transfer",)):
        yield from serving.check_handshake(recipe)
        yield from serving.check_blocks(recipe)
    if trust.every_size and trust.all(("kv_transfer",), ("resources", "device")):
        yield from serving.check_kv_transfer(recipe)
    if trust.every_size and trust.all(("router",)):
        yield from serving.check_router(recipe)
    if trust.all(("router",)):
        yield from flags.check_router_flags(recipe)


def _benchmark_faults(recipe: Recipe, trust: _Trust) -> Iterator[Fault]:
    for index, benchmark in enumerate(recipe.benchmarks):
        at: FieldPath = ("benchmarks", index)
        if trust.all(at):
            yield from benchmarks.check_benchmark(benchmark, at)
            if trust.all(("slo",), ("time_limit",)):
                yield from search.check_search(recipe, benchmark, at)
            if trust.all(("model",), ("engine", "kind")):
                yield from benchmarks.check_tokenizer(recipe, benchmark, at)
            if trust.all(("engine", "version")):
                yield from flags.check_client_flags(recipe, index)
            if trust.args:
                yield from benchmarks.check_lengths(recipe, benchmark, at)
    if trust.all(("benchmarks",)):
        yield from benchmarks.check_points(recipe.benchmarks)
        yield from benchmarks.check_names(recipe.benchmarks)
