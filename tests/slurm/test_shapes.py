"""Whole systems on the simulated engine, through the real router and the real client."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from slurm_site import LONG, Site, small_recipe
from support import require

pytestmark = [pytest.mark.slurm, pytest.mark.aiperf]

RECIPES = Path(__file__).parents[2] / "recipes" / "tiny"


@pytest.fixture
def site(slurm_rig, tmp_path):
    for program in ("aiperf", "vllm-router"):
        there = Path(sys.executable).with_name(program).exists() or shutil.which(program) is not None
        require("aiperf", there, f"no {program} beside {sys.executable} or on PATH: scripts/setup")
    return Site(slurm_rig, tmp_path)


def test_four_prefill_instances_and_one_decode_on_three_nodes_of_eight(site):
    done = site.rig.recipe(
        "submit", RECIPES / "sim-4p1d-24gpu.yaml", "--cluster", site.profile, "--follow", "--json", timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads(done.stdout)
    assert state["valid"] is True
    # An earlier test's job may still be leaving a node.
    assert len({node["name"] for node in state["nodes"]} & {"n1", "n2", "n3", "n4"}) == len(state["nodes"]) == 3
    roles = [name.split("-")[0] for name in state["processes"]]
    assert roles.count("prefill") == 4
    assert roles.count("decode") == 1
    assert set(state["points"].values()) == {"done"}
    results = json.loads((Path(state["folder"]) / "results.json").read_text())
    assert results["simulated"] is True
    assert results["gpus"] == {
        "name": "simulated",
        "device": "gpu",
        "allocated": 24,
        "working": 24,
        "by_role": {"prefill": 16, "decode": 8},
    }
    for point in results["points"]:
        assert point["requests"]["failed"] == 0
        decode = point["pools"]["decode"]
        sources = {"local_compute": 0.0, "local_cache_hit": 0.0, "external_kv_transfer": decode["prompt_tokens"]}
        assert decode["prompt_tokens"] > 0
        assert decode["prompt_tokens_by_source"] == sources


def ports(run):
    """(node, port) of everything that a run reserved."""
    bound = json.loads((run.folder / "attempts" / "0" / "bound.json").read_text())
    nodes = {
        process["name"]: process["node"] for process in json.loads((run.folder / "plan.json").read_text())["processes"]
    }
    return {
        (nodes[name], port)
        for name, process in bound["processes"].items()
        for block in process["ports"].values()
        for port in block
    }


def test_two_runs_on_the_same_nodes_share_no_port(site, tmp_path):
    """Both are measuring at the same time, so all of their servers stand beside each other."""
    shared = Site(site.rig, tmp_path, exclusive=False, gpus="none", directives={"mem": 100, "cpus-per-task": 1})
    role = {"instances": 1, "parallel": {"tp": 2, "dp": 2}}
    pools = {"roles": {"prefill": role, "decode": role}, "kv_transfer": {"connector": "nixl"}}
    recipe = small_recipe(LONG, router={"kind": "vllm-router"}, **pools)
    runs = [shared.start(recipe) for _ in range(2)]
    for run in runs:
        run.reaches("bench")
    assert [run.record["state"] for run in runs] == ["running", "running"]
    first, second = (ports(run) for run in runs)
    assert {node for node, _ in first} == {node for node, _ in second} == {0, 1, 2, 3}
    assert not first & second
    for run in runs:
        assert shared.recipe("cancel", run.id).returncode == 0
    for run in runs:
        run.leaves_nothing()
