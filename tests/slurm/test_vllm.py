"""Real vLLM on CPU, over the nodes of the private Slurm, from a recipe to results.

Each run serves the tiny model, is measured by real AIPerf, and answers four fixed prompts at
temperature 0; however the model is spread over nodes, the answers must be the same tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_rig import Rig
from support import require

pytestmark = [pytest.mark.slurm, pytest.mark.vllm, pytest.mark.aiperf]

ROOT = Path(__file__).parents[2]
ASK = ROOT / "tests" / "data" / "ask.py"
PROMPTS = {"client": "command", "name": "answers", "command": [sys.executable, str(ASK)]}


@pytest.fixture(scope="module")
def vllm_venv() -> Path:
    """The virtual environment with vLLM for CPU."""
    venv = Path(os.environ.get("RECIPE_VLLM_VENV", ROOT / ".cache" / "vllm-cpu"))
    require("vllm", (venv / "bin" / "vllm").exists(), f"no vLLM in {venv}: scripts/install-vllm-cpu {venv}")
    require("aiperf", Path(sys.executable).with_name("aiperf").exists(), "no AIPerf: scripts/setup")
    return venv


@pytest.fixture(scope="module")
def site(vllm_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of the private Slurm, with vLLM's environment and the tiny model."""
    folder = tmp_path_factory.mktemp("site")
    model = folder / "models" / "tiny"
    subprocess.run(
        [vllm_venv / "bin" / "python", ROOT / "scripts" / "make-tiny-model", model], check=True, capture_output=True
    )
    profile = folder / "site.yaml"
    slept = tmp_path_factory.mktemp("yield") / "sched_yield.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", slept, ROOT / "tests" / "data" / "sched_yield.cpp"], check=True)
    data = {
        "schema": 1,
        "name": "site",
        "scheduler": "slurm",
        "runs": str(folder / "runs"),
        "models": {"tiny": str(model)},
        "tools": {"vllm": {"venv": str(vllm_venv)}},
        "interface": "eth0",
        "env": {"UCX_NET_DEVICES": "eth0", "LD_PRELOAD": str(slept)},
        "slurm": {"gpus": "none"},
    }
    profile.write_text(json.dumps(data))
    return profile


class Measured:
    """A run that has ended well: its results, its answers and its bound commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, Any] = json.loads((folder / "results.json").read_text())
        self.answers: dict[str, list[int]] = json.loads((folder / "bench" / "answers" / "answers.json").read_text())
        bound = json.loads((folder / "attempts" / "0" / "bound.json").read_text())["processes"]
        self.argvs = {name: process["argv"] for name, process in bound.items() if not name.startswith("bench-")}

    @property
    def point(self) -> dict[str, Any]:
        """AIPerf's point."""
        point: dict[str, Any] = next(point for point in self.results["points"] if point["client"]["name"] == "aiperf")
        return point


def run_recipe(rig: Rig, site: Path, name: str, folder: Path, *benchmarks: dict[str, Any], **fields: Any) -> Measured:
    """Run a shipped recipe with benchmarks and further fields of its own."""
    recipe = folder / f"{name}.yaml"
    base = ROOT / "recipes" / "tiny" / f"{name}.yaml"
    recipe.write_text(json.dumps({"schema": 1, "name": name, "extends": str(base), "benchmarks": benchmarks, **fields}))
    done = rig.recipe("submit", recipe, "--cluster", site, "--wait", "--json", timeout=900)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    run = Measured(Path(json.loads(done.stdout.splitlines()[0])["folder"]))
    assert run.results["valid"], run.results["reasons"]
    return run


def measure(rig: Rig, site: Path, name: str, folder: Path, *more: dict[str, Any], **fields: Any) -> Measured:
    """Run a shipped recipe: the fixed prompts, then AIPerf, then what there is more."""
    aiperf = {"client": "aiperf", "isl": 128, "osl": 64, "concurrency": [2], "requests": 8, "warmup": 2}
    run = run_recipe(rig, site, name, folder, PROMPTS, aiperf, *more, **fields)
    assert run.point["requests"] == {"wanted": 8, "ok": 8, "failed": 0}
    assert run.point["ttft_ms"]["mean"] > 0
    assert run.point["tpot_ms"]["mean"] > 0
    return run


