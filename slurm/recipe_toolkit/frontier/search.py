"""Splits of a number of GPUs over prefill and decode instances, and the loads worth predicting of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recipe_toolkit.frontier.closed import Figures, Split, State, at_concurrency, at_rate, steady
from recipe_toolkit.frontier.pareto import Axis, dominant
from recipe_toolkit.frontier.pool import Pool
from recipe_toolkit.frontier.transfer import Transfer

# A split of more GPUs must be better than one of fewer by so much: users are whole, so multiples differ by a hair.
_WORTH = 0.01


@dataclass(frozen=True)
class Workload:
    """Tokens of a request, and bounds on means (``ttft_mean_s``, ``tpot_mean_ms``) where there are any."""

    isl: int
    osl: int
    slo: Mapping[str, float]


@dataclass(frozen=True)
class Point:
    """A predicted point. ``dominant``: no other of as many GPUs or fewer is better on the axes."""

    state: State
    concurrency: int
    figures: Figures
    row: Mapping[str, float]
    slo_met: bool | None
    dominant: bool = False

    @property
    def split(self) -> Split:
        """How many instances of what."""
        return self.state.split


def rates(figures: Figures, gpus: int, work: Workload) -> dict[str, float]:
    """Every figure of a load, by the names of results.json; per-GPU rates are over the working GPUs."""
    output, total = figures.requests_per_s * work.osl, figures.requests_per_s * (work.isl + work.osl)
    return {
        "requests_per_s": figures.requests_per_s,
        "ttft_ms": figures.ttft_ms,
        "tpot_ms": figures.tpot_ms,
        "e2e_ms": figures.e2e_ms,
        "output_tps_per_user": 1000 / figures.tpot_ms,
        "output_tps": output,
        "total_tps": total,
        "output_tps_per_gpu": output / gpus,
        "total_tps_per_gpu": total / gpus,
    }


def meets(figures: Figures, slo: Mapping[str, float]) -> bool | None:
    """Whether the bounds on means are met; None without any."""
    seen = {"ttft_mean_s": figures.ttft_ms / 1000, "tpot_mean_ms": figures.tpot_ms}
    bounds = {name: bound for name, bound in slo.items() if name in seen}
    return all(seen[name] <= bound for name, bound in bounds.items()) if bounds else None


def splits(
    prefills: Sequence[Pool], decodes: Sequence[Pool], transfers: Mapping[str, Transfer], gpus: int, exactly: bool
) -> Iterator[Split]:
    """Every split of up to, or of exactly, so many GPUs. ``transfers``: by the decode pool's label."""
    for prefill in prefills:
        for decode in decodes:
            for count in range(1, (gpus - decode.gpus) // prefill.gpus + 1):
                left = gpus - count * prefill.gpus
                most = left // decode.gpus
                if exactly and left % decode.gpus:
                    continue
                for number in range(most if exactly else 1, most + 1):
                    yield split_of(prefill, count, decode, number, transfers.get(decode.label))


def split_of(prefill: Pool, prefills: int, decode: Pool, decodes: int, transfer: Transfer | None) -> Split:
    """So many instances; what is not known of a transfer takes no time."""
    if transfer is None:
        return Split(prefill, prefills, decode, decodes)
    return Split(prefill, prefills, decode, decodes, transfer.seconds or 0.0, transfer.post_s or 0.0)


def predict(split: Split, work: Workload) -> list[Point]:
    """The loads of a split: where one of its pools is as it was measured, its peak, and the most that meets the SLO."""
    wanted = {split.peak}
    wanted.update(split.decodes * split.shared(item.rate) for item in split.decode.samples)
    wanted.update(split.prefills * item.rate for item in split.prefill.samples)
    users = {max(1, round(at_rate(split, rate).in_flight)) for rate in wanted if rate <= split.peak}
    most = _most(split, work, max(users))
    found = []
    for concurrency in sorted({*users, *([most] if most else [])}):
        state = at_concurrency(split, concurrency)
        if state is not None:
            figures = steady(state)
            row = {**rates(figures, split.gpus, work), "gpus": float(split.gpus)}
            found.append(Point(state, concurrency, figures, row, meets(figures, work.slo)))
    return found


def _most(split: Split, work: Workload, top: int) -> int | None:
    """The most users with whom the SLO is met: more of them never are faster."""
    if not work.slo:
        return None
    low, high = 0, top
    while low < high:
        middle = (low + high + 1) // 2
        state = at_concurrency(split, middle)
        if state is not None and meets(steady(state), work.slo):
            low = middle
        else:
            high = middle - 1
    return low or None


def search(found: Sequence[Split], work: Workload, axes: Sequence[Axis]) -> list[Point]:
    """The points that no other of as many GPUs beats on the axes, by GPUs and the first axis.

    Those that none of fewer GPUs beats either are marked dominant.
    """
    by_gpus: dict[int, list[Point]] = {}
    for split in found:
        by_gpus.setdefault(split.gpus, []).extend(predict(split, work))
    kept: list[Point] = []
    best: list[Point] = []
    for _, points in sorted(by_gpus.items()):
        marks = dominant([point.row for point in points], axes)
        front = _once([point for point, mark in zip(points, marks, strict=True) if mark], axes)
        front = _with_slo(front, points)
        worth = [all(not _as_good(other, point, axes) for other in best) for point in front]
        best += [point for point, is_worth in zip(front, worth, strict=True) if is_worth]
        kept += front
    leading = dominant([point.row for point in best], axes)
    chosen = {id(point) for point, mark in zip(best, leading, strict=True) if mark}
    marked = [_marked(point, id(point) in chosen) for point in kept]
    sign = -1 if axes[0].better == "max" else 1
    return sorted(marked, key=lambda point: (point.split.gpus, sign * point.row[axes[0].metric]))


def _once(points: Sequence[Point], axes: Sequence[Axis]) -> list[Point]:
    """Of points that are the same on all axes, the one with the shortest TTFT."""
    seen: dict[tuple[float, ...], Point] = {}
    for point in sorted(points, key=lambda item: (item.figures.ttft_ms, item.concurrency)):
        seen.setdefault(tuple(point.row[item.metric] for item in axes), point)
    return list(seen.values())


def _with_slo(front: list[Point], points: Sequence[Point]) -> list[Point]:
    """The front, and the best that meets the SLO where the front's best does not."""
    best = best_within(points)
    known = best is None or any(point.split == best.split and point.concurrency == best.concurrency for point in front)
    return front if known or best is None else [*front, best]


def best_within(points: Sequence[Point]) -> Point | None:
    """Of the points that meet the SLO the one with the most tokens a GPU; None where none does.

    Of those that are next to as good, one of the fewest GPUs.
    """
    allowed = [point for point in points if point.slo_met is not False]
    if not allowed:
        return None
    top = max(point.row["total_tps_per_gpu"] for point in allowed)
    near = [point for point in allowed if point.row["total_tps_per_gpu"] >= top * (1 - _WORTH)]
    least = min(point.split.gpus for point in near)
    near = [point for point in near if point.split.gpus == least]
    return max(near, key=lambda point: (round(point.row["total_tps_per_gpu"], 6), point.row["output_tps_per_user"]))


def _as_good(one: Point, other: Point, axes: Sequence[Axis]) -> bool:
    """Whether ``one``, of fewer GPUs, is as good on all axes, or worse by next to nothing."""
    for item in axes:
        mine, theirs = one.row[item.metric], other.row[item.metric]
        if mine < theirs * (1 - _WORTH) if item.better == "max" else mine > theirs * (1 + _WORTH):
            return False
    return True


def _marked(point: Point, leads: bool) -> Point:
    return Point(point.state, point.concurrency, point.figures, point.row, point.slo_met, leads)
