"""Whether the KV caches of prefill and decode can be handed over by NIXL, as far as memory decides it."""

from __future__ import annotations

from recipe_toolkit.capacity.architecture import Linear, Mamba2
from recipe_toolkit.capacity.assess import Capacity, Check
from recipe_toolkit.capacity.kv_layers import align, state_bytes
from recipe_toolkit.capacity.settings import series
from recipe_toolkit.recipe import Recipe

# Blocks of different sizes for models with states: refused by 0.26, taken by 0.32 (vLLM's pull request 49612).
_REFUSED, _TAKEN = (0, 26), (0, 32)


def check_handshake(recipe: Recipe, prefill: Capacity, decode: Capacity) -> list[Check]:
    """What is to be said of the pair; empty where KV does not move by NIXL or the model has no states."""
    if recipe.kv_transfer is None or recipe.kv_transfer.connector != "nixl":
        return []
    one, other = (align(side.model, side.settings.kv) for side in (prefill, decode))
    if one is None or other is None:
        return []
    drafts = prefill.settings.kv.drafts, decode.settings.kv.drafts
    if drafts[0] != drafts[1]:
        sizes = [_conv(side) for side in (prefill, decode)]
        text = (
            f"prefill has {drafts[0]} speculative tokens, decode {drafts[1]}: the convolution state that is handed "
            f"over has {sizes[0]:,} and {sizes[1]:,} bytes of a whole layer"
        )
        return [Check("bad", f"{text}; num_speculative_tokens must be the same on both sides")]
    if one.block == other.block:
        return [Check("ok", f"NIXL: blocks of {one.block:,} tokens on both sides")]
    text = f"NIXL: blocks of {one.block:,} tokens on prefill, {other.block:,} on decode"
    common = max(one.block, other.block)
    hint = f"block-size: {common} in engine.args gives both the larger"
    version = series(recipe.engine.version)
    if version is None or _REFUSED < version < _TAKEN:
        return [Check("doubtful", f"{text}: vLLM 0.26 refuses the handshake, 0.32 takes it; {hint}")]
    if version <= _REFUSED:
        return [Check("bad", f"{text}: vLLM {recipe.engine.version} refuses the handshake; {hint}")]
    if other.block % one.block:
        return [Check("bad", f"{text}: a block of decode must hold whole ones of prefill; {hint}")]
    return [Check("ok", f"{text}: each holds whole ones")]


def _conv(side: Capacity) -> int:
    for layer in side.model.layers:
        if isinstance(layer.mixer, (Linear, Mamba2)):
            return state_bytes(layer.mixer, side.settings.kv, side.model)[0] * side.settings.kv.tp
    return 0
