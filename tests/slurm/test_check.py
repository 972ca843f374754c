"""``recipe check --slurm``: one step of a job on real nodes."""

from __future__ import annotations

import json

import pytest

from slurm_site import Site, small_recipe

pytestmark = pytest.mark.slurm


def test_nodes_that_slurm_gives_are_judged_and_nothing_is_left(slurm_rig, tmp_path):
    site = Site(slurm_rig, tmp_path, fields={"check": {"disk": {"/": 99999999}}})
    done = slurm_rig.recipe("check", "--slurm", "-N", "2", "-c", site.profile, "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert len(set(report["nodes"])) == 2
    failed = [item for item in report["checks"] if item["status"] == "failed"]
    assert [item["id"] for item in failed] == ["DISK.FREE"]
    assert {node for finding in failed[0]["findings"] for node in finding["nodes"]} == set(report["nodes"])
    assert list(site.runs.iterdir()) == []


def test_a_recipe_says_how_many_nodes(slurm_rig, tmp_path):
    site = Site(slurm_rig, tmp_path)
    done = slurm_rig.recipe("check", site.file(small_recipe(nodes=2)), "--slurm", "-c", site.profile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fit: 2 nodes" in done.stdout


def test_what_slurm_refuses_is_told_in_its_words_and_nothing_is_left(slurm_rig, tmp_path):
    site = Site(slurm_rig, tmp_path, partition="nowhere")
    done = slurm_rig.recipe("check", "--slurm", "-N", "1", "-c", site.profile)
    assert done.returncode == 1
    assert "sbatch refused the job" in done.stderr
    assert "invalid partition" in done.stderr
    assert list(site.runs.iterdir()) == []


def test_a_job_that_cannot_look_says_why(slurm_rig, tmp_path):
    site = Site(slurm_rig, tmp_path, fields={"python": "/bin/false"})
    done = slurm_rig.recipe("check", "--slurm", "-N", "1", "-c", site.profile)
    assert done.returncode == 1
    assert "ended before a node had answered" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slurm",), "how many nodes?"),
        (("--slurm", "-N", "1", "-c", "local"), "is for the scheduler local"),
        (("-N", "2", "--hosts", "a"), "-N is for --slurm"),
    ],
)
def test_what_is_refused(slurm_rig, tmp_path, words, said):
    site = Site(slurm_rig, tmp_path)
    words = words if "-c" in words else (*words, "-c", site.profile)
    done = slurm_rig.recipe("check", *words)
    assert done.returncode == 2
    assert said in done.stderr
