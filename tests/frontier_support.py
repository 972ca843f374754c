"""A discrete-event model of prefill and decode instances, by the timing of docs/simulated-engine.md, without a clock.

It knows nothing of the formula that is tested with it: requests queue, prefills run one after the other, transfers take
their time, decode goes in steps.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from recipe_toolkit.frontier.read import Source


@dataclass(frozen=True)
class Timing:
    """Seconds, of one instance: a prefill, a transfer, a decode step with n running is ``step + each * n``.

    ``post``: of the transfer, what the decode instance does between two steps.
    """

    prefill: float = 0.2
    transfer: float = 0.02
    step: float = 0.01
    each: float = 0.0005
    osl: int = 64
    post: float = 0.0


@dataclass
class _Request:
    began: float
    first: float = 0.0
    left: int = 0


@dataclass
class _Decoder:
    running: list[_Request] = field(default_factory=list)
    joining: list[_Request] = field(default_factory=list)
    posts: list[_Request] = field(default_factory=list)
    busy: bool = False


@dataclass(frozen=True)
class Seen:
    """What a client saw; seconds."""

    rate: float
    ttft: float
    ttft_median: float
    tpot: float
    e2e: float


class _Simulation:
    """The instances, and the events to come: (time, number, method, argument)."""

    def __init__(self, timing: Timing, requests: int, prefills: int, decodes: int) -> None:
        self.timing = timing
        self.unsent = requests
        self.done: list[tuple[float, _Request]] = []
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._lanes = [0.0] * prefills
        self._decoders = [_Decoder() for _ in range(decodes)]
        self._turns = itertools.cycle(range(max(prefills, 1)))
        self._places = itertools.cycle(range(max(decodes, 1)))

    def later(self, at: float, what: Callable[[float, Any], None], item: Any) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), what, item))

    def run(self) -> None:
        while self._events:
            now, _, what, item = heapq.heappop(self._events)
            what(now, item)

    def arrive(self, now: float) -> None:
        if not self.unsent:
            return
        self.unsent -= 1
        request = _Request(now, left=self.timing.osl)
        if not self._lanes:
            self.later(now, self._decode, request)
            return
        lane = next(self._turns)
        self._lanes[lane] = max(self._lanes[lane], now) + self.timing.prefill
        self.later(self._lanes[lane], self._prefilled, request)

    def _prefilled(self, now: float, request: _Request) -> None:
        if self._decoders and self.timing.post:
            decoder = self._decoders[next(self._places)]
            decoder.posts.append(request)
            if not decoder.busy:
                self._begin_step(now, decoder)
        elif self._decoders:
            self.later(now + self.timing.transfer, self._decode, request)
        else:
            request.first = now
            self._end(now, request)

    def _decode(self, now: float, request: _Request) -> None:
        self._join(now, (self._decoders[next(self._places)], request))

    def _join(self, now: float, both: tuple[_Decoder, _Request]) -> None:
        decoder, request = both
        decoder.joining.append(request)
        if not decoder.busy:
            self._begin_step(now, decoder)

    def _begin_step(self, now: float, decoder: _Decoder) -> None:
        if decoder.posts:
            decoder.busy = True
            self.later(now + self.timing.transfer, self._join, (decoder, decoder.posts.pop(0)))
            self.later(now + self.timing.post, self._begin_step, decoder)
            return
        decoder.running += decoder.joining
        decoder.joining = []
        decoder.busy = bool(decoder.running)
        if decoder.busy:
            self.later(now + self.timing.step + self.timing.each * len(decoder.running), self._end_step, decoder)

    def _end_step(self, now: float, decoder: _Decoder) -> None:
        for request in decoder.running:
            request.first = request.first or now
            request.left -= 1
        ended = [request for request in decoder.running if not request.left]
        decoder.running = [request for request in decoder.running if request.left]
        for request in ended:
            self._end(now, request)
        self._begin_step(now, decoder)

    def _end(self, now: float, request: _Request) -> None:
        self.done.append((now, request))
        self.arrive(now)


def simulate(timing: Timing, users: int, requests: int, prefills: int = 0, decodes: int = 0, skip: int = 0) -> Seen:
    """A closed loop over so many instances; without prefills decode alone, without decodes prefill alone.

    ``skip``: requests that are not counted at the start, and as many at the end.
    """
    model = _Simulation(timing, requests, prefills, decodes)
    for _ in range(users):
        model.arrive(0.0)
    model.run()
    done = model.done
    return _seen(done[skip : len(done) - skip], timing, done[skip - 1][0] if skip else 0.0)


def _seen(done: list[tuple[float, _Request]], timing: Timing, start: float) -> Seen:
    ttft = [request.first - request.began for _, request in done]
    tpot = [(end - request.first) / max(timing.osl - 1, 1) for end, request in done]
    e2e = [end - request.began for end, request in done]
    return Seen(len(done) / (done[-1][0] - start), fmean(ttft), median(ttft), fmean(tpot), fmean(e2e))


def sizes(tp: int = 1) -> dict[str, Any]:
    return {"instances": 1, "tp": tp, "pp": 1, "dp": 1, "dcp": 1, "ep": False}


def results(name: str, layout: dict[str, Any], points: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """What the frontier reads of a run's results."""
    working = sum(shape["instances"] * shape["tp"] for shape in layout.values())
    return {
        "run": f"run-{name}",
        "recipe": name,
        "model": "tiny",
        "engine": "vllm",
        "engine_version": "0.32.0",
        "simulated": False,
        "rehearsal": False,
        "versions": {"vllm": "0.32.0"},
        "gpus": {"name": "H200", "device": "gpu", "working": working, "allocated": working},
        "slo": {},
        "layout": layout,
        "points": points,
        **changes,
    }


