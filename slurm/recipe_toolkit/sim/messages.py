"""What the API server and the scheduler of a DP rank tell each other, in one process or over a link."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Submission:
    """A request for one DP rank.

    ``limit``: tokens to generate, after which it ends for ``reason`` (``length`` or ``stop``).
    ``seed``: hash of the prompt. ``hashes``: of its full blocks. ``kv``: the request's
    ``kv_transfer_params``.
    """

    id: str
    prompt_tokens: int
    limit: int
    reason: str
    seed: int
    hashes: tuple[int, ...] = ()
    kv: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Submission":
        """The inverse. Raises TypeError."""
        return cls(**{**data, "hashes": tuple(data["hashes"])})


@dataclass
class Event:
    """What one step brought one request: ``tokens`` more, and how it ended if it did.

    ``reason``: ``stop``, ``length``, ``abort`` or ``error``. ``info``: ``cached`` (prompt tokens that
    were not computed) and ``salt`` with the first token, ``kv`` (kv_transfer_params) with the last.
    """

    id: str
    tokens: int
    reason: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Batch:
    """The events of one step of DP rank ``rank``, and what happened to its figures since the last one.

    ``gauges``: running, waiting, KV usage. ``counts``: counter to increase. ``times``: histogram to
    pairs of value and how often.
    """

    rank: int
    events: list[Event]
    gauges: tuple[int, int, float]
    counts: dict[str, int]
    times: dict[str, list[tuple[float, int]]]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        events = [(event.id, event.tokens, event.reason, dict(event.info)) for event in self.events]
        return {**vars(self), "events": events}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Batch":
        """The inverse. Raises TypeError, KeyError."""
        return cls(**{**data, "events": [Event(*event) for event in data["events"]]})


Sink = Callable[[Batch], None]
