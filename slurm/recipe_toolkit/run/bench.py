"""Phase *bench*: the points in order, each by its client, between two scrapes of the engines."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Point
from recipe_toolkit.results.collect import build_results, point_result
from recipe_toolkit.results.model import PointResult, point_from_json
from recipe_toolkit.results.pools import pool_metrics
from recipe_toolkit.results.search.model import SearchResult
from recipe_toolkit.run import launch, search
from recipe_toolkit.run.client_watch import ClientWatch
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.fleet import ProcessView
from recipe_toolkit.run.metrics import Series, congestion, scrape
from recipe_toolkit.run.tasks import cancel, race
from recipe_toolkit.run.transport import kv_transports
from recipe_toolkit.rundir import read_json, write_json

_POINT = "point.json"
_FAILED = "failed.json"
_STOP_GRACE_S = 10.0
_ENGINE_LAG_S = 1.0  # a client that fails may be the first sign of an engine's end, which ends the run

log = logging.getLogger("recipe_toolkit.run")


class _CutOffError(RunError):
    """A point has taken its time."""


async def bench(context: Context) -> None:
    """Measure every point that no earlier attempt has finished.

    Raises RunError if a client fails or the throughput stalls; what was measured stays.
    """
    written = partial(write_results, context, "running", None)
    for point in context.plan.benchmarks:
        if point.search is None:
            await _one(context, point)
            await written()
            continue
        _mark(context, point.id, "searching")
        try:
            await search.search(context, point, partial(_one, context, searched=True), written)
        except BaseException:
            _mark(context, point.id, "failed")
            raise
        _mark(context, point.id, "done")


async def _one(context: Context, point: Point, searched: bool = False) -> PointResult:
    """Measure a point, or take what was measured before.

    ``searched``: a client that fails is then an invalid point like others, since a search tries loads that are too
    high, and so is one that has taken its time.
    """
    known = _read(context, point.id, _POINT)
    if known is not None:
        log.info("point %s was measured before", point.id)
        _mark(context, point.id, "done")
        return known
    _mark(context, point.id, "running")
    context.journal.event("point_started", point=point.id)
    try:
        result = await _measure(context, point, searched)
    except BaseException:
        _mark(context, point.id, "failed")
        raise
    _mark(context, point.id, "done")
    context.journal.event("point_finished", point=point.id, valid=result.valid, reasons=list(result.reasons))
    return result


async def write_results(context: Context, state: str, message: str | None) -> None:
    """Write results.json from the points that are finished, with the run's state."""
    known = {**context.journal.state, "state": state, "message": message}
    valid = await asyncio.get_running_loop().run_in_executor(None, _write_results, context, known)
    context.journal.update(valid=valid)


def _write_results(context: Context, known: dict[str, Any]) -> bool | None:
    searches = search.results(context, known["state"])
    # A client that failed is shown too, with the reasons why it does not count.
    found = [_read(context, name, _POINT) or _read(context, name, _FAILED) for name in _names(context, searches)]
    points = [result for result in found if result is not None]
    # Several, if the instances differ: then the reader should see it.
    engine = ", ".join(sorted(set(context.versions.values())))
    versions = {context.plan.engine: engine} if engine else {}
    of_searches = list(searches.values())
    results = build_results(context.plan, context.run.id, known, points, versions, context.images, of_searches)
    write_json(context.run.results, results.to_json())
    return results.valid


def _names(context: Context, searches: Mapping[str, SearchResult]) -> Iterator[str]:
    """The ids of all points; those of a search by load."""
    for point in context.plan.benchmarks:
        if point.search is None:
            yield point.id
        elif point.id in searches:
            yield from (name for load in searches[point.id].loads for name in load.points)


def _mark(context: Context, point: str, state: str) -> None:
    context.journal.update(points={**context.journal.state["points"], point: state})


