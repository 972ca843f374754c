"""What a client takes of its node while it measures, as the lead asks its agent."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.results.client_load import Sample
from recipe_toolkit.run.fleet import Fleet, ProcessView

INTERVAL_S = 1.0
# AIPerf's processes that send requests, by their titles; its timing_manager spins by design, whatever the load.
SENDERS = {"aiperf": r"aiperf worker_[0-9a-f]+"}
_CALL_S = 10.0

log = logging.getLogger("recipe_toolkit.run")


class ClientWatch:
    """Samples a client once a second, until it is cancelled; a node that cannot say is no fault of the point."""

    def __init__(self, fleet: Fleet, view: ProcessView, client: str) -> None:
        self._fleet = fleet
        self._view = view
        self._senders = SENDERS.get(client, "")
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Sample until cancelled, or until the program's agent does not answer."""
        while True:
            try:
                said: dict[str, Any] = await self._fleet.call(
                    self._view.node, "load", _CALL_S, name=self._view.name, only=self._senders
                )
            except RunError as error:
                log.warning("%s: what it takes of its node is not known: %s", self._view.name, error.message)
                return
            taken = said.get("taken")
            if taken:
                self.samples.append(Sample(t=float(said["t"]), **taken))
            await asyncio.sleep(INTERVAL_S)
