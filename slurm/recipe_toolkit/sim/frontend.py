"""The API server's side of the DP ranks: which rank takes a request, and who gets a rank's events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from recipe_toolkit.sim.messages import Batch, Event, Submission
from recipe_toolkit.sim.metrics import Metrics


class EngineDead(Exception):
    """A part of the engine is gone, and vLLM would end over it."""


class Rank(Protocol):
    """Where a DP rank's scheduler is reached, here or over a link."""

    def submit(self, request: Submission) -> None:
        """Queue a request."""

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more."""


class Frontend:
    """Balances over its DP ranks: the one with the fewest open requests, in turn where they are equal."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._ranks: dict[int, Rank] = {}
        self._open: dict[str, tuple[int, Callable[[Event], None]]] = {}
        self._load: dict[int, int] = {}
        self._next = 0
        self._broken: set[int] = set()

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def add(self, ranks: Mapping[int, Rank]) -> None:
        """Serve further DP ranks."""
        self._ranks |= ranks
        self._load |= dict.fromkeys(ranks, 0)

    def break_ranks(self, ranks: tuple[int, ...]) -> None:
        """Workers of these ranks are lost: the next request to one of them ends the engine."""
        self._broken |= set(ranks)

    def choose(self, wanted: str | None) -> int:
        """The DP rank for a request; ``wanted`` is its X-data-parallel-rank, ignored if not a number.

        The header counts the ranks of this API server, so in hybrid mode from 0 in every process
        (vllm/v1/engine/input_processor.py of 0.32). Raises ValueError if there is no such rank.
        """
        ranks = sorted(self._ranks)
        if wanted is not None and wanted.lstrip("-").isdigit():
            if not 0 <= int(wanted) < len(ranks):
                raise ValueError(f"data_parallel_rank {wanted} is out of range [0, {len(ranks)}).")
            return ranks[int(wanted)]
        turn = ranks[self._next % len(ranks) :] + ranks[: self._next % len(ranks)]
        self._next += 1
        return min(turn, key=self._load.__getitem__)

    def submit(self, rank: int, request: Submission, on_event: Callable[[Event], None]) -> None:
        """Hand a request to a rank. Raises EngineDead."""
        if rank in self._broken:
            raise EngineDead(f"DP rank {rank} has lost workers")
        self._open[request.id] = (rank, on_event)
        self._load[rank] += 1
        self._ranks[rank].submit(request)

    def abort(self, request_id: str) -> None:
        """End a request whose client has gone."""
        if request_id in self._open:
            rank, _ = self._close(request_id)
            self._ranks[rank].abort(request_id)

    def absorb(self, batch: Batch) -> None:
        """Take in a step of a rank."""
        self.metrics.absorb(batch)
        for event in batch.events:
            if event.id not in self._open:
                continue
            _, on_event = self._close(event.id) if event.reason else self._open[event.id]
            on_event(event)

    def _close(self, request_id: str) -> tuple[int, Callable[[Event], None]]:
        rank, on_event = self._open.pop(request_id)
        self._load[rank] -= 1
        return rank, on_event
