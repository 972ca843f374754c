"""Every shipped recipe for GPUs, rehearsed on as many local nodes as it has."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from plankit import ROOT, SHIPPED
from recipe_toolkit.recipe_loader import load_recipe
from support import require

ASK = ROOT / "tests" / "data" / "ask.py"
CLIENT = f"benchmarks=[{{client: command, name: ask, command: [{sys.executable}, {ASK}]}}]"
LOADED = {path: load_recipe(path) for path in SHIPPED if path.parent.name != "tiny"}
ON_GPUS = [
    path
    for path, loaded in LOADED.items()
    if loaded.recipe.engine.kind == "vllm" and "sweep" not in loaded.document.data
]


@pytest.mark.parametrize("path", ON_GPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shipped_recipe_is_rehearsed_from_end_to_end(recipe, path):
    there = Path(sys.executable).with_name("vllm-router").exists() or shutil.which("vllm-router") is not None
    require("aiperf", there, f"no vllm-router beside {sys.executable} or on PATH: scripts/setup")
    done = recipe("submit", path, "-c", "local", "--rehearse", "--set", CLIENT, "--wait", "--json", timeout=300)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        state = json.loads(done.stdout)
        assert (state["state"], state["rehearsal"], state["valid"]) == ("done", True, True)
        loaded = load_recipe(path).recipe
        gpus = sum(role.instances * role.parallel.size for role in loaded.roles)
        assert len(state["nodes"]) == -(-gpus // loaded.resources.gpus_per_node)
    finally:
        recipe("cancel", "last")


def test_three_variants_of_the_shipped_sweep_are_rehearsed(recipe):
    """Each as a run of its own, on three local nodes; one table of all."""
    there = Path(sys.executable).with_name("vllm-router").exists() or shutil.which("vllm-router") is not None
    require("aiperf", there, f"no vllm-router beside {sys.executable} or on PATH: scripts/setup")
    path = ROOT / "recipes" / "glm-5.2" / "b300-ablation.yaml"
    words = ("submit", path, "-c", "local", "--rehearse", "--set", CLIENT, "--only", "*mtp*", "--at-once", "1")
    done = recipe(*words, "--wait", "--json", timeout=600)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        states = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(state["state"], state["rehearsal"], state["valid"]) for state in states] == [("done", True, True)] * 3
        table = json.loads(recipe("report", "--sweep", "last", "--json").stdout)
        assert [variant["id"] for variant in table["variants"]] == ["mtp1", "mtp2", "no-mtp"]
        assert [len(variant["points"]) for variant in table["variants"]] == [1, 1, 1]
        plans = [json.loads((Path(state["folder"]) / "plan.json").read_text()) for state in states]
        drafts = [
            sum("num_speculative_tokens" in json.dumps(item["argv"]) for item in plan["processes"]) for plan in plans
        ]
        assert drafts[2] == 0 < drafts[0] == drafts[1]
    finally:
        recipe("cancel", "--sweep", "last")