def point(name: str, isl: int, osl: int, users: int, requests: int, seen: Seen, gpus: int = 1) -> dict[str, Any]:
    """A valid point as results.json has it."""

    def stat(value: float, middle: float | None = None) -> dict[str, float]:
        return {"mean": value * 1000, "p50": (value if middle is None else middle) * 1000}

    output, total = seen.rate * osl, seen.rate * (isl + osl)
    return {
        "id": name,
        "valid": True,
        "reasons": [],
        "isl": {"wanted_tokens": isl},
        "osl": {"wanted_tokens": osl},
        "concurrency": users,
        "request_rate_rps": None,
        "requests": {"ok": requests},
        "requests_per_s": seen.rate,
        "ttft_ms": stat(seen.ttft, seen.ttft_median),
        "tpot_ms": stat(seen.tpot) if seen.tpot else None,
        "e2e_ms": stat(seen.e2e),
        "output_tps": output,
        "total_tps": total,
        "output_tps_per_gpu": {"working": output / gpus},
        "total_tps_per_gpu": {"working": total / gpus},
        "output_tps_per_user": {"from_median_tpot": 1 / seen.tpot if seen.tpot else None},
        "pools": {},
    }


ISL = 2048


def prefill_alone(timing: Timing, name: str = "p", tp: int = 1, loads: tuple[int, ...] = (1, 2, 4)) -> Source:
    """As `recipe submit` would have measured it, 16 requests a user."""
    points = []
    for users in loads:
        seen = simulate(timing, users, users * 16, prefills=1)
        points.append(point(f"c{users}", ISL, 2, users, users * 16, seen))
    return Source(results(name, {"serve": sizes(tp)}, points))


def decode_alone(
    timing: Timing, name: str = "d", tp: int = 1, loads: tuple[int, ...] = (1, 4, 16, 64), isl: int = ISL
) -> Source:
    """With dummy KV, four requests a user; at ISL 1 without."""
    points = []
    for users in loads:
        seen = simulate(timing, users, users * 4, decodes=1)
        points.append(point(f"c{users}", isl, timing.osl, users, users * 4, seen))
    return Source(results(name, {"serve": sizes(tp)}, points), decode_bench=isl != 1)


def both(timing: Timing, prefills: int, decodes: int, users: int, rounds: int = 8, **changes: Any) -> Source:
    """Prefill and decode together, TP1 each."""
    seen = simulate(timing, users, users * rounds, prefills, decodes)
    layout = {"prefill": {**sizes(), "instances": prefills}, "decode": {**sizes(), "instances": decodes}}
    measured = point(f"c{users}", ISL, timing.osl, users, users * rounds, seen, prefills + decodes)
    return Source(results(f"{prefills}p{decodes}d", layout, [measured], **changes))
