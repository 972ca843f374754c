"""From a client's artifacts to a point, and from points to the results of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit import __version__
from recipe_toolkit.plan.model import Plan, Point
from recipe_toolkit.results.aiperf import read_aiperf
from recipe_toolkit.results.client_load import Sample, client_load
from recipe_toolkit.results.command import read_command
from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.gate import few_for, held, judge, remarks
from recipe_toolkit.results.lm_eval import read_lm_eval
from recipe_toolkit.results.model import (
    Bound,
    Client,
    Gpus,
    Host,
    Layout,
    PerGpu,
    PerUser,
    PointResult,
    Requests,
    Results,
    Step,
    scrub,
)
from recipe_toolkit.results.records import whole
from recipe_toolkit.results.repeats import spreads
from recipe_toolkit.results.rules import Reason
from recipe_toolkit.results.search.model import SearchResult
from recipe_toolkit.results.steady import steady
from recipe_toolkit.results.vllm_bench import read_vllm_bench
from recipe_toolkit.slo import AGGREGATES

_READERS = {
    "aiperf": read_aiperf,
    "vllm-bench": read_vllm_bench,
    "lm-eval": read_lm_eval,
    "command": read_command,
}
_ENDED = ("done", "failed", "cancelled", "timeout", "preempted", "lost")


def point_result(
    plan: Plan,
    point: Point,
    artifacts: Path,
    exit_code: int,
    duration_s: float,
    pools: Mapping[str, Mapping[str, Any]],
    samples: Sequence[Sample] = (),
    ended: float | None = None,
) -> PointResult:
    """The result of one point, judged.

    ``artifacts``: the client's folder; ``duration_s``: life of the client's process; ``samples``: of what it took of
    its node; ``ended``: when it ended, on their clock. Never raises on what the client wrote: the point is invalid and
    says why.
    """
    reader = _READERS.get(point.client)
    figures = reader(artifacts) if reader else Figures(faults=(f"no reader for the client {point.client}",))
    result = _assemble(plan, point, figures, exit_code, duration_s, scrub(pools))
    result = dataclasses.replace(
        result,
        few_for=few_for(figures.requests.ok) if point.isl is not None else (),
        window=steady(figures.raw, point.concurrency),
        client_load=client_load(samples, *_span(figures, ended)),
        whole_answers=whole(figures.raw) or None,
    )
    reasons = [*judge(plan, point, result), *_wanted(point, figures), *_faults(figures)]
    return dataclasses.replace(
        result,
        valid=not reasons,
        reasons=tuple(reason.text for reason in reasons),
        rules=tuple(reason.rule for reason in reasons),
        notes=(*figures.notes, *remarks(plan, point, result)),
    )


def _wanted(point: Point, figures: Figures) -> Iterator[Reason]:
    """Warm-up that was asked for and did not happen, as far as the client records it."""
    if point.warmup and figures.warmup is not None and figures.warmup < point.warmup:
        said = f"{point.warmup} warm-up requests were wanted and {figures.warmup} were answered"
        yield Reason("warmup-missing", said)


def _faults(figures: Figures) -> Iterator[Reason]:
    yield from (Reason("client-files", fault) for fault in figures.faults)


def _span(figures: Figures, ended: float | None) -> tuple[float | None, float | None]:
    """When requests were in flight; of a client that does not say it, the last part of its life."""
    if figures.duration_s is None:
        return None, None
    if figures.began is not None:
        return figures.began, figures.began + figures.duration_s
    return None if ended is None else ended - figures.duration_s, ended


def build_results(
    plan: Plan,
    run_id: str,
    state: str | Mapping[str, Any],
    points: Sequence[PointResult],
    versions: Mapping[str, str] | None = None,
    images: Mapping[str, str | None] | None = None,
    search: Sequence[SearchResult] = (),
) -> Results:
    """All points of a run.

    ``state``: the run's state, or the whole of state.json, which also names the nodes. ``images``: what
    identifies each image, as far as the nodes have said.
    """
    known: Mapping[str, Any] = {"state": state} if isinstance(state, str) else state
    name = str(known.get("state") or "lost")
    message = known.get("message")
    reasons = _run_reasons(plan, name, message, points, search)
    return Results(
        run=run_id,
        recipe=plan.name,
        model=plan.served_name,
        engine=plan.engine,
        engine_version=plan.engine_version,
        simulated=plan.engine == "sim",
        rehearsal=plan.rehearsal,
        gpus=Gpus(plan.gpu, plan.device, plan.gpus.allocated, plan.gpus.working, dict(plan.gpus.by_role)),
        state=name,
        points_wanted=_points_wanted(plan, search),
        points=tuple(points),
        layout=_layout(plan),
        nodes=_hosts(plan, known.get("nodes")),
        versions={"recipe-toolkit": __version__, **_client_versions(points), **(versions or {})},
        images={image.reference: (images or {}).get(image.reference) for image in plan.images},
        setup=() if plan.rehearsal else tuple(Step(step.name, step.sha256) for step in plan.setup),
        slo=dict(plan.slo),
        published=plan.published,
        message=message if isinstance(message, str) else None,
        valid=False if reasons else (True if name in _ENDED else None),
        reasons=tuple(reasons),
        spread=spreads(points),
        search=tuple(search),
    )


def _assemble(
    plan: Plan,
    point: Point,
    figures: Figures,
    exit_code: int,
    duration_s: float,
    pools: Mapping[str, Mapping[str, Any]],
) -> PointResult:
    median = figures.tpot_ms.p50 if figures.tpot_ms else None
    return PointResult(
        id=point.id,
        client=Client(point.client, figures.version),
        artifacts=point.artifacts,
        exit_code=exit_code,
        endpoint=figures.endpoint,
        isl=dataclasses.replace(figures.isl, wanted_tokens=_mean(point.isl_min, point.isl)),
        osl=dataclasses.replace(figures.osl, wanted_tokens=_mean(point.osl_min, point.osl)),
        concurrency=point.concurrency,
        request_rate_rps=point.request_rate,
        requests=Requests(point.requests, figures.requests.ok, figures.requests.failed),
        duration_s=figures.duration_s,
        client_s=duration_s,
        ttft_ms=figures.ttft_ms,
        tpot_ms=figures.tpot_ms,
        itl_ms=figures.itl_ms,
        e2e_ms=figures.e2e_ms,
        requests_per_s=figures.requests_per_s,
        input_tps=figures.input_tps,
        output_tps=figures.output_tps,
        total_tps=figures.total_tps,
        input_tps_per_gpu=_per_gpu(plan, figures.input_tps),
        output_tps_per_gpu=_per_gpu(plan, figures.output_tps),
        total_tps_per_gpu=_per_gpu(plan, figures.total_tps),
        output_tps_per_user=PerUser(1000 / median if median else None, figures.per_user_tps),
        goodput_rps=figures.goodput_rps,
        good_request_ratio=figures.good_request_ratio,
        slo=_bounds(plan, figures) if point.accuracy is None else {},
        pools=pools,
        accuracy=held(plan, point, figures.accuracy),
        repeat_of=point.repeat_of,
        repeat=point.repeat,
    )


def _mean(shortest: int | None, longest: int | None) -> int | None:
    return longest if shortest is None or longest is None else round((shortest + longest) / 2)


def _per_gpu(plan: Plan, rate: float | None) -> PerGpu:
    def over(gpus: int) -> float | None:
        return rate / gpus if rate is not None and gpus else None

    by_role = {role: over(gpus) for role, gpus in plan.gpus.by_role.items()}
    return PerGpu(over(plan.gpus.allocated), over(plan.gpus.working), by_role)


def _bounds(plan: Plan, figures: Figures) -> dict[str, Bound]:
    """The bounds on means and percentiles; those on single requests are the goodput's."""
    found = {}
    for name, bound in plan.slo.items():
        figure = AGGREGATES.get(name)
        if figure is not None:
            value = getattr(getattr(figures, figure.stat), figure.key, None)
            seen = None if value is None else value * figure.scale
            found[name] = Bound(bound, seen, None if seen is None else seen <= bound)
    return found


