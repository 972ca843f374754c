"""A search in phase *bench*: it is asked for one point after the other, and each is measured as any other is."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable

from recipe_toolkit.plan.model import Point
from recipe_toolkit.plan.search import asked
from recipe_toolkit.results.model import PointResult, scrub
from recipe_toolkit.results.search.decide import Stop, decide
from recipe_toolkit.results.search.loads import Sample
from recipe_toolkit.results.search.model import SearchResult, search_from_json
from recipe_toolkit.results.search.sample import sample
from recipe_toolkit.results.search.story import found_so_far, progress
from recipe_toolkit.run import bind
from recipe_toolkit.run.context import Context
from recipe_toolkit.rundir import read_json, write_json

_FOUND = "search.json"

log = logging.getLogger("recipe_toolkit.run")


async def search(
    context: Context,
    point: Point,
    measure: Callable[[Point], Awaitable[PointResult]],
    written: Callable[[], Awaitable[None]],
) -> None:
    """Measure points until the search stops; those that an earlier attempt has measured are not measured again.

    ``written``: writes the results. Raises RunError as ``measure`` does.
    """
    wanted = point.search
    assert wanted is not None
    known = found(context, point)
    if known is not None and known.state == "ended":
        log.info("search %s has ended before: %s", point.id, known.why)
        return
    history: list[Sample] = []
    ended = None
    while not isinstance(step := decide(wanted, history), Stop):
        one = asked(point, step.load, step.repeat)
        left = _left(history, wanted.deadline_s)
        if left is not None:
            one = dataclasses.replace(one, timeout_s=min(one.timeout_s, max(left, 1.0)))
        bind.rebind(context, [one.process])
        result = await measure(one)
        if left is not None and not result.valid and (result.client_s or 0.0) >= left:
            ended = f"{one.id} was cut off by the deadline of {wanted.deadline_s:g} s"
            break
        history.append(sample(wanted, step.load, result))
        _write(context, point, found_so_far(point.id, wanted, history))
        await written()
    last = found_so_far(point.id, wanted, history, ended)
    _write(context, point, last)
    await written()
    log.info("search %s: %s: %s", point.id, last.outcome, last.why)
    load = last.answer.load if last.answer else None
    context.journal.event("search_ended", benchmark=point.id, outcome=last.outcome, why=last.why, answer=load)


def found(context: Context, point: Point) -> SearchResult | None:
    """What the search has found so far; None before its first point."""
    try:
        return search_from_json(read_json(context.run.bench(point.id) / _FOUND)["search"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s of %s cannot be read: %r", _FOUND, point.id, error)
        return None


def results(context: Context, state: str) -> dict[str, SearchResult]:
    """What each search has found, by benchmark; ``state``: the run's, which may have ended before the search."""
    known = {point.id: found(context, point) for point in context.plan.benchmarks if point.search is not None}
    there = {name: result for name, result in known.items() if result is not None}
    if state == "running":
        return there
    why = f"the run is {state}"
    return {
        name: dataclasses.replace(result, state="ended", outcome="stopped", why=why)
        if result.state == "running"
        else result
        for name, result in there.items()
    }


def _write(context: Context, point: Point, result: SearchResult) -> None:
    folder = context.run.bench(point.id)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _FOUND, {"schema": 1, "search": scrub(dataclasses.asdict(result))})
    searches = {**context.journal.state.get("searches", {}), point.id: progress(result)}
    context.journal.update(searches=searches)


def _left(history: list[Sample], deadline_s: float | None) -> float | None:
    return None if deadline_s is None else deadline_s - sum(item.seconds for item in history)
