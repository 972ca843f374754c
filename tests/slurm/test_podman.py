"""Engines in containers of a real podman, on a real Slurm."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from podman_rig import IMAGE
from slurm_site import QUICK, Site, small_recipe

pytestmark = [pytest.mark.slurm, pytest.mark.podman]

# A machine whose hard limits cannot be raised; production has no such line.
LIMITS = ["--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1000:1000"]


@pytest.fixture
def site(slurm_rig, podman, tmp_path):
    fields = {"tools": {"sim": {"image": IMAGE}}, "container": {"runtime": "podman", "args": LIMITS}}
    exports = [f"export {name}={value}" for name, value in podman.env.items()]
    return Site(slurm_rig, tmp_path, fields=fields, setup=exports)


def test_a_run_in_containers_behind_its_setup_steps(site, podman):
    (site.folder / "mark.sh").write_text("#!/bin/sh -e\necho patched > /etc/recipe-mark\n")
    look = 'read -r found < /etc/recipe-mark; echo "found $found"'
    steps = [{"script": "mark.sh"}, {"name": "look", "run": look}]
    done = site.submit(small_recipe(QUICK, setup=steps), "--wait", "--json")
    assert done.returncode == 0, done.stderr
    run = site.runs / json.loads(done.stdout)["id"]
    for node in (0, 1):
        log = run / "attempts" / "0" / "nodes" / f"{node:02}" / f"serve-0.{node}.log"
        said = log.read_text().splitlines()
        assert said[:4] == ["setup: mark", "setup: look", "found patched", "setup: done"]
    assert not Path("/etc/recipe-mark").exists()
    results = json.loads((run / "results.json").read_text())
    mark = hashlib.sha256((site.folder / "mark.sh").read_bytes()).hexdigest()
    assert [step["name"] for step in results["setup"]] == ["mark", "look"]
    assert results["setup"][0]["sha256"] == mark
    assert podman.containers() == []


def test_a_setup_step_that_fails_names_itself(site, podman):
    done = site.submit(small_recipe(QUICK, setup=[{"name": "fix", "run": "echo no wheel\nexit 3"}]), "--wait", "--json")
    assert done.returncode == 100
    message = json.loads(done.stdout)["message"]
    assert re.match(
        r"(launch|ready): serve-0\.[01] on node [01] \(n\d\) exited with code 3: setup: fix failed", message
    )
    assert re.search(r"log: attempts/0/nodes/0[01]/serve-0\.[01]\.log\n.*\n  setup: fix\n  no wheel\n", message)
    assert podman.containers() == []
