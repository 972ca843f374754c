from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plankit import RECIPES, plan_of
from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.document import dump_yaml
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.rundir import write_json
from submit_support import FakeSlurm, make_run

BASE = RECIPES / "pd-4p-dp4-1d-dp8.yaml"
PLAIN = RECIPES / "clusters" / "plain.yaml"


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch):
    """Slurm's programs, answering what the test tells them to."""
    fake = FakeSlurm(tmp_path / "fake-slurm")
    monkeypatch.setenv("PATH", f"{fake.bin}:{os.environ['PATH']}")
    return fake


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Runs ``recipe`` as a user types it, in an empty folder, and returns what came back."""
    monkeypatch.delenv("RECIPE_RUNS", raising=False)
    monkeypatch.delenv("RECIPE_CLUSTER", raising=False)
    folder = tmp_path / "here"
    folder.mkdir()

    def run(*words, timeout=60, cwd=folder, **env):
        return subprocess.run(
            [Path(sys.executable).with_name("recipe"), *map(str, words)],
            cwd=cwd,
            env={**os.environ, **env},
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )

    run.folder = folder
    return run


@pytest.fixture
def locked(recipe):
    """Makes runs of tests/data/recipes/pd-4p-dp4-1d-dp8.yaml."""

    def make(name, *sets, driver="570.1", rehearse=False):
        run = make_run(recipe.folder / "runs", name, state="done")
        run.recipe_lock.write_text(dump_yaml(load_recipe(BASE, sets).data))
        run.cluster_lock.write_text(dump_yaml(load_cluster(str(PLAIN)).data))
        write_json(run.plan, plan_of("pd-4p-dp4-1d-dp8", *sets, rehearse=rehearse).to_json())
        run.attempt(0).node(0).mkdir(parents=True)
        write_json(run.attempt(0).facts(0), {"driver": driver, "host": "n1"})
        return run

    return make
