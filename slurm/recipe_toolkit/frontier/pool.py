"""One instance of a pool: how many requests it answers a second with so many in it, from measured points.

An instance is a station of a closed network, known by its behaviour alone ("flow-equivalent server": Chandy, Herzog
and Woo, IBM J. Res. Dev. 19(1), 1975): ``rate(n)`` requests a second with ``n`` in it. Each measured point gives a
pair by Little's law, n = rate x time in it; between two the time is taken as linear in n.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class Sample:
    """A measured point of one instance.

    ``residence_s``: mean time of a request in it; ``first_s``: of that, until its first token, where it decodes.
    ``tpot_ms`` is None for prefill. ``concurrency``: what the client held in flight, over all instances of the run.
    """

    run: str
    point: str
    concurrency: int | None
    rate: float
    residence_s: float
    first_s: float = 0.0
    tpot_ms: float | None = None

    @property
    def in_flight(self) -> float:
        """Requests in the instance on average (Little's law)."""
        return self.rate * self.residence_s


@dataclass(frozen=True)
class Pool:
    """An instance of one layout and what was measured of it.

    ``form``: ``prefill``, ``decode-bench`` (dummy KV of the real input length) or ``isl-1`` (next to no KV is read).
    ``samples``: by requests in flight, rates rising; those past the knee are in ``beyond``.
    """

    role: str
    label: str
    recipe: str
    layout: Mapping[str, Any]
    gpus: int
    form: str
    samples: tuple[Sample, ...]
    beyond: tuple[Sample, ...] = ()

    @property
    def peak(self) -> float:
        """The highest rate that was measured, requests/s."""
        return self.samples[-1].rate

    def in_flight(self, rate: float) -> float:
        """Requests in the instance at a rate, which is at most the peak."""
        low, high = self._around(rate, "rate")
        if low is None:
            return rate * high.residence_s
        # Residence is linear in n, a + b n, so that n = rate x (a + b n).
        slope = (high.residence_s - low.residence_s) / (high.in_flight - low.in_flight)
        start = low.residence_s - slope * low.in_flight
        found = rate * start / max(1 - rate * slope, 1e-9)
        # Where the rate hardly grows any more, the quotient is of two numbers next to nothing.
        return min(max(found, low.in_flight), high.in_flight)

    def rate(self, in_flight: float) -> float:
        """Requests a second with so many in it; the peak where there are more than were measured."""
        if in_flight >= self.samples[-1].in_flight:
            return self.peak
        return in_flight / self.residence_s(in_flight)

    def residence_s(self, in_flight: float) -> float:
        """Mean time of a request in it with so many there, s."""
        return self._mean(in_flight, "residence_s")

    def first_s(self, in_flight: float) -> float:
        """Time from the arrival in a decode instance to its first token, s."""
        return self._mean(in_flight, "first_s")

    def tpot_ms(self, in_flight: float) -> float:
        """Mean TPOT with so many in a decode instance, ms."""
        return self._mean(in_flight, "tpot_ms")

    def _around(self, value: float, key: str) -> tuple[Sample | None, Sample]:
        low = None
        for sample in self.samples:
            if value <= getattr(sample, key):
                return low, sample
            low = sample
        return (self.samples[-2] if len(self.samples) > 1 else None), self.samples[-1]

    def _mean(self, in_flight: float, key: str) -> float:
        low, high = self._around(in_flight, "in_flight")
        top: float = getattr(high, key)
        if low is None or in_flight >= high.in_flight:
            return top
        bottom: float = getattr(low, key)
        return bottom + (top - bottom) * (in_flight - low.in_flight) / (high.in_flight - low.in_flight)


def rising(samples: Iterable[Sample]) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Samples by requests in flight, as far as more of them give a higher rate; and the others.

    Several of one load, as repeats are, become their mean.
    """
    loads: dict[Any, list[Sample]] = {}
    for item in samples:
        loads.setdefault(item.concurrency if item.concurrency is not None else item.point, []).append(item)
    kept: list[Sample] = []
    beyond: list[Sample] = []
    for sample in sorted((_mean_of(items) for items in loads.values()), key=lambda item: item.in_flight):
        grows = not kept or (sample.rate > kept[-1].rate and sample.in_flight > kept[-1].in_flight)
        (kept if grows else beyond).append(sample)
    return tuple(kept), tuple(beyond)


def spread(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Samples of decode alone as they would be if requests came one by one, as they do behind prefill.

    In a closed loop of decode alone all users begin at once, end at once and so come again at once: their first tokens
    wait for each other's prompts. What one prompt takes is known from the lowest load. With more in the instance it
    also waits for the step that runs, at most a whole one, and its own step is as much longer as TPOT is. The requests
    in the instance stay as many.
    """
    least = samples[0]
    return (least, *(_come_apart(sample, least) for sample in samples[1:]))


def _come_apart(sample: Sample, least: Sample) -> Sample:
    step_s, alone_s = (sample.tpot_ms or 0.0) / 1000, (least.tpot_ms or 0.0) / 1000
    first = min(sample.first_s, least.first_s + step_s - alone_s + step_s)
    residence = sample.residence_s - sample.first_s + first
    rate = sample.rate * sample.residence_s / residence
    return replace(sample, first_s=first, residence_s=residence, rate=rate)


def _mean_of(items: Sequence[Sample]) -> Sample:
    if len(items) == 1:
        return items[0]

    def mean(key: str) -> float:
        return float(sum(getattr(item, key) for item in items) / len(items))

    last = items[-1]
    tpot = None if last.tpot_ms is None else mean("tpot_ms")
    runs = ", ".join(dict.fromkeys(item.run for item in items))
    return Sample(runs, last.point, last.concurrency, mean("rate"), mean("residence_s"), mean("first_s"), tpot)
