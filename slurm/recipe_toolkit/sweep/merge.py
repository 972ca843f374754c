"""Variants that differ in their benchmarks alone share a deployment: one recipe with the points of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recipe_toolkit.recipe import Benchmark
from recipe_toolkit.sweep.expand import Variant
from recipe_toolkit.sweep.names import joined, short_keys, value_labels


@dataclass
class _Entry:
    benchmark: Benchmark
    loads: dict[tuple[str, Any], None] = field(default_factory=dict)

    def merged(self) -> Benchmark:
        if self.benchmark.client in _ONE_POINT:
            return self.benchmark
        concurrency, rates = (tuple(value for known, value in self.loads if known == kind) for kind in _LOADS)
        return replace(self.benchmark, concurrency=concurrency, request_rate=rates)

    def points(self) -> list[tuple[str, Any]]:
        """Its points in the order in which the plan has them."""
        return [load for kind in _LOADS for load in self.loads if load[0] == kind] or list(_NO_LOAD)


_LOADS = ("concurrency", "request_rate")
_NO_LOAD: tuple[tuple[str, Any], ...] = (("", None),)
# Clients whose concurrency, where they have one, is no list of points.
_ONE_POINT = ("command", "lm-eval")


def merged(
    of: Sequence[tuple[Variant, Sequence[Benchmark]]],
) -> tuple[tuple[Benchmark, ...], list[tuple[int, ...]]]:
    """The benchmarks of all variants, each measurement once, and which of the plan's points are each variant's.

    What two variants measure alike is one point; benchmarks that differ in more than the loads and have one name
    get the values of the variant behind it.
    """
    entries: list[_Entry] = []
    wanted: list[list[tuple[_Entry, tuple[str, Any]]]] = []
    for variant, benchmarks in of:
        own: list[tuple[_Entry, tuple[str, Any]]] = []
        for index, benchmark in enumerate(benchmarks):
            whole = benchmark.client in _ONE_POINT
            bare = benchmark if whole else replace(benchmark, concurrency=(), request_rate=())
            named = replace(bare, name=_renamed(bare.name, variant, index, () if whole else _LOADS))
            # One that this variant has already is another measurement of the same kind.
            free = [entry for entry in entries if all(entry is not mine for mine, _ in own)]
            entry = next((entry for entry in free if entry.benchmark in (bare, named)), None)
            if entry is None:
                taken = any(known.benchmark.name == bare.name for known in entries)
                entry = _Entry(named if taken else bare)
                entries.append(entry)
            loads = [(kind, value) for kind in _LOADS for value in getattr(benchmark, kind) if not whole]
            loads = loads or list(_NO_LOAD)
            entry.loads.update(dict.fromkeys(loads))
            own += [(entry, load) for load in loads]
        wanted.append(own)
    places: Mapping[tuple[int, tuple[str, Any]], int] = {
        (id(entry), load): place
        for place, (entry, load) in enumerate((entry, load) for entry in entries for load in entry.points())
    }
    found = [tuple(places[id(entry), load] for entry, load in own) for own in wanted]
    return tuple(entry.merged() for entry in entries), found


def _renamed(name: str, variant: Variant, index: int, merged: Sequence[str]) -> str:
    """The name with what the variant says of this benchmark, but for the fields that are merged."""
    settings = [item for item in variant.settings if item.path[:2] == ("benchmarks", index)]
    keys = short_keys([item.path for item in settings])
    said = [f"{keys[item.path]}-{value_labels([item.value])[0]}" for item in settings if item.path[-1] not in merged]
    return joined([name, *(said or [variant.id])])
