"""Prefill and decode instances under a constant number of users: the formula of docs/frontier.md.

With C requests in flight and X answered a second, each request is in the prefill pool, in transfer or in the decode
pool, so C = nP NP(X / nP) + X T + nD ND(X / nD / f), where NP and ND are an instance's requests in flight at a rate
(:mod:`recipe_toolkit.frontier.pool`), T is the time of the KV transfer and f the share of its time in which a decode
instance takes steps, since it takes none while it posts a transfer. The right side grows with X: one X fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recipe_toolkit.frontier.pool import DECODE, PREFILL, Pool

_STEPS = 60
_ROUNDS = 3


@dataclass(frozen=True)
class Split:
    """``nP`` instances of a prefill pool and ``nD`` of a decode pool.

    ``transfer_s``: of the KV of one request. ``post_s``: of that, while it is posted, the engine takes no decode step.
    """

    prefill: Pool
    prefills: int
    decode: Pool
    decodes: int
    transfer_s: float = 0.0
    post_s: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs of all instances."""
        return self.prefills * self.prefill.gpus + self.decodes * self.decode.gpus

    @property
    def supply(self) -> float:
        """What the prefill pool can answer at most, requests/s."""
        return self.prefills * self.prefill.peak

    @property
    def demand(self) -> float:
        """What the decode pool can answer at most, requests/s."""
        return self.decodes * self.shared(self.decode.peak)

    @property
    def _holds_s(self) -> float:
        """Of one transfer, the share of an instance's steps that wait for its post, s.

        Ranks of data parallelism go in step where they share experts; elsewhere the others go on.
        """
        layout = self.decode.layout
        return self.post_s / (1 if layout.get("ep") else layout.get("dp", 1))

    def shared(self, rate: float) -> float:
        """Requests/s of a decode instance that, if it posted no transfers, would answer ``rate``."""
        return rate / (1 + rate * self._holds_s)

    def free(self, rate: float) -> float:
        """Share of its time in which a decode instance takes steps, at so many requests/s."""
        return max(1 - rate * self._holds_s, 1e-9)

    @property
    def peak(self) -> float:
        """What the poorer of the two lets through, requests/s."""
        return min(self.supply, self.demand)

    @property
    def limits(self) -> str:
        """The pool whose peak is lower."""
        return PREFILL if self.supply <= self.demand else DECODE

    @property
    def waste(self) -> float:
        """Share of the GPUs that have nothing to do while the poorer pool is at its peak."""
        idle = self.prefills * self.prefill.gpus * (1 - self.peak / self.supply)
        idle += self.decodes * self.decode.gpus * (1 - self.peak / self.demand)
        return idle / self.gpus


@dataclass(frozen=True)
class State:
    """What a split does under a load. Requests in flight: in prefill, in transfer, in decode."""

    split: Split
    rate: float
    in_prefill: float
    in_transfer: float
    in_decode: float

    @property
    def in_flight(self) -> float:
        """Requests in flight: the client's concurrency."""
        return self.in_prefill + self.in_transfer + self.in_decode

    @property
    def _each(self) -> float:
        return self.in_decode / self.split.decodes

    @property
    def _free(self) -> float:
        return self.split.free(self.rate / self.split.decodes)

    @property
    def tpot_ms(self) -> float:
        """Mean TPOT, ms."""
        return self.split.decode.tpot_ms(self._each) / self._free

    @property
    def first_s(self) -> float:
        """From the arrival in decode to the first token that the client sees, s."""
        return self.split.decode.first_s(self._each) / self._free

    @property
    def prefill_s(self) -> float:
        """Time in the prefill pool with the wait for it, s."""
        return self.in_prefill / self.rate

    @property
    def ttft_s(self) -> float:
        """Mean TTFT, s: prefill with its queue, transfer, the decode side's first step."""
        return self.prefill_s + self.split.transfer_s + self.first_s

    @property
    def decode_s(self) -> float:
        """Time in the decode pool, s."""
        return self.in_decode / self.rate

    @property
    def e2e_s(self) -> float:
        """Mean time from the request to its last token, s (Little's law)."""
        return self.in_flight / self.rate


