"""Phase *bench*: the points in order, each by its client, between two scrapes of the engines."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Point
from recipe_toolkit.results.collect import build_results, point_result
from recipe_toolkit.results.model import PointResult, point_from_json
from recipe_toolkit.results.pools import pool_metrics
from recipe_toolkit.run import launch
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

log = logging.getLogger("recipe_toolkit.run")


async def bench(context: Context) -> None:
    """Measure every point that no earlier attempt has finished.

    Raises RunError if a client fails or the throughput stalls; what was measured stays.
    """
    for point in context.plan.benchmarks:
        if _read(context, point, _POINT) is not None:
            log.info("point %s was measured before", point.id)
            _mark(context, point, "done")
            continue
        _mark(context, point, "running")
        context.journal.event("point_started", point=point.id)
        try:
            result = await _measure(context, point)
        except BaseException:
            _mark(context, point, "failed")
            raise
        _mark(context, point, "done")
        context.journal.event("point_finished", point=point.id, valid=result.valid, reasons=list(result.reasons))
        await write_results(context, "running", None)


async def write_results(context: Context, state: str, message: str | None) -> None:
    """Write results.json from the points that are finished, with the run's state."""
    known = {**context.journal.state, "state": state, "message": message}
    valid = await asyncio.get_running_loop().run_in_executor(None, _write_results, context, known)
    context.journal.update(valid=valid)


def _write_results(context: Context, known: dict[str, Any]) -> bool | None:
    # A client that failed is shown too, with the reasons why it does not count.
    found = [_read(context, point, _POINT) or _read(context, point, _FAILED) for point in context.plan.benchmarks]
    points = [result for result in found if result is not None]
    # Several, if the instances differ: then the reader should see it.
    engine = ", ".join(sorted(set(context.versions.values())))
    versions = {context.plan.engine: engine} if engine else {}
    results = build_results(context.plan, context.run.id, known, points, versions, context.images)
    write_json(context.run.results, results.to_json())
    return results.valid


def _mark(context: Context, point: Point, state: str) -> None:
    context.journal.update(points={**context.journal.state["points"], point.id: state})


def _read(context: Context, point: Point, name: str) -> PointResult | None:
    try:
        return point_from_json(read_json(context.run.bench(point.id) / name)["result"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s of point %s cannot be read, so it does not count: %r", name, point.id, error)
        return None


async def _measure(context: Context, point: Point) -> PointResult:
    artifacts = context.run.root / point.artifacts
    _set_aside(context.run.bench(point.id))
    for folder in (artifacts, context.run.bench(point.id)):
        folder.mkdir(parents=True, exist_ok=True)
    before = await scrape(context)
    series = Series(context, point.id)
    recorder = asyncio.ensure_future(series.run())
    view = context.view(point.process.name)
    started = time.time()
    clock = time.monotonic()
    watch = ClientWatch(context.fleet, view, point.client)
    beside = [recorder]
    try:
        await launch.start(context, point.process, str(artifacts), f"bench: point {point.id}")
        view.settle("running")
        context.publish()
        beside.append(asyncio.ensure_future(watch.run()))
        await race(view.ended.wait(), _timeout(context, point, view), _stall(context, point, view, series))
    except RunError:
        # Not when the phase is cancelled: then the drain stops all at once.
        await context.fleet.call(view.node, "stop", 60.0, names=[view.name], grace=_STOP_GRACE_S)
        raise
    finally:
        await cancel(*beside)
    duration, ended = time.monotonic() - clock, time.time()
    after = await series.sample()
    transports = await kv_transports(context)
    code = view.exit_code
    assert code is not None

    def judge() -> PointResult:
        pools = pool_metrics(before, after, series.gauges, transports)
        return point_result(context.plan, point, artifacts, code, duration, pools, watch.samples, ended)

    # Clients write a record a request, which takes a while to read.
    result = await asyncio.get_running_loop().run_in_executor(None, judge)
    document = {
        "schema": 1,
        "attempt": context.where.attempt,
        "started": round(started, 3),
        "exit_code": view.exit_code,
        "result": result.to_json(),
    }
    folder = context.run.bench(point.id)
    if view.exit_code != 0:
        write_json(folder / _FAILED, document)
        raise context.describe_exit(f"bench: point {point.id}", view)
    write_json(folder / _POINT, document)
    return result


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
    raise context.failure(f"bench: point {point.id}", view, what, *await context.tail(view.name))


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
            said = "; ".join([f"no token and no line of output for {limit:g} s", *congestion(texts)])
            what = f"is stalled: {said}"
            raise context.failure(f"bench: point {point.id}", view, what, *await context.tail(view.name))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
