"""The main job on a real Slurm: how it ends well, and each way in which it ends otherwise."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from slurm_rig import make_rig
from slurm_site import LONG, QUICK, Run, Site, forget, small_recipe
from submit_support import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture
def site(slurm_rig, tmp_path):
    return Site(slurm_rig, tmp_path)


def test_a_run_from_the_recipe_to_its_results(site):
    done = site.submit(small_recipe(QUICK), "--follow", "--json")
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    assert (state["state"], state["phase"], state["job_id"]) == ("done", "end", state["job_id"])
    assert len({node["name"] for node in state["nodes"]}) == 2
    assert state["points"] == {"c0": "done"}
    assert " phase prove" in done.stderr
    run = site.runs / state["id"]
    there = {path.name for path in run.iterdir()}
    assert there >= {"recipe.lock.yaml", "cluster.lock.yaml", "plan.json", "job.json", "events.jsonl", "results.json"}
    assert (run / "token").stat().st_mode & 0o777 == 0o600
    listed = site.recipe("list", "--json")
    assert [json.loads(line)["state"] for line in listed.stdout.splitlines()] == ["done"]
    assert "measured" in site.recipe("logs", "last", "bench-c0").stdout
    assert site.recipe("cancel", "last").returncode == 0
    assert site.recipe("wait", "last").returncode == 0


def test_what_a_dry_run_prints_is_what_is_submitted(site):
    recipe = small_recipe()
    done = site.submit(recipe, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not site.runs.exists()
    run = site.start(recipe)
    submitted = (run.folder / "job" / f"{run.job_id}_submission.sh").read_text()
    printed = re.search(r"--chdir=(\S+)", done.stdout)[1]
    shown = done.stdout.replace(printed, str(run.folder)).replace(printed[-4:], run.id[-4:])
    assert shown == submitted
    stored = site.rig.exec("scontrol", "write", "batch_script", run.job_id, "-").stdout
    assert stored.rstrip("\n") == submitted.rstrip("\n")
    run.wait(0)


def test_odd_signs_in_the_run_folder(slurm_rig, tmp_path):
    folder = tmp_path / 'it\'s a "run";#x $(id) & ü'
    folder.mkdir()
    run = Site(slurm_rig, folder).start(small_recipe())
    assert run.wait(0)["state"] == "done"


def test_a_job_that_sbatch_refuses(slurm_rig, tmp_path):
    site = Site(slurm_rig, tmp_path, partition="nope")
    done = site.submit(small_recipe())
    assert done.returncode == 1
    assert done.stdout == ""
    assert "sbatch refused the job" in done.stderr
    assert "invalid partition specified: nope" in done.stderr
    assert "exit code: 1" in done.stderr
    (folder,) = site.runs.iterdir()
    assert f"run folder: {folder}" in done.stderr
    assert site.recipe("wait", "last").returncode == 100
    assert "invalid partition" in site.recipe("status", "last").stdout


def test_cancelled_in_the_queue(slurm_rig, tmp_path):
    site = Site(slurm_rig, tmp_path)
    run = site.start(small_recipe(), "--hold")
    state = json.loads(site.recipe("status", run.id, "--json").stdout)
    assert (state["state"], state["job_state"]) == ("pending", "PENDING")
    assert f"it is held; `scontrol release {run.job_id}` lets it go" in state["message"]
    done = site.recipe("cancel", run.id)
    assert done.returncode == 0, done.stderr
    assert f"{run.id}: cancelled" in done.stdout
    assert "it had ended already" in site.recipe("cancel", run.id).stdout
    run.wait(103)


def test_cancelled_while_it_runs(site):
    run = site.start(small_recipe(QUICK, LONG))
    run.starts("bench-c1")
    done = site.recipe("cancel", run.id)
    assert done.returncode == 0, done.stderr
    state = run.wait(103)
    assert "phase bench" in state["message"]
    assert not state["stale"]
    kept_the_first_point(run)
    run.leaves_nothing()


def kept_the_first_point(run: Run) -> None:
    points = {point["id"]: point for point in json.loads((run.folder / "results.json").read_text())["points"]}
    assert "c0" in points
    assert run.record["points"]["c0"] == "done"


def test_the_time_limits_warning_keeps_what_was_measured(site):
    run = site.start(small_recipe(QUICK, LONG, time_limit="00:01:00"))
    state = run.wait(105)
    assert (state["state"], state["stale"]) == ("timeout", False)
    assert [event["signal"] for event in run.events("stop_requested")] == ["SIGUSR2"]
    kept_the_first_point(run)
    run.leaves_nothing()


def test_an_agent_that_is_killed(site):
    run = site.start(small_recipe(QUICK, LONG))
    run.starts("bench-c1")
    os.kill(run.agent(1), signal.SIGKILL)
    state = run.wait(100)
    assert "node 1 (n2) is lost" in state["message"]
    assert not state["stale"]
    kept_the_first_point(run)
    run.leaves_nothing()


def test_a_lead_that_is_killed(site):
    run = site.start(small_recipe(LONG))
    run.starts("bench-c0")
    os.kill(run.agent(0), signal.SIGKILL)
    state = run.wait(100)
    assert state["stale"]
    assert "exit code 137" in state["message"]
    assert "phase bench" in state["message"]
    assert "last known" in site.recipe("status", run.id).stdout
    run.leaves_nothing()


def test_a_requeued_run_goes_on_in_a_second_attempt(site, tmp_path):
    first_time_only = 'test -e "$1" || { touch "$1"; while :; do echo .; sleep 1; done; }'
    run = site.start(small_recipe(QUICK, ["sh", "-c", first_time_only, "sh", str(tmp_path / "again")]))
    run.starts("bench-c1")
    assert site.rig.exec("scontrol", "requeue", run.job_id).returncode == 0
    wait_until(lambda: json.loads(site.recipe("status", run.id, "--json").stdout)["state"] == "pending", 30)
    state = run.wait(0)
    assert state["attempt"] == 1
    assert [event["point"] for event in run.events("point_started")].count("c0") == 1
    assert site.recipe("logs", run.id, "agent-1", "--attempt", "0").stdout


@pytest.fixture
def own_rig():
    """Jobs that are over are soon forgotten, as on a busy site, and remembered by jobcomp alone."""
    yield from make_rig("--accounting", "jobcomp", "--conf", "MinJobAge=2")


def test_an_ended_job_that_slurm_forgets(own_rig, tmp_path):
    site = Site(own_rig, tmp_path)
    told, killed = site.start(small_recipe(LONG)), site.start(small_recipe(LONG))
    for run in (told, killed):
        run.starts("bench-c0")
    assert site.recipe("cancel", told.id).returncode == 0
    os.kill(killed.agent(0), signal.SIGKILL)
    wait_until(lambda: own_rig.exec("squeue", "-h").stdout == "")
    forget(own_rig)
    assert site.rig.exec("squeue", "-j", told.job_id).returncode == 1
    assert told.wait(103)["state"] == "cancelled"
    # jobcomp alone knows that it failed
    state = killed.wait(100)
    assert (state["job_state"], state["stale"]) == ("FAILED", True)


def test_a_job_that_vanishes_is_lost_not_done(own_rig, tmp_path):
    site = Site(own_rig, tmp_path)
    run = site.start(small_recipe(), "--set", "name=lost", "--hold")  # else it may have ended well by then
    (run.folder / "job.json").write_text((run.folder / "job.json").read_text().replace(f'"{run.job_id}"', '"999999"'))
    state = run.wait(102)
    assert state["state"] == "lost"
    assert "neither squeue nor sacct know job 999999" in state["message"]