@pytest.fixture(scope="module")
def aggregated(slurm_rig: Rig, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """One instance on one node: what the others are compared with."""
    search = {"over": "concurrency", "from": 1, "to": 4, "repeats": 1}
    load = {"client": "aiperf", "name": "s", "isl": 128, "osl": 64, "search": search, "requests": 8}
    return measure(
        slurm_rig, site, "cpu-agg", tmp_path_factory.mktemp("agg"), load, slo={"tpot_mean_ms": 10000, "ttft_mean_s": 60}
    )


def test_one_instance_on_one_node(aggregated: Measured) -> None:
    assert set(aggregated.argvs) == {"serve-0"}
    # The model answers each prompt in its own way, or equality with others would say nothing.
    assert len({tuple(tokens) for tokens in aggregated.answers.values()}) == len(aggregated.answers) == 4
    assert all(len(tokens) == 16 for tokens in aggregated.answers.values())


def test_a_search_over_three_points(aggregated: Measured) -> None:
    (search,) = aggregated.results["search"]
    assert (search["outcome"], search["answer"]["load"], search["confidence"]) == ("all_met", 4, None)
    points = {point["id"]: point for point in aggregated.results["points"] if point["id"].startswith("s-")}
    assert list(points) == ["s-c1-rep1", "s-c2-rep1", "s-c4-rep1"]
    assert [point["requests"]["ok"] for point in points.values()] == [8, 8, 8]
    for load in search["loads"]:
        seen = points[load["points"][0]]
        assert load["objective"] == seen["total_tps_per_gpu"]["working"] > 0
        assert load["bounds"]["ttft_mean_s"]["seen"] == pytest.approx(seen["ttft_ms"]["mean"] / 1000)


def test_blocks_are_as_many_as_predicted(slurm_rig: Rig, site: Path, aggregated: Measured) -> None:
    recipe = ROOT / "recipes" / "tiny" / "cpu-agg.yaml"
    asked = ("capacity", recipe, "--cluster", site, "--calibrate", aggregated.folder, "--json")
    done = slurm_rig.recipe(*asked, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (role,) = json.loads(done.stdout)["roles"]
    # 256 MiB in blocks of 32 tokens: K and V of 4 heads of 32 values, 8 layers, 16 bits.
    assert role["kv_blocks"] == [2048, 2048]
    logged = {row["what"]: (row["predicted"], row["logged"]) for row in role["logged"]}
    assert logged["tokens of KV"] == ("65,536", "65,536")
    assert logged["requests of 2,048 tokens"] == ("32.00", "32.00")


def test_tp_over_two_nodes(slurm_rig: Rig, site: Path, tmp_path: Path, aggregated: Measured) -> None:
    run = measure(slurm_rig, site, "cpu-tp2", tmp_path)
    assert "--headless" in run.argvs["serve-0.1"]
    # TP sums in another order than one rank does: bf16 may round differently, so tokens are only counted.
    assert {len(tokens) for tokens in run.answers.values()} == {16}
    assert set(run.answers) == set(aggregated.answers)


def test_dp_over_two_nodes(slurm_rig: Rig, site: Path, tmp_path: Path, aggregated: Measured) -> None:
    run = measure(slurm_rig, site, "cpu-dp2", tmp_path)
    assert "--headless" in run.argvs["serve-0.1"]
    assert run.answers == aggregated.answers


def test_prefill_and_decode_by_files(slurm_rig: Rig, site: Path, tmp_path: Path, aggregated: Measured) -> None:
    run = measure(slurm_rig, site, "cpu-1p1d-files", tmp_path)
    assert set(run.argvs) == {"prefill-0", "decode-0", "router"}
    assert run.answers == aggregated.answers
    assert moved_tokens(run.point) > 0


def test_prefill_and_decode_by_nixl(slurm_rig: Rig, site: Path, tmp_path: Path, aggregated: Measured) -> None:
    run = measure(slurm_rig, site, "cpu-1p1d-nixl", tmp_path)
    assert set(run.argvs) == {"prefill-0", "decode-0", "router"}
    assert run.answers == aggregated.answers
    assert moved_tokens(run.point) > 0
    # The nodes are one host to UCX, or not: what counts is that it is said.
    ways = run.point["pools"]["decode"]["kv_transfer"]["transports"]
    assert ways
    assert all(" over " in way and " into host memory" in way for way in ways), ways


def moved_tokens(point: dict[str, Any]) -> float:
    """Prompt tokens whose KV decode got from prefill."""
    tokens: float = point["pools"]["decode"]["prompt_tokens_by_source"]["external_kv_transfer"]
    return tokens


def test_real_vllm_is_asked_for_its_flags(slurm_rig: Rig, site: Path) -> None:
    """The steps of a job ask it. The version that the recipe means has a flag that this one lacks."""
    recipe = ROOT / "recipes" / "tiny" / "cpu-agg.yaml"
    wrong = ("--set", "engine.version=0.33.0", "--set", "engine.args.sleep-mode-backend=cumem")
    only = ("--only", "VLLM.FLAGS,VLLM.VERSION", "--slurm", "-c", site, "--json")
    reports = [json.loads(slurm_rig.recipe("check", recipe, *more, *only, timeout=300).stdout) for more in ((), wrong)]
    assert [[item["status"] for item in report["checks"]] for report in reports] == [["passed"] * 2, ["failed"] * 2]
    lacking, version = (item["findings"][0] for item in reports[1]["checks"])
    assert "this vLLM has no flag --sleep-mode-backend; 0.33.0 is the first to have it" in lacking["found"]
    assert lacking["found"].startswith("serve: ")
    assert "is vLLM 0.32.0+cpu" in version["found"]


def test_a_tuning_measures_predicts_and_confirms(slurm_rig: Rig, site: Path, tmp_path: Path) -> None:
    """One topology of each: prefill alone, decode alone with dummy KV, and both together by files."""
    side = {"topologies": {"one": {"parallel": {"tp": 1}}}, "requests_per_concurrency": 4}
    recipe = tmp_path / "tuned.yaml"
    data = {
        "schema": 1,
        "name": "tuned",
        "extends": str(ROOT / "recipes" / "tiny" / "cpu-1p1d-files.yaml"),
        "tune": {
            "gpus": 2,
            "prefill": {**side, "concurrency": [1]},
            "decode": {**side, "concurrency": [2]},
            "confirm": 1,
        },
    }
    recipe.write_text(json.dumps(data))
    words = ("--folder", tmp_path / "tune", "--confirm", "--json")
    done = slurm_rig.recipe("tune", recipe, "-c", site, *words, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [pool["form"] for pool in found["pools"]] == ["prefill", "decode-bench"]
    assert found["pools"][1]["transfer"]["bytes"] > 0, "config.json says what a prompt's KV takes"
    assert any("KV transfer" in term for term in found["missing_terms"]), "files have no counters"
    (best,) = [point for point in found["points"] if point["best"]]
    (measured,) = found["measured"]
    assert measured["concurrency"] == best["concurrency"]
    assert set(measured["error_percent"]) >= {"ttft_ms", "tpot_ms", "total_tps_per_gpu"}