def _points_wanted(plan: Plan, search: Sequence[SearchResult]) -> int:
    """Points of the plan; of a search those that it asked for."""
    return sum(point.search is None for point in plan.benchmarks) + sum(item.points_measured for item in search)


def _run_reasons(
    plan: Plan, state: str, message: object, points: Sequence[PointResult], search: Sequence[SearchResult]
) -> list[str]:
    reasons = []
    # A search goes beyond what the engines bear: its answer says which points it rests on.
    searched = {name: item.benchmark for item in search for load in item.loads for name in load.points}
    invalid = [point.id for point in points if not point.valid and point.id not in searched]
    if invalid:
        reasons.append(f"{len(invalid)} of {_points_wanted(plan, search)} points invalid: {', '.join(invalid)}")
    if state not in _ENDED:
        return reasons
    counted = {searched.get(point.id) for point in points if point.valid}
    reasons += [f"no point of the search {item.benchmark} counts" for item in search if item.benchmark not in counted]
    measured = {*(point.id for point in points), *(item.benchmark for item in search)}
    missing = [point.id for point in plan.benchmarks if point.id not in measured]
    if missing:
        reasons.append(f"{len(missing)} of {len(plan.benchmarks)} points not measured: {', '.join(missing)}")
    if state != "done":
        # The message may go on with the last lines of a log; the first line says what happened.
        first = str(message).partition("\n")[0].rstrip(": ") if message else ""
        reasons.append(f"the run is {state}: {first}" if first else f"the run is {state}")
    return reasons


def _layout(plan: Plan) -> dict[str, Layout]:
    roles = dict.fromkeys(instance.role for instance in plan.instances)
    groups = {role: [item for item in plan.instances if item.role == role] for role in roles}
    return {
        role: Layout(len(items), **{key: getattr(items[0], key) for key in ("tp", "pp", "dp", "dcp", "ep")})
        for role, items in groups.items()
    }


def _hosts(plan: Plan, said: object) -> tuple[Host, ...]:
    known = {item.get("index"): item for item in said if isinstance(item, dict)} if isinstance(said, list) else {}
    return tuple(
        Host(node.index, known.get(node.index, {}).get("name"), known.get(node.index, {}).get("address"))
        for node in plan.nodes
    )


def _client_versions(points: Sequence[PointResult]) -> dict[str, str]:
    return {point.client.name: point.client.version for point in points if point.client.version}
