"""What the client took of its node while it measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from recipe_toolkit.results.model import ClientLoad


@dataclass(frozen=True)
class Sample:
    """An interval that ended at ``t`` (seconds since 1970, of the client's node).

    ``cores``: of all threads; ``busiest``: share of a core of the busiest one; ``waiting``: share of the interval in
    which that thread could have run and got no core (None where the kernel does not say).
    """

    t: float
    cores: float
    busiest: float
    waiting: float | None = None


def client_load(samples: Sequence[Sample], began: float | None, ended: float | None) -> ClientLoad | None:
    """The means of the samples that lie within the time of the requests; None where there is none.

    ``began``, ``ended``: of the first request and the last answer, on the clock of the samples.
    """
    if began is None or ended is None:
        return None
    # A sample is of the second before it.
    inside = [item for item in samples if began + 1 <= item.t <= ended]
    if not inside:
        return None
    waits = [item.waiting for item in inside if item.waiting is not None]
    return ClientLoad(
        samples=len(inside),
        cores=fmean(item.cores for item in inside),
        busiest_thread_ratio=fmean(item.busiest for item in inside),
        waiting_ratio=fmean(waits) if waits else None,
    )