def _read(context: Context, point: str, name: str) -> PointResult | None:
    try:
        return point_from_json(read_json(context.run.bench(point) / name)["result"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s of point %s cannot be read, so it does not count: %r", name, point, error)
        return None


async def _measure(context: Context, point: Point, searched: bool) -> PointResult:
    artifacts = context.run.root / point.artifacts
    _set_aside(context.run.bench(point.id))
    for folder in (artifacts, context.run.bench(point.id)):
        folder.mkdir(parents=True, exist_ok=True)
    before = await scrape(context)
    series = Series(context, point.id)
    recorder = asyncio.ensure_future(series.run())
    view = context.view(point.process.name)
    if searched:  # the client before has the same name
        await _stop(context, view)
    started = time.time()
    clock = time.monotonic()
    watch = ClientWatch(context.fleet, view, point.client)
    beside = [recorder]
    cut = None
    try:
        await launch.start(context, point.process, str(artifacts), f"bench: point {point.id}")
        view.settle("running")
        context.publish()
        beside.append(asyncio.ensure_future(watch.run()))
        await race(view.ended.wait(), _timeout(context, point, view), _stall(context, point, view, series))
    except RunError as error:
        # Not when the phase is cancelled: then the drain stops all at once.
        await _stop(context, view)
        if not (searched and isinstance(error, _CutOffError)):
            raise
        cut = f"it was cut off after {point.timeout_s:g} s"
        await asyncio.wait_for(view.ended.wait(), _STOP_GRACE_S)
    finally:
        await cancel(*beside)
    duration, ended = time.monotonic() - clock, time.time()
    after = await series.sample()
    transports = await kv_transports(context)
    # A client that ends well when it is told to has not ended well.
    code = view.exit_code if cut is None else view.exit_code or -signal.SIGTERM
    assert code is not None

    def judge() -> PointResult:
        pools = pool_metrics(before, after, series.gauges, transports)
        return point_result(context.plan, point, artifacts, code, duration, pools, watch.samples, ended)

    # Clients write a record a request, which takes a while to read.
    result = await asyncio.get_running_loop().run_in_executor(None, judge)
    if cut is not None:
        result = dataclasses.replace(result, notes=(*result.notes, cut))
    document = {
        "schema": 1,
        "attempt": context.where.attempt,
        "started": round(started, 3),
        "exit_code": view.exit_code,
        "result": result.to_json(),
    }
    folder = context.run.bench(point.id)
    if view.exit_code != 0 and searched:
        await asyncio.sleep(_ENGINE_LAG_S)
    elif view.exit_code != 0:
        write_json(folder / _FAILED, document)
        raise context.describe_exit(f"bench: point {point.id}", view)
    write_json(folder / _POINT, document)
    return result


async def _stop(context: Context, view: ProcessView) -> None:
    await context.fleet.call(view.node, "stop", 60.0, names=[view.name], grace=_STOP_GRACE_S)


def _set_aside(folder: Path) -> None:
    """Keep what an earlier attempt left of the point under another name: clients mix what they find with theirs."""
    if not folder.exists():
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.unfinished-{number}")).exists():
        number += 1
    folder.rename(aside)


async def _timeout(context: Context, point: Point, view: ProcessView) -> None:
    await asyncio.sleep(point.timeout_s)
    what = f"has not ended within {point.timeout_s:g} s"
    raise _CutOffError(context.failure(f"bench: point {point.id}", view, what, *await context.tail(view.name)).message)


async def _stall(context: Context, point: Point, view: ProcessView, series: Series) -> None:
    """Raise when for the stall time no token was computed and the client has written nothing."""
    limit = context.plan.deadlines.stall
    log_path = context.run.root / view.log
    seen: tuple[float, int] = (-1.0, -1)
    moved = time.monotonic()
    while True:
        await asyncio.sleep(min(1.0, limit / 4))
        now = (series.tokens, _size(log_path))
        if now != seen:
            seen, moved = now, time.monotonic()
        elif time.monotonic() - moved > limit:
            texts = await series.sample()  # the last one may be as old as its interval
            if series.tokens != seen[0]:
                continue
            silent = [f"{name} does not answer at /metrics" for name in series.silent]
            said = "; ".join([f"no token and no line of output for {limit:g} s", *silent, *congestion(texts)])
            what = f"is stalled: {said}"
            raise context.failure(f"bench: point {point.id}", view, what, *await context.tail(view.name))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
