"""recipe submit, as a user types it, on a Slurm that replays recorded answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_site import small_recipe
from submit_support import wait_until

RECIPE = Path(sys.executable).with_name("recipe")


@pytest.fixture
def site(recipe):
    """A recipe and a profile in the current folder."""
    (recipe.folder / "tiny.yaml").write_text(json.dumps(small_recipe()))
    profile = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "shared/runs", "slurm": {"partition": "gpu"}}
    (recipe.folder / "site.yaml").write_text(json.dumps(profile))
    recipe.runs = recipe.folder / "shared" / "runs"
    return recipe


def submit(site, *words, **env):
    return site("submit", "tiny.yaml", "-c", "./site.yaml", *words, **env)


def without_slurm() -> str:
    """A PATH on which no Slurm is."""
    folders = os.environ["PATH"].split(":")
    return ":".join(folder for folder in folders if not shutil.which("sbatch", path=folder))


def test_the_run_id_is_all_of_stdout(site, fake_slurm):
    fake_slurm.says("sbatch", "4711\n")
    done = submit(site)
    assert done.returncode == 0, done.stderr
    (folder,) = site.runs.iterdir()
    assert done.stdout == f"{folder.name}\n"
    assert "job 4711" in done.stderr
    job = json.loads((folder / "job.json").read_text())
    assert (job["scheduler"], job["job_id"]) == ("slurm", "4711")


def test_json_is_one_object(site, fake_slurm):
    fake_slurm.says("sbatch", "4711\n")
    done = submit(site, "--json")
    (folder,) = site.runs.iterdir()
    assert json.loads(done.stdout) == {
        "run": folder.name,
        "folder": str(folder),
        "scheduler": "slurm",
        "job_id": "4711",
        "rehearsal": False,
        "warnings": [],
    }


def test_strict_submits_nothing_for_a_warning(site, fake_slurm):
    fake_slurm.says("sbatch", "4711\n")
    vague = ("--set", 'engine.version="0.99.0"')
    refused = submit(site, *vague, "--strict")
    assert (refused.returncode, refused.stdout, fake_slurm.calls()) == (1, "", [])
    assert "0.99.0 is newer than every list" in refused.stderr
    (told,) = json.loads(submit(site, *vague, "--dry-run", "--json").stdout)["warnings"]
    assert (told["severity"], told["field"]) == ("warning", "engine.version")
    assert [item["field"] for item in json.loads(submit(site, *vague, "--json").stdout)["warnings"]] == [
        "engine.version"
    ]


def test_the_folder_is_complete_when_sbatch_is_called(site, fake_slurm):
    fake_slurm.says("sbatch", "4711\n")
    submit(site)
    (call,) = fake_slurm.calls()
    (folder,) = site.runs.iterdir()
    assert call["cwd"] == str(folder)
    assert call["argv"] == ["--parsable", str(folder / "job" / "submission.sh")]
    for name in ("recipe.lock.yaml", "cluster.lock.yaml", "plan.json", "token"):
        assert (folder / name).stat().st_mtime <= (fake_slurm.folder / "calls.jsonl").stat().st_mtime
    assert f"#SBATCH --chdir={folder}" in call["script"]


def test_a_dry_run_needs_no_slurm_and_writes_nothing(site):
    done = submit(site, "--dry-run", PATH=without_slurm(), SBATCH_PARTITION="debug", SUBMITIT_PREEMPT_SIGNAL="USR1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n")
    assert "#SBATCH --partition=gpu\n" in done.stdout
    assert "#SBATCH --signal=USR2@" in done.stdout
    assert not site.runs.exists()


def test_without_sbatch_nothing_is_left_behind(site):
    done = submit(site, PATH=without_slurm())
    assert done.returncode == 1
    assert done.stderr.startswith("Error: sbatch: not found on PATH\nhint: ")
    assert not site.runs.exists()


def test_a_refusal_keeps_the_folder_and_is_listed_as_failed(site, fake_slurm):
    fake_slurm.says("sbatch", err="sbatch: error: Batch job submission failed: Invalid qos specification\n", code=1)
    done = submit(site, "--json")
    assert done.returncode == 1
    (folder,) = site.runs.iterdir()
    assert f"run folder: {folder}" in done.stderr
    assert "hint: `sacctmgr show qos`" in done.stderr
    assert "sbatch refused the job" in json.loads(done.stdout)["error"]["message"]
    assert not (folder / "job.json").exists()
    listed = site("list", "--cluster", "./site.yaml", "--json")
    state = json.loads(listed.stdout)
    assert (state["id"], state["state"]) == (folder.name, "failed")
    assert "Invalid qos" in state["message"]
    assert site("wait", folder.name, "-c", "./site.yaml").returncode == 100


def test_wait_returns_the_runs_exit_code(site, fake_slurm):
    fake_slurm.says("sbatch", "7\n")
    fake_slurm.holds("7|NODE_FAIL|NodeFail|n1|256|0")
    done = submit(site, "--wait", "--json", "--set", 'engine.version="0.99.0"')
    assert done.returncode == 100
    state = json.loads(done.stdout)
    assert state["state"] == "failed"
    assert [item["field"] for item in state["warnings"]] == ["engine.version"]
    fake_slurm.holds("7|PREEMPTED|None|n1|0|0")
    assert submit(site, "--follow").returncode == 106


def test_a_bad_recipe_is_refused_before_anything_is_written(site, fake_slurm):
    (site.folder / "tiny.yaml").write_text(json.dumps({**small_recipe(), "nonsense": 1}))
    done = submit(site)
    assert done.returncode == 1
    assert "nonsense" in done.stderr
    assert fake_slurm.calls() == []
    assert not site.runs.exists()


def test_set_changes_the_recipe(site, fake_slurm):
    fake_slurm.says("sbatch", "7\n")
    assert submit(site, "-s", "name=other", "--set", "time_limit=00:30:00").returncode == 0
    (folder,) = site.runs.iterdir()
    assert "-other-" in folder.name
    assert "#SBATCH --time=30\n" in fake_slurm.calls("sbatch")[0]["script"]


def test_a_runs_folder_that_cannot_be_written(site, fake_slurm):
    (site.folder / "shared").write_text("a file")
    done = submit(site)
    assert done.returncode == 1
    assert f"cannot write the run folder {site.runs}/" in done.stderr
    assert fake_slurm.calls() == []


@pytest.mark.parametrize("sign", ["%", "\\"])
def test_a_runs_folder_that_sbatch_would_misread_is_refused(site, fake_slurm, sign):
    profile = json.loads((site.folder / "site.yaml").read_text())
    (site.folder / "site.yaml").write_text(json.dumps({**profile, "runs": f"a{sign}b"}))
    done = submit(site)
    assert done.returncode == 1
    assert f"a path with {sign} cannot be used" in done.stderr
    assert fake_slurm.calls() == []
    assert sorted(path.name for path in site.folder.iterdir()) == ["site.yaml", "tiny.yaml"]


def test_a_cluster_must_be_named(site):
    done = site("submit", "tiny.yaml")
    assert done.returncode == 1
    assert "--cluster local" in done.stderr


def test_ctrl_c_during_sbatch_does_not_cut_the_submission_in_two(site, fake_slurm):
    fake_slurm.says("sbatch", "4711\n", sleep=1)
    process = subprocess.Popen(
        [RECIPE, "submit", "tiny.yaml", "-c", "./site.yaml"],
        cwd=site.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        wait_until(lambda: fake_slurm.calls("sbatch"))
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    (folder,) = site.runs.iterdir()
    assert out == f"{folder.name}\n"
    assert "detached: the run goes on" in err
    assert json.loads((folder / "job.json").read_text())["job_id"] == "4711"
