"""The steady window of a point: its requests without the first burst and without the end that runs dry.

With N requests in flight the client sends N at once, so that 1/k of the TTFTs of k * N requests are the wait in that
one burst of prefills; and after the last request was sent fewer and fewer are in flight. The window is from the moment
when every request of the burst has its first token, to the moment when the last request is sent. At a request rate
nothing is sent at once: it begins when the first answer has ended.

Latencies are of the requests that were sent in the window. Rates are of the tokens that came in it: a prompt counts
when its first token comes, and so does that token; the others come evenly from there to the end of their answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from recipe_toolkit.results.model import PerUser, Window
from recipe_toolkit.results.records import Request, stat


def steady(requests: Sequence[Request], in_flight: int | None) -> Window | None:
    """The window's figures; None where too little is left of the point: fewer requests than are in flight, or two.

    ``in_flight``: the point's concurrency, None at a rate.
    """
    if len(requests) < 3:
        return None
    ordered = sorted(requests, key=lambda item: item.sent)
    zero = ordered[0].sent
    begin = max(item.first for item in ordered[:in_flight]) if in_flight else min(item.last for item in ordered)
    end = ordered[-1].sent
    inside = [item for item in ordered if begin <= item.sent <= end]
    if end <= begin or len(inside) < max(in_flight or 0, 2):
        return None
    length = end - begin
    output = math.fsum(_output(item, begin, end) for item in ordered)
    prompts = math.fsum(item.isl for item in ordered if begin <= item.first < end)
    tpots = [(item.last - item.first) * 1000 / (item.osl - 1) for item in inside if item.osl > 1]
    speeds = [1000 / value for value in tpots if value > 0]
    tpot = stat(tpots)
    return Window(
        from_s=begin - zero,
        to_s=end - zero,
        requests=len(inside),
        ttft_ms=stat([(item.first - item.sent) * 1000 for item in inside]),
        tpot_ms=tpot,
        e2e_ms=stat([(item.last - item.sent) * 1000 for item in inside]),
        output_tps=output / length,
        total_tps=(output + prompts) / length,
        output_tps_per_user=PerUser(
            1000 / tpot.p50 if tpot and tpot.p50 else None,
            math.fsum(speeds) / len(speeds) if speeds else None,
        ),
    )


def _output(item: Request, begin: float, end: float) -> float:
    """The tokens of an answer that came from ``begin`` to ``end``."""
    first = 1.0 if begin <= item.first < end else 0.0
    span = item.last - item.first
    if span <= 0 or item.osl <= 1:
        return first * item.osl
    overlap = max(0.0, min(item.last, end) - max(item.first, begin))
    return first + (item.osl - 1) * overlap / span
