"""recipe submit --rehearse: a real recipe's plan from end to end, with no GPU, no model and no vLLM."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from plankit import RECIPES, ROOT
from support import require

ASK = ROOT / "tests" / "data" / "ask.py"
NIXL = ROOT / "recipes" / "tiny" / "cpu-1p1d-nixl.yaml"
CLIENT = f"benchmarks=[{{client: command, name: ask, command: [{sys.executable}, {ASK}]}}]"

# What a recipe for a real cluster has, and a rehearsal must do without or take as it is.
REAL = [
    "model={path: hf:org/model@1a2b3c, served_name: m, tokenizer: hf:org/tokenizer}",
    "engine.image=vllm/vllm-openai@sha256:0000",
    "engine.args={max-model-len: 1M, max-num-batched-tokens: 16k, all2all-backend: deepep_low_latency}",
    "engine.env={PYTHONPATH: /opt/plugins}",
]


@pytest.fixture
def local(recipe):
    """Rehearses on this machine and waits for the end; what still runs afterwards is cancelled."""
    there = Path(sys.executable).with_name("vllm-router").exists() or shutil.which("vllm-router") is not None
    require("aiperf", there, f"no vllm-router beside {sys.executable} or on PATH: scripts/setup")

    def rehearse(path, sets=()):
        changes = [word for item in (CLIENT, *sets) for word in ("--set", item)]
        done = recipe("submit", path, "-c", "local", "--rehearse", *changes, "--wait", "--json", timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    rehearse.recipe = recipe
    yield rehearse
    if (recipe.folder / "runs").exists():
        for run in (recipe.folder / "runs").iterdir():
            recipe("cancel", run)


@pytest.fixture
def site(recipe):
    """A Slurm of nodes with GPUs, as a profile."""
    profile = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "runs", "slurm": {"partition": "big"}}
    (recipe.folder / "site.yaml").write_text(json.dumps(profile))
    return recipe


def test_every_word_about_it_says_rehearsal(local):
    """vLLM's recipe for a CPU, whose model the profile ``local`` does not know."""
    state = local(NIXL)
    assert (state["state"], state["rehearsal"], state["valid"]) == ("done", True, True)
    folder = Path(state["folder"])
    assert "-rehearsal-" in folder.name
    assert json.loads((folder / "job.json").read_text())["rehearsal"] is True
    assert json.loads((folder / "plan.json").read_text())["rehearsal"] is True
    assert "kind: vllm" in (folder / "recipe.lock.yaml").read_text()
    results = json.loads((folder / "results.json").read_text())
    assert (results["rehearsal"], results["simulated"], results["engine"]) == (True, True, "sim")
    run = local.recipe
    assert "done (rehearsal)" in run("list").stdout
    assert json.loads(run("list", "--json").stdout)["rehearsal"] is True
    assert run("status", "last").stdout.startswith(f"{folder.name}: rehearsal done\n")
    table = run("report", "last").stdout
    assert table.startswith("tiny-cpu-1p1d-nixl: rehearsal done, valid\nREHEARSAL ON THE SIMULATED ENGINE: ")
    assert 'class="banner warn"><strong>Rehearsal' in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "sets", "nodes", "processes", "pairs"),
    [("pd-1p-tep4-17d-tp4", [], 18, 19, 17), ("pd-7p-dp4-2d-dp16", REAL, 15, 16, 32)],
)
def test_large_shapes_on_as_many_local_nodes(local, name, sets, nodes, processes, pairs):
    """72 and 60 GPUs: every DP rank answers and takes part in the KV transfer, and the client in the end."""
    state = local(RECIPES / f"{name}.yaml", sets)
    assert len({node["address"] for node in state["nodes"]}) == nodes
    assert len([process for process in state["processes"] if not process.startswith("bench-")]) == processes
    folder = Path(state["folder"])
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["pairs"] for event in events if event["event"] == "proved"] == [pairs]
    assert state["points"] == {"ask": "done"}
    (point,) = json.loads((folder / "results.json").read_text())["points"]
    taken = point["pools"]["decode"]["prompt_tokens_by_source"]
    assert taken["external_kv_transfer"] > 0
    assert taken["local_compute"] == 0


