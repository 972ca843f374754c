"""The decode benchmark connector: the KV of every prompt but its last token is there at once, as if prefilled."""

from __future__ import annotations

from typing import Any

from recipe_toolkit.sim.messages import Submission
from recipe_toolkit.sim.transfer import Ledger, Pull, Pulled


class DummyKv:
    """One DP rank's supply of dummy KV."""

    recompute = False

    async def open(self, ledger: Ledger) -> None:
        """Nothing to serve."""

    def close(self) -> None:
        """Nothing to stop."""

    def plan(self, request: Submission, cached: int) -> Pull | None:
        """All that is not cached, save the last token, whose output is wanted."""
        tokens = request.prompt_tokens - 1 - cached
        return Pull(tokens) if tokens > 0 else None

    async def pull(self, request: Submission, pull: Pull) -> Pulled:
        """Filled without a wait: it costs a memory write."""
        return Pulled(pull.tokens)

    def computed(self, request: Submission) -> None:
        """Nothing is kept."""

    def hold(self, request: Submission, blocks: int) -> dict[str, Any] | None:
        """Nobody takes it over."""
        return None

    def forget(self, request: Submission) -> None:
        """Nothing to free."""
