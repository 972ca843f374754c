"""Whole plans, as data and as people see them."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import pytest

from plankit import CASES, SHIPPED, bindings, plan_file, plan_of
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.draw import draw
from recipe_toolkit.plan.model import plan_from_json

SCHEMA = json.loads((files("recipe_toolkit") / "schemas" / "plan.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", CASES)
def test_plan(name, golden):
    plan = plan_of(name)
    data = plan.to_json()
    text = json.dumps(data, indent=2) + "\n"
    golden(f"plan/{name}.json", text)
    golden(f"plan/{name}.txt", draw(plan))
    VALIDATOR.validate(json.loads(text))
    assert plan_from_json(json.loads(text)) == plan


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_plan_of_shipped_recipe(path, golden):
    plan = plan_file(path, "plain")
    VALIDATOR.validate(json.loads(json.dumps(plan.to_json())))
    golden(f"plan/shipped/{path.parent.name}-{path.stem}.txt", draw(plan))


@pytest.mark.parametrize("name", ["docker", "pd-over-nodes", "pd-share-node", "dp16-hybrid"])
def test_bound_commands(name, golden):
    """What would be executed, with addresses, ports and GPU ids filled in."""
    plan = plan_of(name)
    found = bindings(plan)
    lines = []
    for process in [*plan.processes, *(point.process for point in plan.benchmarks)]:
        bound = bind_process(process, found)
        lines += [f"{bound.name} on node {process.node}"]
        lines += [f"  {key}={value}" for key, value in bound.env.items()]
        lines += [f"  {word}" for word in bound.argv]
        lines += [f"  [{block}] {ports}" for block, ports in bound.ports.items()]
    golden(f"plan/bound/{name}.txt", "\n".join(lines) + "\n")
