"""Which of the predicted points are worth a run of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Proposal:
    """A predicted split with one load. ``topologies`` and ``instances`` by role; ``name``: safe in file names."""

    name: str
    topologies: Mapping[str, str]
    instances: Mapping[str, int]
    concurrency: int
    point: Mapping[str, Any]


def proposals(frontier: Mapping[str, Any], topologies: Mapping[str, str]) -> Iterator[Proposal]:
    """The points of a frontier (schemas/frontier.json) in the order in which they are worth confirming.

    First the best; then the dominant ones, from both ends and the middle of the first axis inwards, those that meet
    the SLO before the others. ``topologies``: the name of each pool's topology, by the pool's id.
    """
    points = frontier["points"]
    best = [point for point in points if point["best"]]
    leading = [point for point in points if point["dominant"] and not point["best"]]
    axis = frontier["axes"][0]["metric"]
    leading.sort(key=lambda point: point[axis])
    met = [point for point in leading if point["slo_met"] is not False]
    rest = [point for point in leading if point["slo_met"] is False]
    for point in [*best, *_spread(met), *_spread(rest)]:
        names = {role: topologies[point[role]["pool"]] for role in ("prefill", "decode")}
        instances = {role: point[role]["instances"] for role in names}
        users = point["concurrency"]
        name = f"{instances['prefill']}x{names['prefill']}-{instances['decode']}x{names['decode']}-c{users}"
        yield Proposal(name, names, instances, users, point)


def _spread(points: Sequence[Any]) -> list[Any]:
    """The last, the first, the middle, and so on: any number of them from the front is spread over all."""
    if not points:
        return []
    order = [len(points) - 1, 0]
    gaps = [(0, len(points) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle not in (low, high):
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [points[index] for index in dict.fromkeys(order)]
