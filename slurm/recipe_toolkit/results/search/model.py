"""What a search has found so far, as results.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TriedBound:
    """A bound at one load. ``seen``: mean over its repeats; ``low`` and ``high``: where its true mean lies, at the
    search's confidence (None after one repeat). ``met``: whether ``seen`` is within the bound."""

    bound: float
    seen: float | None
    low: float | None = None
    high: float | None = None
    met: bool | None = None


@dataclass(frozen=True)
class TriedLoad:
    """One load and all that was measured at it.

    ``verdict``: ``met``, ``missed``, ``unsure`` (the bound is within the noise after every repeat) or ``invalid``
    (no point of it counts). ``sure``: the verdict holds at the search's confidence, and not by a single point alone.
    ``points``: their ids; ``left_out``: those of them that stand apart from the others or do not count.
    """

    load: float
    verdict: str
    sure: bool
    objective: float | None
    bounds: Mapping[str, TriedBound] = field(default_factory=dict)
    points: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The load to run at. ``objective``: mean over its repeats, ``objective_low`` and ``objective_high`` as of a bound.

    ``slo``: what was seen of each bound.
    """

    load: float
    objective: float | None
    objective_low: float | None
    objective_high: float | None
    slo: Mapping[str, float | None] = field(default_factory=dict)
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class Knee:
    """The highest load that meets every bound and the lowest above it that misses one; None: not seen."""

    met: float | None = None
    missed: float | None = None


@dataclass(frozen=True)
class SearchResult:
    """One search.

    ``benchmark``: its name. ``over``: ``concurrency`` or ``request_rate``; loads are in its unit. ``state``:
    ``running`` or ``ended``. ``outcome``: ``found``; ``all_met``: the highest load of the range still meets every
    bound; ``none_met``: the lowest misses one; ``unsure``: the noise hides where it is, or no point above it counts;
    ``stopped``: a limit came first; None while it runs. ``why``: why it stopped, a sentence. ``confidence``: that the
    knee is where it is said to be (None: nothing was repeated, or no point above it counts). ``binding``: the bounds
    that the load above the knee misses. ``monotone``: whether no load above a missed one was met. ``noise_ratio``:
    spread between repeats, standard deviation over mean, of the bound that binds. ``points_most``: how many points it
    may take; ``measuring_s``: how long they took so far.
    """

    benchmark: str
    over: str
    least: float
    most: float
    maximize: str
    resolution: float
    repeats: int
    confidence_wanted: float
    bounds: Mapping[str, float]
    state: str
    outcome: str | None
    why: str | None
    answer: Answer | None
    knee: Knee
    confidence: float | None
    binding: tuple[str, ...]
    monotone: bool
    noise_ratio: float | None
    loads: tuple[TriedLoad, ...]
    points_measured: int
    points_most: int
    measuring_s: float
    notes: tuple[str, ...] = ()


def search_from_json(data: Mapping[str, Any]) -> SearchResult:
    """The search of results.json. Raises KeyError or TypeError if it is none."""
    answer = data["answer"]
    return SearchResult(
        **{
            **data,
            "answer": None if answer is None else Answer(**{**answer, "points": tuple(answer["points"])}),
            "knee": Knee(**data["knee"]),
            "binding": tuple(data["binding"]),
            "loads": tuple(_load(item) for item in data["loads"]),
            "notes": tuple(data["notes"]),
        }
    )


def _load(data: Mapping[str, Any]) -> TriedLoad:
    bounds = {name: TriedBound(**bound) for name, bound in data["bounds"].items()}
    words = {key: tuple(data[key]) for key in ("points", "left_out")}
    return TriedLoad(**{**data, **words, "bounds": bounds})
