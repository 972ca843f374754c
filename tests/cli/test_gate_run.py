"""The validity gate on whole runs: faults of the simulated engine and of the load, each found by its own rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_site import small_recipe

RECIPE = Path(sys.executable).with_name("recipe")
# So many answers at a time, of which the KV cache holds three.
CROWD = """
import json, os, sys, threading, urllib.request
body = {"model": os.environ["RECIPE_MODEL"], "max_tokens": 200, "ignore_eos": True}
def ask(number):
    data = json.dumps({**body, "prompt": f"{number} " * 100}).encode()
    url = os.environ["RECIPE_URL"] + "/v1/completions"
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=60).read()
count = int(sys.argv[1])
threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
failed = int("fail" in sys.argv)
figures = {"requests": {"ok": count - failed, "failed": failed}, "output_tps": 100.0 * count}
with open(os.path.join(os.environ["RECIPE_ARTIFACTS"], "result.json"), "w") as file:
    json.dump(figures, file)
"""


def recipe(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RECIPE, *words], cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run with three points, one of which is good, and its results."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "crowd.py").write_text(CROWD)
    command = ["python3", str(folder / "crowd.py")]
    what = small_recipe(nodes=1)
    what["engine"]["args"] |= {
        "max-model-len": 1024,
        "block-size": 16,
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 2},
    }
    what["engine"]["sim"] |= {"kv_cache_tokens": 1024, "tpot_base_ms": 2}
    what["benchmarks"] = [
        {"client": "command", "name": "good", "command": [*command, "2"]},
        {"client": "command", "name": "crowd", "command": [*command, "8"]},
        {"client": "command", "name": "failing", "command": [*command, "2", "fail"]},
    ]
    (folder / "gate.yaml").write_text(json.dumps(what))
    done = recipe(folder, "submit", "gate.yaml", "-c", "local", "--wait")
    assert done.returncode == 104, done.stdout + done.stderr
    said = recipe(folder, "report", "last", "-c", "local", "--json")
    assert said.returncode == 0, said.stderr
    return folder, json.loads(said.stdout)


def test_each_fault_is_found_by_its_rule(measured: tuple[Path, dict[str, Any]]) -> None:
    points = {point["id"]: point for point in measured[1]["points"]}
    assert {name: point.get("rules", []) for name, point in points.items()} == {
        "good": [],
        "crowd": ["engine-preempted"],
        "failing": ["requests-failed"],
    }
    assert points["failing"]["reasons"][0].startswith("1 of 2 requests failed; none may fail: ")


def test_a_point_records_the_acceptance_of_speculative_decoding(measured: tuple[Path, dict[str, Any]]) -> None:
    (good,) = [point for point in measured[1]["points"] if point["valid"]]
    drafts = good["pools"]["serve"]["spec_decode"]
    assert 0 < drafts["acceptance_ratio"] <= 1
    assert drafts["mean_acceptance_length_tokens"] > 1


def test_an_invalid_point_is_nowhere_among_the_good(measured: tuple[Path, dict[str, Any]]) -> None:
    folder, results = measured
    bad = [point["id"] for point in results["points"] if not point["valid"]]
    table = recipe(folder, "report", "last", "-c", "local").stdout.splitlines()
    assert {line.split()[1].rstrip(":") for line in table if line.startswith("! ")} == set(bad)
    compared = json.loads(recipe(folder, "compare", "last", "last", "-c", "local", "--json").stdout)
    for match in compared["points"]:
        verdicts = [word for metric in match["metrics"].values() for word in metric["verdict"] if word]
        assert bool(verdicts) is (match["ids"][0] == "good")
    (run,) = (folder / "runs").iterdir()
    page = (run / "report.html").read_text()
    drawn = "".join(part.partition("</svg>")[0] for part in page.split("<svg")[1:])
    assert not any(name in drawn for name in bad)
