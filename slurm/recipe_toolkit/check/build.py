"""What a probe is asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recipe_toolkit.check.model import Check
from recipe_toolkit.plan.expect import MANIFEST, Expect


def request(expect: Expect, checks: Iterable[Check], *, deep: bool = False) -> dict[str, Any]:
    """The request that tells a probe what the checks need, in one answer; pings come after it."""
    made = [check for check in checks if check.applies(expect) and check.id not in expect.skip]
    return {
        "sections": sorted({section for check in made for section in check.sections}),
        "hcas": list(expect.hcas),
        "images": [dict(image) for image in expect.images],
        "vllm": {key: expect.vllm[key] for key in ("head", "remove", "env")} if expect.vllm else None,
        "model": expect.model or "",
        "manifest": MANIFEST,
        "disk": sorted(expect.disk),
        "deep": deep,
    }


def ping_request(pings: list[dict[str, object]]) -> dict[str, Any]:
    """The second request, to a node that has other nodes to reach."""
    return {"sections": ["pings"], "pings": pings}
