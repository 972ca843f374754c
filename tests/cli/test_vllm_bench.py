"""The same recipe measured by AIPerf and by `vllm bench serve`: one key apart, results side by side."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import jsonschema
import pytest

from recipe_toolkit.document import dump_yaml
from support import require

pytestmark = [pytest.mark.vllm, pytest.mark.aiperf]

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "slurm/recipe_toolkit/schemas/results.json").read_text(encoding="utf-8"))
LOAD = {"isl": 300, "osl": 24, "concurrency": [3], "requests_per_concurrency": 6, "warmup": 3}


@pytest.fixture
def site(recipe):
    """A profile of this machine, whose clients are the real ones."""
    venv = Path(os.environ.get("RECIPE_VLLM_VENV", ROOT / ".cache" / "vllm-cpu"))
    require("vllm", (venv / "bin" / "vllm").exists(), f"no vLLM in {venv}: scripts/install-vllm-cpu {venv}")
    tools = {"vllm-bench": {"venv": str(venv)}}
    for name, variable in (("aiperf", "RECIPE_AIPERF"), ("vllm-router", "RECIPE_VLLM_ROUTER")):
        beside = Path(sys.executable).with_name(name)
        found = os.environ.get(variable) or (str(beside) if beside.exists() else shutil.which(name))
        require("aiperf", found is not None, f"{name} is not installed; {variable} may name it")
        tools[name] = {"path": str(found)}
    # AIPerf has to be kept from this variable, and vLLM's client has to live with it.
    profile = {"schema": 1, "name": "here", "scheduler": "local", "runs": str(recipe.folder / "runs"), "tools": tools}
    path = recipe.folder / "here.yaml"
    path.write_text(dump_yaml({**profile, "env": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}}))
    return path


def test_both_clients_see_the_same_engines(recipe, site):
    what = ["submit", ROOT / "recipes/tiny/sim-2p1d.yaml", "-c", site, "--json"]
    what += ["--set", f"benchmarks={json.dumps([{'client': client, **LOAD} for client in ('aiperf', 'vllm-bench')])}"]
    done = recipe(*what)
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)["folder"])
    done = recipe("wait", "last", "--timeout", "6m", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((run / "results.json").read_text())
    jsonschema.validate(results, SCHEMA)
    assert results["valid"], results["reasons"]
    one, other = results["points"]
    assert (one["client"]["name"], other["client"]["name"]) == ("aiperf", "vllm-bench")
    for point in (one, other):
        assert (point["valid"], point["reasons"]) == (True, [])
        assert point["requests"] == {"wanted": 18, "ok": 18, "failed": 0}
        assert point["isl"] == {"wanted_tokens": 300, "seen_mean_tokens": 300, "counted_by": "server"}
        assert point["osl"] == {"wanted_tokens": 24, "seen_mean_tokens": 24, "counted_by": "server"}
        assert point["good_request_ratio"] is not None
        assert point["slo"]["ttft_mean_s"]["met"]
        # The engines' own counters: every prompt came from the prefill side, and as long as asked.
        assert point["pools"]["decode"]["generation_tokens"] >= 18 * 24
    for figure in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert min(one[figure]["mean"], other[figure]["mean"]) > 0, figure
    # Of a client that was done in a second or two, nothing is sampled.
    fields = {*one, *other} - {"client_load"}
    assert [key for key in fields if (one.get(key) is None) != (other.get(key) is None)] == []
