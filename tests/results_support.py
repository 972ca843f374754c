"""Plans, points and results for the tests of results and reports."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema

from recipe_toolkit.plan.model import Deadlines as PlanDeadlines
from recipe_toolkit.plan.model import Gpus, Instance, Node, Plan, Point, Process, Proof
from recipe_toolkit.results.collect import build_results, point_result
from recipe_toolkit.results.manifest import write_manifest
from recipe_toolkit.results.model import PerGpu, PerUser, PointResult, Results, Stat
from recipe_toolkit.results.pools import PoolGauges, pool_metrics
from recipe_toolkit.rundir import RunDir, read_json, write_json

DATA = Path(__file__).parent / "data"
SCHEMA = json.loads(
    (Path(__file__).parents[1] / "slurm/recipe_toolkit/schemas/results.json").read_text(encoding="utf-8")
)


def check_schema(document: Any) -> None:
    """The document is what schemas/results.json says, and JSON holds no NaN."""
    json.dumps(document, allow_nan=False)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def make_point(name: str = "c2", client: str = "aiperf", **changes: Any) -> Point:
    given: dict[str, Any] = {"artifacts": f"bench/{name}", "timeout_s": 60.0}
    lengths: dict[str, Any] = {"isl": 64, "osl": 16, "concurrency": 2, "requests": 12, "warmup": 2}
    if client != "command":
        given |= lengths
    process = Process(name=f"bench-{name}", role="client", instance=0, rank=0, node=0, argv=("true",))
    return Point(id=name, client=client, process=process, **{**given, **changes})


def make_plan(*points: Point, pd: bool = False, engine: str = "vllm", **changes: Any) -> Plan:
    if pd:
        shapes = [("prefill", 0, 1), ("prefill", 1, 1), ("decode", 0, 2)]
        by_role = {"prefill": 2, "decode": 2}
    else:
        shapes, by_role = [("serve", 0, 4)], {"serve": 4}
    given: dict[str, Any] = {
        "name": "tiny",
        "engine": engine,
        "engine_version": "0.32.0",
        "served_name": "tiny-model",
        "device": "gpu",
        "gpu": "H200",
        "gpus_per_node": 4,
        "time_limit_s": 600,
        "nodes": (Node(0, 4), Node(1, 4)),
        "instances": tuple(
            Instance(role, index, (f"{role}-{index}",), tp=1, pp=1, dp=size, size=size) for role, index, size in shapes
        ),
        "processes": (),
        "benchmarks": points or (make_point(),),
        "entry": "router" if pd else "serve-0",
        "proof": Proof("kv_transfer" if pd else "generate", 64),
        "deadlines": PlanDeadlines(),
        "gpus": Gpus(allocated=8, working=4, by_role=by_role),
    }
    return Plan(**{**given, **changes})


def recorded_metrics(name: str) -> dict[str, str]:
    """Prometheus texts of a prefill and a decode engine of vLLM 0.32, before and after requests."""
    folder = DATA / "metrics"
    return {process: (folder / f"{name}-{process}.txt").read_text() for process in ("prefill-0", "decode-0")}


def scaled(stat: Stat | None, factor: float) -> Stat | None:
    return None if stat is None else Stat(*(value and value * factor for value in dataclasses.astuple(stat)))


def make_run(engine: str = "vllm", *, slo: bool = True, **changes: Any) -> tuple[Plan, Results]:
    """A P/D run of five points made from recorded artifacts, the fourth of which is invalid."""
    loads = (1, 2, 8, 32, 128)
    points = [make_point(f"isl64-osl16-c{load}", concurrency=load) for load in loads]
    bounds = {"ttft_mean_s": 0.3, "tpot_mean_ms": 20.0} if slo else {}
    plan = make_plan(*points, pd=True, engine=engine, name="tiny-2p1d", slo=bounds, **changes)
    gauges = PoolGauges()
    for name in ("before", "after"):
        gauges.add(recorded_metrics(name))
    measured = []
    for index, point in enumerate(points):
        bad = index == 3
        scrapes = ("after", "silent") if bad else ("before", "after")
        pools = pool_metrics(*(recorded_metrics(name) for name in scrapes), gauges)
        folder = DATA / "aiperf" / ("errors" if bad else "ok")
        result = point_result(plan, point, folder, 0, 9.5, pools)
        measured.append(_slowed(result, 1 + index * 0.55, 2.3**index))
    state = {
        "state": "done",
        "message": None,
        "nodes": [
            {"index": 0, "name": "node-a", "address": "10.0.0.1"},
            {"index": 1, "name": "node-b", "address": "10.0.0.2"},
        ],
    }
    versions = {"recipe-toolkit": "1.2.3"}
    return plan, build_results(plan, "2026-11-29-163058-tiny-2p1d-ab12", state, measured, versions)


def _slowed(result: PointResult, latency: float, rate: float) -> PointResult:
    """The point as if under more load."""
    user = result.output_tps_per_user
    per_gpu = result.total_tps_per_gpu
    return dataclasses.replace(
        result,
        ttft_ms=scaled(result.ttft_ms, latency**2),
        tpot_ms=scaled(result.tpot_ms, latency),
        itl_ms=scaled(result.itl_ms, latency),
        e2e_ms=scaled(result.e2e_ms, latency),
        input_tps=(result.input_tps or 0) * rate,
        output_tps=(result.output_tps or 0) * rate,
        total_tps=(result.total_tps or 0) * rate,
        total_tps_per_gpu=PerGpu(
            (per_gpu.allocated or 0) * rate,
            (per_gpu.working or 0) * rate,
            {role: (value or 0) * rate for role, value in per_gpu.by_role.items()},
        ),
        output_tps_per_user=PerUser((user.from_median_tpot or 0) / latency, (user.mean_of_inverse_tpot or 0) / latency),
    )


EVENTS: list[dict[str, Any]] = [
    {"t": 1795969858.0, "event": "phase", "phase": "bind"},
    {"t": 1795969858.3, "event": "node_joined", "node": 0, "host": "node-a", "address": "10.0.0.1"},
    {"t": 1795969860.0, "event": "phase", "phase": "launch"},
    {"t": 1795969861.0, "event": "process_started", "process": "prefill-0", "node": 0, "pid": 123},
    {"t": 1795969862.0, "event": "phase", "phase": "ready"},
    {"t": 1795969918.0, "event": "phase", "phase": "prove"},
    {"t": 1795969928.0, "event": "proved", "pairs": 2},
    {"t": 1795969929.0, "event": "phase", "phase": "bench"},
    {"t": 1795970048.0, "event": "point_finished", "point": "isl64-osl16-c1", "valid": True, "reasons": []},
    {"t": 1795970049.0, "event": "phase", "phase": "drain"},
    {"t": 1795970054.0, "event": "run_ended", "state": "done"},
]


def make_folder(tmp_path: Path) -> RunDir:
    """The folder of a run that is done, as its lead leaves it."""
    plan, results = make_run(
        processes=tuple(
            Process(name=name, role=name[:-2], instance=0, rank=0, node=node, argv=("vllm", "serve", "tiny"), gpus=(0,))
            for node, name in enumerate(("prefill-0", "decode-0"))
        )
    )
    run = RunDir(tmp_path / "runs" / results.run)
    for folder in (run.bench("isl64-osl16-c1"), run.job_folder, run.attempt(0).node(0)):
        folder.mkdir(parents=True)
    (run.bench("isl64-osl16-c1") / "profile_export_aiperf.json").write_text("{}")
    run.attempt(0).agent_log(0).write_text("hello\n")
    run.recipe_lock.write_text("name: tiny\n")
    run.token.write_text("s3cr3t")
    write_json(run.plan, plan.to_json())
    write_json(run.results, results.to_json())
    write_json(
        run.job, {"scheduler": "local", "job_id": "1", "host": "node-a", "pid": 0, "start_ticks": 0, "submitted": 0}
    )
    state = {"schema": 1, "state": "done", "phase": "end", "attempt": 0, "updated": 1795970054.0, "message": None}
    write_json(run.state, {**state, "valid": False, "nodes": [], "processes": {}, "points": {}})
    run.events.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    write_manifest(run)
    return run


def many(run: RunDir, points: int) -> None:
    """So many points, spread over both axes, as if of one run."""
    results, plan = read_json(run.results), read_json(run.plan)
    made, planned = [], []
    for index in range(points):
        point: dict[str, Any] = copy.deepcopy(results["points"][index % len(results["points"])])
        wanted = copy.deepcopy(plan["benchmarks"][index % len(plan["benchmarks"])])
        point["id"] = wanted["id"] = f"isl64-osl16-c{index}"
        point["concurrency"] = index
        if point["valid"]:
            point["output_tps_per_user"]["from_median_tpot"] *= 1 + index % 97 / 97
            point["total_tps_per_gpu"]["working"] *= 1 + index % 89 / 89
        made.append(point)
        planned.append(wanted)
    write_json(run.results, {**results, "points": made, "points_wanted": points})
    write_json(run.plan, {**plan, "benchmarks": planned})
