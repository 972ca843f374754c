"""A search on a real Slurm, with real AIPerf: requeued in the middle, it goes on with the next point."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from slurm_site import Site, small_recipe
from submit_support import wait_until
from support import require

pytestmark = [pytest.mark.slurm, pytest.mark.aiperf]

SEARCH = {
    "client": "aiperf",
    "name": "s",
    "isl": 32,
    "osl": 16,
    "search": {"over": "concurrency", "from": 2, "to": 8, "resolution": 1, "repeats": 1},
    "requests_per_concurrency": 2,
}


def test_a_requeued_search_goes_on(slurm_rig, tmp_path):
    aiperf = Path(sys.executable).with_name("aiperf")
    require("aiperf", aiperf.exists(), "no AIPerf: scripts/setup")
    site = Site(slurm_rig, tmp_path, fields={"tools": {"aiperf": {"path": str(aiperf)}}})
    # A step takes 4 ms for each that decodes: 4 in flight stay below 24 ms, and 8 do not.
    sim = {"startup_s": 0.2, "tpot_base_ms": 4, "tpot_per_seq_ms": 4, "ttft_base_ms": 1}
    recipe = small_recipe(nodes=1, slo={"tpot_mean_ms": 24})
    recipe |= {"benchmarks": [SEARCH], "roles": {"serve": {}}, "engine": {**recipe["engine"], "sim": sim}}
    run = site.start(recipe)
    wait_until(lambda: "s-c4-rep1" in started(run), 180, "the second point")
    assert "of at most" in site.recipe("status", run.id).stdout
    assert slurm_rig.exec("scontrol", "requeue", run.job_id).returncode == 0
    state = run.wait(0, "170")
    assert state["attempt"] == 1
    assert started(run)[:3] == ["s-c2-rep1", "s-c4-rep1", "s-c4-rep1"]
    results = json.loads((run.folder / "results.json").read_text())
    (search,) = results["search"]
    assert (search["outcome"], search["knee"], search["binding"]) == (
        "found",
        {"met": 4, "missed": 8},
        ["tpot_mean_ms"],
    )
    assert all(
        (run.folder / point["artifacts"] / "profile_export_aiperf.json").is_file() for point in results["points"]
    )
    table = site.recipe("report", run.id).stdout
    assert "search s over concurrency: found" in table
    assert "answer: c 4 gives" in table


def started(run) -> list[str]:
    return [event["point"] for event in run.events("point_started")]
