"""A rehearsal: a recipe's own plan, carried out with the simulated engine in place of vLLM.

Nodes, instances, ports, router, clients, proof and deadlines are the recipe's. The engines read neither model
nor tokenizer and run in no image; clients that are vLLM's own still run where vLLM does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_toolkit import sim_options
from recipe_toolkit.feasibility.benchmarks import human_integer
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.plan.vllm import effective_args
from recipe_toolkit.recipe import Recipe, Role

_KV = "kv_cache_tokens"


def rehearsed(recipe: Recipe) -> Recipe:
    """The recipe on the simulated engine; ``engine.sim`` and the roles' ``sim`` say how that behaves.

    The tokenizer is the simulated engine's: lengths are counted as it counts them.
    """
    return replace(
        recipe,
        model=replace(recipe.model, tokenizer=None),
        engine=replace(recipe.engine, kind="sim"),
        roles=tuple(replace(role, sim={**_room(recipe, role), **role.sim}) for role in recipe.roles),
    )


def _room(recipe: Recipe, role: Role) -> dict[str, Any]:
    """A KV cache for two of the longest requests, where the simulated engine's default would refuse one."""
    limit = human_integer(effective_args(recipe, role).get("max-model-len")) or 0
    longest = max([limit, *((item.isl or 0) + (item.osl or 0) for item in recipe.benchmarks)])
    if _KV in recipe.engine.sim or longest <= sim_options.KEYS[_KV].default:
        return {}
    return {_KV: 2 * longest}


def notice(plan: Plan) -> str:
    """What a person must know before the run: one line."""
    nodes = "1 node" if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes"
    skipped = "; the setup steps are skipped" if plan.setup else ""
    return (
        f"rehearsal: the simulated engine in place of vLLM {plan.engine_version}, "
        f"{nodes} without GPUs{skipped}; no figure will be a measurement"
    )
