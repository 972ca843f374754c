"""A whole tuning on the simulated engine, with real AIPerf and the real router: killed, gone on with, confirmed.

The timing is slow, so that what programs take beside it is little, and the best split is known in closed form.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from submit_support import wait_until
from support import require

pytestmark = pytest.mark.aiperf

ISL, OSL, GPUS, SLO_MS = 512, 32, 4, 40.0
PREFILL_S, STEP_S, EACH_S = 0.52, 0.02, 0.002
RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "whole",
    "model": {"path": "tiny", "served_name": "tiny"},
    "engine": {
        "kind": "sim",
        "version": "0.32.0",
        "args": {"max-model-len": 2048, "max-num-seqs": 64, "enable-prefix-caching": False},
        "sim": {
            "ttft_base_ms": PREFILL_S * 1000 - ISL,
            "prefill_tokens_per_s": 1000,
            "tpot_base_ms": STEP_S * 1000,
            "tpot_per_seq_ms": EACH_S * 1000,
            "startup_s": 0.2,
        },
    },
    "resources": {"gpu": "simulated", "gpus_per_node": GPUS, "share_nodes": True},
    "roles": {"prefill": {}, "decode": {}},
    "kv_transfer": {"connector": "nixl"},
    "benchmarks": [
        {"client": "aiperf", "isl": ISL, "osl": OSL, "concurrency": [1], "requests_per_concurrency": 5, "warmup": 2}
    ],
    "slo": {"ttft_mean_s": 1.5, "tpot_mean_ms": SLO_MS},
    "deadlines": {"bind": 120, "ready": 120, "stall": 120, "prove": 120, "drain": 30},
    "time_limit": "00:15:00",
    "tune": {
        "gpus": GPUS,
        "exactly": True,
        "prefill": {
            "topologies": {"tp1": {"parallel": {"tp": 1}}},
            "concurrency": [1, 2],
            "requests_per_concurrency": 4,
        },
        "decode": {
            "topologies": {"tp1": {"parallel": {"tp": 1}}},
            "concurrency": [2, 12],
            "requests_per_concurrency": 3,
        },
        "confirm": 1,
    },
}


def best_rates() -> dict[tuple[int, int], float]:
    """Requests/s of each split within the SLO: what prefill can, or decode with as many in it as TPOT allows."""
    most = (SLO_MS / 1000 - STEP_S) / EACH_S
    decode = most / (OSL * SLO_MS / 1000)
    return {(count, GPUS - count): min(count / PREFILL_S, (GPUS - count) * decode) for count in range(1, GPUS)}


class Tuned:
    """A tuning that was killed in its first run and then finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "r.yaml").write_text(json.dumps(RECIPE))
        self.env = {name: value for name, value in os.environ.items() if name not in ("RECIPE_RUNS", "RECIPE_CLUSTER")}

    def recipe(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("recipe"), *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    @property
    def runs(self) -> list[Path]:
        return sorted(path for path in (self.folder / "runs").glob("2*") if (path / "job.json").exists())

    def kill(self) -> None:
        """Begin, and kill it when its first run is on its way; the run itself goes on."""
        words = [Path(sys.executable).with_name("recipe"), "tune", "r.yaml", "-c", "local", "--stage", "prefill"]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=quiet, stderr=quiet)
        try:
            wait_until(lambda: bool(self.runs), 60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(20)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    for program in ("aiperf", "vllm-router"):
        there = Path(sys.executable).with_name(program).exists()
        require("aiperf", there, f"no {program} beside {sys.executable}: scripts/setup")
    found = Tuned(tmp_path_factory.mktemp("tuned"))
    found.kill()
    assert len(found.runs) == 1
    done = found.recipe("tune", "r.yaml", "-c", "local", "--at-once", "1", "--confirm", "--json")
    assert done.returncode == 0, done.stderr
    found.data = json.loads(done.stdout)  # type: ignore[attr-defined]
    return found


def test_a_killed_tuning_measures_nothing_twice(tuned):
    assert [path.name.split("-")[-3] for path in tuned.runs[:2]] == ["prefill", "decode"]
    assert len(tuned.runs) == 3


def test_the_best_split_is_found(tuned):
    (best,) = [point for point in tuned.data["points"] if point["best"]]
    rates = best_rates()
    assert rates[best["prefill"]["instances"], best["decode"]["instances"]] >= 0.95 * max(rates.values())
    assert best["requests_per_s"] == pytest.approx(max(rates.values()), rel=0.1)
    assert best["slo_met"]


def test_the_prediction_is_confirmed(tuned):
    (measured,) = tuned.data["measured"]
    assert measured["predicted"] is not None
    for figure in ("requests_per_s", "e2e_ms", "tpot_ms", "output_tps_per_user", "total_tps_per_gpu", "ttft_ms"):
        assert abs(measured["error_percent"][figure]) < 10, (figure, measured)


def test_the_same_command_again_has_nothing_left_to_do(tuned):
    done = tuned.recipe("tune", "r.yaml", "-c", "local", "--at-once", "1", "--confirm")
    assert done.returncode == 0, done.stderr
    assert len(tuned.runs) == 3
    assert "measured, beside what was predicted" in done.stdout
    assert "SIMULATED ENGINE" in done.stdout


def test_frontier_takes_the_runs_of_the_stages(tuned):
    sweeps = json.loads((tuned.folder / "tune-whole" / "tune.json").read_text())["sweeps"]
    words = ["--sweep", sweeps["prefill"], "--sweep", sweeps["decode"], "--gpus", str(GPUS), "--exactly", "--json"]
    done = tuned.recipe("frontier", *words, "-o", "f.json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert json.loads((tuned.folder / "f.json").read_text()) == data
    assert data["measured"] == []
    assert data["pools"][1]["transfer"]["source"] == "options of the simulated engine"
    assert tuned.recipe("frontier", tuned.runs[0].name, "--gpus", "4").returncode == 1
    assert tuned.recipe("frontier", "--gpus", "4").returncode == 2
    assert tuned.recipe("frontier", tuned.runs[0].name, "--gpus", "4", "--axis", "nothing").returncode == 2
