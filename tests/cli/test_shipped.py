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
ON_GPUS = [path for path in SHIPPED if load_recipe(path).recipe.engine.kind == "vllm" and path.parent.name != "tiny"]


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
