"""Preemption by a partition of higher priority, on a real Slurm: a run is requeued and goes on, or it is told."""

from __future__ import annotations

import json
import time

import pytest

from slurm_rig import make_rig
from slurm_site import LONG, QUICK, Run, Site, small_recipe
from submit_support import wait_until

pytestmark = pytest.mark.slurm

GRACE_S = 10
LOW = {
    "requeue": "PreemptMode=REQUEUE",
    "requeue-grace": f"PreemptMode=REQUEUE GraceTime={GRACE_S}",
    "cancel": "PreemptMode=CANCEL",
    "long-grace": "PreemptMode=REQUEUE GraceTime=600",
    "cancel-grace": f"PreemptMode=CANCEL GraceTime={GRACE_S}",
}


@pytest.fixture(scope="module")
def rig():
    partitions = [f"PartitionName={name} Nodes=ALL PriorityTier=1 {mode}" for name, mode in LOW.items()]
    partitions += ["PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF"]
    lines = ["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", *partitions]
    yield from make_rig(*(word for line in lines for word in ("--conf", line)))


def preempt(rig) -> str:
    """A job that wants all nodes."""
    words = ["sbatch", "--parsable", "-p", "high", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"]
    return rig.exec(*words).stdout.strip()


def starts(run: Run, point: str) -> int:
    return [event["point"] for event in run.events("point_started")].count(point)


@pytest.mark.parametrize("partition", ["requeue", "requeue-grace"])
def test_a_preempted_run_goes_on_where_it_was(rig, tmp_path, partition):
    site = Site(rig, tmp_path, partition=partition)
    # Slow in the first attempt only.
    script = 'test -e "$1" || { touch "$1"; while :; do echo .; sleep 1; done; }'
    run = site.start(small_recipe(QUICK, ["sh", "-c", script, "sh", str(tmp_path / "again")], QUICK))
    run.starts("bench-c1")
    preempt(rig)
    wait_until(lambda: json.loads(site.recipe("status", run.id, "--json").stdout)["state"] == "pending", 60)
    state = run.wait(0)
    assert (state["state"], state["attempt"]) == ("done", 1)
    assert state["points"] == {"c0": "done", "c1": "done", "c2": "done"}
    assert [starts(run, point) for point in ("c0", "c1", "c2")] == [1, 2, 1]
    assert (run.folder / "bench" / "c1.unfinished-1").is_dir()
    (stopped,) = run.events("stop_requested")
    assert stopped["signal"] == "SIGTERM"
    run.leaves_nothing()


@pytest.mark.parametrize("partition", ["cancel", "cancel-grace"])
def test_a_run_that_is_preempted_for_good(rig, tmp_path, partition):
    site = Site(rig, tmp_path, partition=partition)
    run = site.start(small_recipe(QUICK, LONG))
    run.starts("bench-c1")
    preempt(rig)
    state = run.wait(106)
    assert state["state"] == "preempted"
    # Without a grace time Slurm may end the run before it has written why.
    told = ["preempted by Slurm (SIGTERM), in phase bench", "Slurm: PREEMPTED, exit code 0:15"]
    assert state["message"] in told[: 1 if partition == "cancel-grace" else 2]
    assert state["job_state"] == "PREEMPTED"
    assert run.record["points"]["c0"] == "done"
    assert "c0" in [point["id"] for point in json.loads((run.folder / "results.json").read_text())["points"]]
    run.leaves_nothing()


def test_scancel_in_the_grace_time_ends_it_at_once(rig, tmp_path):
    site = Site(rig, tmp_path, partition="long-grace")
    run = site.start(small_recipe(QUICK, LONG))
    run.starts("bench-c1")
    wanting = preempt(rig)
    wait_until(lambda: run.record.get("state") == "preempted", 90)
    state = json.loads(site.recipe("status", run.id, "--json").stdout)
    assert state["state"] == "running"
    assert "when its grace time is over" in state["message"]
    assert rig.exec("scancel", wanting).returncode == 0
    wait_until(lambda: time.time() - run.events("stop_requested")[0]["t"] > 4)  # a TERM so soon is the first one's echo
    done = site.recipe("cancel", run.id, "--json")
    assert json.loads(done.stdout)["state"] == "preempted", done.stdout
    run.leaves_nothing()
