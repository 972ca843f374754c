"""Plans, points and results for the tests of results and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from recipe_toolkit.plan.model import Deadlines as PlanDeadlines
from recipe_toolkit.plan.model import Gpus, Instance, Node, Plan, Point, Process, Proof

DATA = Path(__file__).parent / "data"
SCHEMA = json.loads(
    (Path(__file__).parents[1] / "slurm/recipe_toolkit/schemas/results.json").read_text(encoding="utf-8")
)


def check_schema(document: Any) -> None:
    """The document is what schemas/results.json says, and JSON holds no NaN."""
    json.dumps(document, allow_nan=False)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def make_point(name: str = "c2", client: str = "aiperf", **changes: Any) -> Point:
    given: dict[str, Any] = {"isl": 64, "osl": 16, "concurrency": 2, "requests": 12, "warmup": 2}
    if client == "command":
        given = {}
    process = Process(name=f"bench-{name}", role="client", instance=0, rank=0, node=0, argv=("true",))
    return Point(
        id=name, client=client, process=process, artifacts=f"bench/{name}", timeout_s=60.0, **{**given, **changes}
    )


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
