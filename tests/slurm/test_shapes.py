"""Whole systems on the simulated engine, through the real router and the real client."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from slurm_site import Site
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
    assert [node["name"] for node in state["nodes"]] == ["n1", "n2", "n3"]
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