def at_rate(split: Split, rate: float) -> State:
    """The state at so many requests/s. Raises ValueError above the split's peak."""
    if not 0 < rate <= split.peak * (1 + 1e-9):
        raise ValueError(f"{rate:g} requests/s are more than {split.peak:g}")
    each = rate / split.decodes
    decode = split.decodes * split.decode.in_flight(min(each / split.free(each), split.decode.peak))
    prefill = split.prefills * split.prefill.in_flight(min(rate / split.prefills, split.prefill.peak))
    return State(split, rate, prefill, rate * split.transfer_s, decode)


def at_concurrency(split: Split, concurrency: float) -> State | None:
    """The state with so many requests in flight; None where decode would hold a whole one more than was measured of it.

    Users are whole, and a peak may be at a part of one: less than one more is taken as that peak.

    What prefill cannot take waits in front of it.
    """
    top = at_rate(split, split.peak)
    if concurrency >= top.in_flight:
        if split.limits == DECODE:
            over = concurrency - top.in_flight
            return None if over >= 1 else replace(top, in_decode=top.in_decode + over)
        waiting = concurrency - top.in_transfer - top.in_decode
        return State(split, split.peak, waiting, top.in_transfer, top.in_decode)
    low, high = 0.0, split.peak
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if at_rate(split, middle).in_flight < concurrency:
            low = middle
        else:
            high = middle
    return _between(at_rate(split, low) if low else None, at_rate(split, high), concurrency)


def _between(low: State | None, high: State, concurrency: float) -> State:
    """The state with just so many in flight: where a pool's rate hardly grows, next to the same rate has many."""
    spread = high.in_flight - (low.in_flight if low else 0.0)
    share = (concurrency - (low.in_flight if low else 0.0)) / spread if spread > 0 else 1.0

    def mix(key: str) -> float:
        bottom: float = getattr(low, key) if low else 0.0
        top: float = getattr(high, key)
        return bottom + (top - bottom) * share

    return State(high.split, mix("rate"), mix("in_prefill"), mix("in_transfer"), mix("in_decode"))


@dataclass(frozen=True)
class Figures:
    """Means of a load: of a long run, or of one with a start and an end."""

    requests_per_s: float
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float


def steady(state: State) -> Figures:
    """Of a run so long that its start and end do not count."""
    return Figures(state.rate, state.ttft_s * 1000, state.tpot_ms, state.e2e_s * 1000)


def of_requests(state: State, requests: int) -> Figures:
    """Of a run of so many requests, whose client begins with all users at once.

    The first request of each user finds those before it in the prefill pool: C / nP at one instance, which take
    1 / (its peak) each. That wait is in the mean TTFT of every closed loop, and in the run's duration. And the decode
    pool is less full while the run begins and ends, so that its steps are shorter: its requests are taken as so many
    fewer as the run's rate is lower than the steady one.
    """
    split, users = state.split, state.in_flight
    rounds = requests / users
    if rounds <= 1:
        return steady(state)
    service = 1 / split.prefill.peak
    burst = max(0.0, users / split.prefills - 1) * service
    share = 1.0
    for _ in range(_ROUNDS):
        each = state.in_decode / split.decodes * share
        free = split.free(state.rate / split.decodes * share)
        stay = split.transfer_s + split.decode.residence_s(each) / free
        rate = _rate_beside(split, users, stay)
        duration = requests / rate + min(burst, stay)
        share = min(1.0, requests / duration / state.rate)
    prefill = users / rate - stay
    first = split.prefill.samples[0].residence_s + burst / 2
    prefill += (first - prefill) / rounds
    ttft = prefill + split.transfer_s + split.decode.first_s(each) / free
    return Figures(requests / duration, ttft * 1000, split.decode.tpot_ms(each) / free, (prefill + stay) * 1000)


def _rate_beside(split: Split, users: float, stay: float) -> float:
    """Requests/s of so many users who spend ``stay`` seconds beside the prefill pool each time."""
    low, high = 0.0, split.peak
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if split.prefills * split.prefill.in_flight(middle / split.prefills) + middle * stay < users:
            low = middle
        else:
            high = middle
    return high
