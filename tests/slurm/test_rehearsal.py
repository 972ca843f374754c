"""A rehearsal of a recipe for GPUs on a cluster that has none to give."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from plankit import RECIPES, ROOT
from slurm_site import Site
from support import require

pytestmark = [pytest.mark.slurm, pytest.mark.aiperf]

CLIENT = (
    f"benchmarks=[{{client: command, name: ask, command: [{sys.executable}, {ROOT / 'tests' / 'data' / 'ask.py'}]}}]"
)


def test_a_recipe_for_sixteen_gpus_is_rehearsed_on_four_nodes_without_any(slurm_rig, tmp_path):
    there = Path(sys.executable).with_name("vllm-router").exists() or shutil.which("vllm-router") is not None
    require("aiperf", there, f"no vllm-router beside {sys.executable} or on PATH: scripts/setup")
    site = Site(slurm_rig, tmp_path, gres_name="gpu:gb300", directives={"cpus-per-gpu": 1})
    words = ("submit", RECIPES / "pd-over-nodes.yaml", "--cluster", site.profile, "--set", CLIENT, "--json")
    refused = slurm_rig.recipe(*words)
    assert refused.returncode == 1, "the cluster has such GPUs: this test shows nothing"
    done = slurm_rig.recipe(*words, "--rehearse", "--wait", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads(done.stdout)
    assert (state["state"], state["rehearsal"]) == ("done", True)
    assert [node["name"] for node in state["nodes"]] == ["n1", "n2", "n3", "n4"]
    job = slurm_rig.exec("scontrol", "show", "job", state["job_id"]).stdout
    assert "gres" not in job.lower()
    assert "TresPerNode" not in job
    assert "OverSubscribe=OK" in job  # NO: the nodes would be its alone
    assert "JobName=pd-over-nodes-rehearsal-" in job
    results = json.loads((Path(state["folder"]) / "results.json").read_text())
    assert (results["rehearsal"], results["gpus"]["working"]) == (True, 16)
