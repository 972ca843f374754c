"""What waits in the queue of a real Slurm: several runs, dependencies, holds; and Ctrl-C in front of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from slurm_site import LONG, QUICK, Run, Site, small_recipe
from submit_support import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture
def site(slurm_rig, tmp_path):
    return Site(slurm_rig, tmp_path)


def state(run: Run) -> dict:
    return json.loads(run.site.recipe("status", run.id, "--json").stdout)


def test_three_runs_one_at_a_time(site):
    files = []
    for name in ("a", "b", "c"):
        files.append(site.folder / f"{name}.yaml")
        # The second fails: the third starts all the same.
        client = QUICK if name != "b" else ["sh", "-c", "exit 3"]
        files[-1].write_text(json.dumps(small_recipe(client, nodes=1, name=f"small-{name}")))
    done = site.rig.recipe("submit", *files, "-c", site.profile, "--at-once", "1", "--wait", "--json", timeout=180)
    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(item["id"].split("-")[-2], item["state"]) for item in states] == [
        ("a", "done"),
        ("b", "failed"),
        ("c", "done"),
    ], done.stderr
    assert done.returncode == 100
    spans = []
    for item in states:
        run = Run(site, {"run": item["id"], "folder": item["folder"], "job_id": item["job_id"]})
        spans += [event["t"] for name in ("run_started", "run_ended") for event in run.events(name)]
    assert spans == sorted(spans)


def test_a_held_run_is_released(site):
    run = site.start(small_recipe(nodes=1), "--hold")
    assert f"it is held; `scontrol release {run.job_id}`" in state(run)["message"]
    assert site.rig.exec("scontrol", "release", run.job_id).returncode == 0
    run.wait(0)


def test_what_waits_for_a_run_that_fails_ends_and_is_told(site):
    """Else its job, and `recipe wait`, would wait for ever."""
    first = site.start(small_recipe(LONG, nodes=1))
    words = ["--dependency", f"afterok:{first.id}"]
    second = site.start(small_recipe(nodes=1), *words)
    assert "waits for Dependency" in state(second)["message"]
    other = site.start(small_recipe(nodes=1), "--dependency", f"afterok:{first.id}?afterany:{first.id}")
    first.starts("bench-c0")
    assert site.recipe("cancel", first.id).returncode == 0
    said = second.wait(103)
    assert "DependencyNeverSatisfied" in said["message"]
    assert other.wait(0)["state"] == "done"
    refused = site.submit(small_recipe(nodes=1), "--dependency", f"afterok:{first.id}", "--json")
    assert refused.returncode == 1
    assert "has ended as cancelled" in json.loads(refused.stdout)["error"]["message"]


def test_sbatch_takes_what_the_form_allows(site):
    held = site.start(small_recipe(nodes=1), "--hold")
    job, runs = held.job_id, [held]
    kinds = [f"{kind}:{job}" for kind in ("after", "afterany", "afternotok", "afterok", "aftercorr")]
    for spec in (*kinds, f"after:{job}+3", f"afterburstbuffer:{job}", f"singleton,afterok:{job}"):
        runs.append(site.start(small_recipe(nodes=1), "--dependency", spec))
        shown = site.rig.exec("squeue", "-ho", "%E", "-j", runs[-1].job_id).stdout
        # There is no other job of the recipe's name: a singleton has nothing to wait for.
        wanted = spec.removeprefix("singleton,").split(":")[0]
        assert wanted in shown, (spec, shown)
    assert site.recipe("cancel", *(run.id for run in runs)).returncode == 0


def test_a_second_ctrl_c_cancels_the_job(site):
    site.file(small_recipe(LONG))
    words = site.rig.argv("submit", site.folder / "recipe.yaml", "-c", site.profile, "--follow")
    process = subprocess.Popen(
        words,
        env={**os.environ, "MINI_SLURM_DIR": str(site.rig.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        name = process.stdout.readline().strip()
        job = wait_until(lambda: next(iter(site.runs.glob(f"{name}/job.json")), None))
        job_id = json.loads(job.read_text())["job_id"]
        run = Run(site, {"run": name, "folder": site.runs / name, "job_id": job_id})
        run.starts("bench-c0")
        os.killpg(process.pid, signal.SIGINT)
        while "Ctrl-C again" not in process.stderr.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"cancelled: {name} is told to end" in err
    run.wait(103)
    run.leaves_nothing()
