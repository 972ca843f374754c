"""How KV moves between instances: what the scheduler asks of a connector, and which one is configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from recipe_toolkit.sim.messages import Submission


@dataclass(frozen=True)
class Pull:
    """A transfer to make: ``tokens`` prompt tokens beyond those cached here; ``source``: the connector's own."""

    tokens: int
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pulled:
    """How a transfer ended. ``salt``: 0 if the KV was of this very prompt. ``times``: histogram to value."""

    tokens: int = 0
    salt: int = 0
    failed: bool = False
    times: Mapping[str, float] = field(default_factory=dict)


class Ledger(Protocol):
    """What a connector needs of its scheduler."""

    def count(self, name: str, increase: int = 1) -> None:
        """Add to a counter."""

    def give_back(self, blocks: int) -> None:
        """Free blocks that were held for a decode side."""


class Transfer(Protocol):
    """A KV connector of one DP rank."""

    recompute: bool
    """Whether a prompt whose transfer failed is prefilled here (``kv_load_failure_policy``)."""

    async def open(self, ledger: Ledger) -> None:
        """Start serving the other side. Raises OSError if the address cannot be had."""

    def close(self) -> None:
        """Stop serving."""

    def plan(self, request: Submission, cached: int) -> Pull | None:
        """The transfer that a request needs, if any."""

    async def pull(self, request: Submission, pull: Pull) -> Pulled:
        """Make the transfer; a failure is in the result."""

    def computed(self, request: Submission) -> None:
        """A prompt's KV is complete here."""

    def hold(self, request: Submission, blocks: int) -> dict[str, Any] | None:
        """Keep a finished request's blocks for a decode side: its ``kv_transfer_params``, or None to free them."""

    def forget(self, request: Submission) -> None:
        """A request ended before its transfer: let the other side free what it holds."""


def policy(config: Mapping[str, Any]) -> bool:
    """Whether the configuration says to recompute. Raises ValueError for a policy that vLLM does not know."""
    value = config.get("kv_load_failure_policy", "fail")
    if value not in ("fail", "recompute"):
        raise ValueError(f"kv_load_failure_policy must be 'fail' or 'recompute', not {value!r}")
    return bool(value == "recompute")
