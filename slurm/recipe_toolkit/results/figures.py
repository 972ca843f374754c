"""What a client measured, before it is put beside the plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from recipe_toolkit.results.model import Length, Requests, Score, Stat
from recipe_toolkit.results.records import Request


@dataclass(frozen=True)
class Figures:
    """One client's figures, in the names and units of :class:`recipe_toolkit.results.model.PointResult`.

    ``isl`` and ``osl`` and ``requests`` hold what was seen; the plan adds what was wanted.
    ``faults``: what is wrong with the files or with what they say of the run; ``notes``: what is
    worth knowing. ``raw``: the requests that were answered, one by one, where the files have them; ``warmup``: how many
    came before. ``began``: when the first was sent, seconds since 1970, where the files say it.
    """

    version: str | None = None
    endpoint: str | None = None
    isl: Length = field(default_factory=Length)
    osl: Length = field(default_factory=Length)
    requests: Requests = field(default_factory=Requests)
    duration_s: float | None = None
    ttft_ms: Stat | None = None
    tpot_ms: Stat | None = None
    itl_ms: Stat | None = None
    e2e_ms: Stat | None = None
    requests_per_s: float | None = None
    input_tps: float | None = None
    output_tps: float | None = None
    total_tps: float | None = None
    per_user_tps: float | None = None
    goodput_rps: float | None = None
    good_request_ratio: float | None = None
    accuracy: tuple[Score, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    raw: tuple[Request, ...] = ()
    warmup: int | None = None
    began: float | None = None
