"""Prefill and decode of models with a state (Mamba, GDN, KDA): what each hands over, the other must take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from recipe_toolkit.faults import Fault, shown
from recipe_toolkit.feasibility.lint.load import speculative_tokens
from recipe_toolkit.feasibility.lint.registry import rule
from recipe_toolkit.feasibility.serving import effective_args, where_set
from recipe_toolkit.recipe import Recipe, Role

_HYBRID = re.compile(r"mamba-|gdn-|kda-|replayssm|use-replayssm")
_LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT"


def hybrid_pair(recipe: Recipe) -> tuple[Role, Role] | None:
    """Prefill and decode, where flags or variables tell of a model with a state."""
    roles = {role.name: role for role in recipe.roles}
    if roles.keys() < {"prefill", "decode"} or len(roles) < 2:
        return None
    pair = roles["prefill"], roles["decode"]
    flagged = any(_HYBRID.match(flag) for role in pair for flag in effective_args(recipe, role))
    return pair if flagged or any(_LAYOUT in {**recipe.engine.env, **role.env} for role in pair) else None


@rule(
    "speculation-differs-on-hybrid",
    "warning",
    "prefill and decode of a hybrid model (Mamba, GDN, KDA) guess different numbers of tokens ahead",
    "The state that prefill hands over is as wide as its guesses are long: decode cannot take it.",
    do="`speculative-config: {method: mtp, num_speculative_tokens: 3}` in `engine.args`, for both.",
)
def speculation_differs(recipe: Recipe) -> Iterator[Fault]:
    """The width of the convolution state on both sides (vLLM's mamba_utils: kernel - 1 + speculative tokens)."""
    pair = hybrid_pair(recipe)
    if pair is None:
        return
    one, other = (speculative_tokens(effective_args(recipe, role)) for role in pair)
    if one != other:
        yield Fault(
            where_set(recipe, pair[1] if other else pair[0], "speculative-config"),
            f"prefill guesses {one} tokens ahead and decode {other}, on a model with a state",
            "the same speculative-config on both sides",
            key=True,
        )


@rule(
    "state-differs-on-hybrid",
    "warning",
    "prefill and decode of a hybrid model keep their states in different types or layouts",
    "NIXL's handshake does not compare them: bytes of one kind are read as another, or the sizes do not fit.",
    do="`mamba-ssm-cache-dtype: bfloat16` in `engine.args`, `VLLM_SSM_CONV_STATE_LAYOUT: DS` in `engine.env`.",
)
def state_differs(recipe: Recipe) -> Iterator[Fault]:
    """The types of the states, and how vLLM lays out the convolution's (VLLM_SSM_CONV_STATE_LAYOUT)."""
    pair = hybrid_pair(recipe)
    if pair is None:
        return
    sides = [effective_args(recipe, role) for role in pair]
    for flag in ("mamba-ssm-cache-dtype", "mamba-cache-dtype"):
        one, other = (side.get(flag, "auto") for side in sides)
        if one != other:
            role = pair[1] if flag in sides[1] else pair[0]
            at = where_set(recipe, role, flag)
            yield Fault(at, _differ(flag, one, other), f"write {flag} once, in engine.args", key=True)
    one, other = ({**recipe.engine.env, **role.env}.get(_LAYOUT) for role in pair)
    if one != other:
        role = next((role for role in pair[::-1] if _LAYOUT in role.env), pair[1])
        hint = f"write {_LAYOUT} once, in engine.env"
        yield Fault(("roles", role.name, "env", _LAYOUT), _differ(_LAYOUT, one, other), hint, key=True)


def _differ(name: str, one: Any, other: Any) -> str:
    said = ["unset" if value is None else shown(value) for value in (one, other)]
    return f"prefill has {name} {said[0]}, decode {said[1]}"
