"""The answers for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe_toolkit.capacity.advice import Change, Layout
from recipe_toolkit.capacity.assess import Capacity, Check, bound


def role_json(found: Capacity, changes: Sequence[Change], checks: Sequence[Check]) -> dict[str, Any]:
    """One role; sizes in bytes, ranges as [low, high]."""
    parallel, left = found.role.parallel, found.budget
    return {
        "role": found.role.name,
        "instances": found.role.instances,
        "parallel": vars(parallel),
        "model": found.model.name,
        "gpu": None if found.gpu is None else {"name": found.gpu.name, "bytes": found.gpu.total},
        "loads": found.loads,
        "weights_bytes": round(found.weights.local),
        "model_bytes": round(found.weights.whole),
        "kv_bytes": [round(min(left.low)), round(min(left.high))],
        "kv_block_tokens": max(group.cache.block for group in found.pool.groups),
        "kv_block_bytes": max(found.pool.block_bytes),
        "kv_blocks": list(found.blocks),
        "kv_tokens": list(found.tokens),
        "requests": [
            {
                "what": fit.what,
                "tokens": fit.length,
                "bytes": found.pool.request_bytes(fit.length),
                "blocks": found.pool.request_blocks(fit.length),
                "per_rank": [fit.low, fit.high],
                "all_ranks": [fit.low * found.ranks, fit.high * found.ranks],
                "bound_by": bound(found, fit),
            }
            for fit in found.fits
        ],
        "checks": [{"verdict": item.verdict, "text": item.text} for item in (*found.checks, *checks)],
        "assumed": list(found.settings.assumed),
        "left_out": list(found.settings.omitted),
        "would_raise": [{"change": item.what, "requests": [item.low, item.high]} for item in changes],
        "ledger": [
            {"chapter": title, "lines": [line.to_json() for line in chapter]} for title, chapter in found.lines()
        ],
    }


def layout_json(layout: Layout, length: int) -> dict[str, Any]:
    """One layout of ``--topologies``."""
    head: dict[str, Any] = {"layout": layout.name, "parallel": vars(layout.parallel), "impossible": layout.why}
    found = layout.capacity
    if found is None:
        return head
    fit = next(item for item in found.fits if item.length == length)
    ranks = layout.parallel.dp
    return {
        **head,
        "loads": found.loads,
        "weights_bytes": round(found.weights.local),
        "kv_bytes": [round(min(found.budget.low)), round(min(found.budget.high))],
        "request_bytes": found.pool.request_bytes(length),
        "per_rank": [fit.low, fit.high],
        "all_ranks": [fit.low * ranks, fit.high * ranks],
    }
