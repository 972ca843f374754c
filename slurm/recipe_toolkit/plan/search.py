"""A search in the plan: at most how many points it takes, and one of them. The agent imports this."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipe_toolkit.plan.model import Plan, Point, Process
from recipe_toolkit.plan.values import Asked, Join, Json, RunPath, WhereThere


def most_points(least: float, most: float, resolution: float, repeats: int, maximize: str) -> int:
    """Enough to climb by doubling, halve the gap to the resolution, repeat both ends, and to do some of it again."""
    climb = math.ceil(math.log2(most / least)) + 1
    halve = math.ceil(math.log2(1 / resolution)) + 1
    return climb + halve * (3 if maximize == "goodput" else 1) + 6 * repeats


def count(fixed: int | None, per_concurrency: int | None, concurrency: int | None) -> int | None:
    """Requests of a point, by the rule that the recipe gives."""
    if fixed is not None:
        return fixed
    return per_concurrency * concurrency if per_concurrency is not None and concurrency is not None else None


def seed(base: int, point: str) -> int:
    """A seed of each point's own: with one for all, a point's prompts are those of the point before it,
    and the engines have them in their prefix caches."""
    return (base + zlib.crc32(point.encode())) % 2**31


def repeat_id(point: str, repeat: int) -> str:
    """The id of the ``repeat``-th measurement (from 1) of ``point``."""
    return f"{point}-rep{repeat}"


def asked(point: Point, load: float, repeat: int) -> Point:
    """One point of a search; its process keeps the name, since they run one after the other."""
    search = point.search
    assert search is not None
    concurrency = round(load) if search.over == "concurrency" else None
    repeat_of = f"{point.id}-c{concurrency}" if concurrency is not None else f"{point.id}-r{_number(load)}"
    name = repeat_id(repeat_of, repeat)
    requests = count(search.requests, search.requests_per_concurrency, concurrency)
    warmup = count(search.warmup, search.warmup_per_concurrency, concurrency)
    known = {
        "concurrency": str(concurrency),
        "request_rate": _number(load),
        "requests": str(requests),
        "warmup": str(warmup),
        "prompts": str((requests or 0) + (warmup or 0)),
        "seed": str(seed(search.seed, name)),
    }
    artifacts = f"bench/{name}"
    process = _filled(point.process, known, {point.artifacts: artifacts})
    return replace(
        point,
        id=name,
        process=process,
        artifacts=artifacts,
        concurrency=concurrency,
        request_rate=None if concurrency is not None else load,
        requests=requests,
        warmup=warmup,
        repeat_of=repeat_of,
        repeat=repeat,
        search=None,
    )


def clients(plan: Plan) -> Iterator[Process]:
    """The process of each measurement; of a search, that of its first point."""
    for point in plan.benchmarks:
        yield point.process if point.search is None else asked(point, point.search.least, 1).process


def _number(load: float) -> str:
    return f"{load:.10f}".rstrip("0").rstrip(".")


def _filled(process: Process, known: Mapping[str, str], paths: Mapping[str, str]) -> Process:
    def fill(value: Any) -> Any:
        if isinstance(value, Asked):
            return known[value.name]
        if isinstance(value, RunPath):
            return RunPath(paths.get(value.path, value.path))
        if isinstance(value, Join):
            return Join(tuple(fill(part) for part in value.parts))
        if isinstance(value, Json):
            return Json(fill(value.document))
        if isinstance(value, WhereThere):
            return WhereThere(value.path, tuple(fill(word) for word in value.words))
        if isinstance(value, Mapping):
            return {key: fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, (list, tuple)) else value

    return replace(process, argv=tuple(fill(list(process.argv))), env=fill(process.env))