def test_a_dry_run_asks_for_nodes_and_no_gpu(site):
    words = ("submit", RECIPES / "pd-7p-dp4-2d-dp16.yaml", "-c", "./site.yaml", "--dry-run")
    done = site(*words, "--rehearse")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "rehearsal: the simulated engine in place of vLLM 0.32.0, 15 nodes without GPUs; "
        "no figure will be a measurement\n"
    )
    asked = [line for line in done.stdout.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --nodes=15", "#SBATCH --partition=big"} <= set(asked)
    assert not any("gpu" in line or "gres" in line or "exclusive" in line for line in asked)
    assert any(line.startswith("#SBATCH --job-name=pd-7p-dp4-2d-dp16-rehearsal-") for line in asked)
    real = site(*words, "--set", "model.path=/models/moe")
    assert "#SBATCH --gres=gpu:4\n" in real.stdout
    assert "rehearsal" not in real.stdout + real.stderr


def test_a_rehearsal_that_slurm_refuses_is_listed_as_one(site, fake_slurm):
    fake_slurm.says("sbatch", err="sbatch: error: Batch job submission failed: Invalid qos specification\n", code=1)
    assert site("submit", NIXL, "-c", "./site.yaml", "--rehearse").returncode == 1
    (state,) = [json.loads(line) for line in site("list", "-c", "./site.yaml", "--json").stdout.splitlines()]
    assert (state["state"], state["rehearsal"]) == ("failed", True)


def test_submitted_is_told_as_a_rehearsal(site, fake_slurm):
    fake_slurm.says("sbatch", "4711\n")
    done = site("submit", NIXL, "-c", "./site.yaml", "--rehearse", "--json")
    assert json.loads(done.stdout)["rehearsal"] is True
    fake_slurm.holds("4711|PENDING|Priority||0|0")
    assert "pending (rehearsal)" in site("list", "-c", "./site.yaml").stdout


def test_plan_shows_it(site):
    done = site("plan", RECIPES / "base.yaml", "--rehearse")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("rehearsal: the simulated engine in place of vLLM 0.32.0")
    assert "<python> -m recipe_toolkit.sim serve moe " in done.stdout
    data = json.loads(site("plan", RECIPES / "base.yaml", "--rehearse", "--json").stdout)
    assert (data["engine"], data["rehearsal"]) == ("sim", True)


@pytest.mark.parametrize("name", ["srt1-lossless", "srt2-disagg"])
def test_another_tools_recipe_runs_as_it_is(local, name):
    """From its own file to requests through prefill and decode; of the second, only its own client is replaced."""
    shutil.copy(ROOT / "tests" / "data" / "foreign" / f"{name}.yaml", local.recipe.folder)
    state = local(f"{name}.yaml", ["router.policy=round_robin"] if name == "srt2-disagg" else [])
    assert (state["state"], state["valid"]) == ("done", True)
    lock = (Path(state["folder"]) / "recipe.lock.yaml").read_text()
    assert f"url: {name}.yaml" in lock


@pytest.mark.parametrize(
    ("role", "fault", "said"),
    [
        ("prefill", "{kind: lost_kv}", "prove: KV from prefill-0 to decode-0: still not after"),
        ("decode", "{kind: wrong_model, instance: 0, rank: 0}", "decode-0 on node"),
        ("decode", "{kind: leak_kv, instance: 9}", None),
    ],
)
def test_a_fault_of_a_role_is_found_in_a_rehearsal(local, role, fault, said):
    words = ["--set", CLIENT, "--set", f"roles.{role}.sim.fault={fault}", "--set", "deadlines={prove: 5, ready: 60}"]
    done = local.recipe("submit", NIXL, "-c", "local", "--rehearse", *words, "--wait", "--json", timeout=300)
    state = json.loads(done.stdout)
    assert (done.returncode, state["state"]) == ((0, "done") if said is None else (100, "failed")), done.stderr
    assert said is None or said in state["message"]


def test_without_vllm_it_names_the_other_client(recipe):
    """Only ``vllm bench serve`` needs vLLM in a rehearsal, and the shipped recipes of large systems measure with it."""
    done = recipe(
        "submit",
        NIXL,
        "-c",
        "local",
        "--rehearse",
        "--set",
        "benchmarks.0.client=vllm-bench",
        "--wait",
        PATH="/usr/bin:/bin",
    )
    assert done.returncode == 100, done.stderr
    assert "has no vllm, neither beside" in done.stdout
    assert "; or measure with AIPerf: --set benchmarks.0.client=aiperf" in done.stdout
