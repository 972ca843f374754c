"""``recipe new`` on a login node: what it finds out from Slurm, and that Slurm takes what it writes."""

from __future__ import annotations

import pytest

from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.recipe_loader import load_recipe

pytestmark = pytest.mark.slurm


def test_partition_and_gpus_come_from_slurm_and_the_files_are_submitted(slurm_rig, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RECIPE_CLUSTERS", raising=False)
    done = slurm_rig.recipe("new", "mine.yaml", "--yes", "--engine", "sim", "--profile", "site", "--model", "hf:a/b")
    assert done.returncode == 0, done.stderr
    assert load_profile(tmp_path / "recipes" / "clusters" / "site.yaml").cluster.slurm.partition == "gpu"
    assert load_recipe(tmp_path / "mine.yaml").recipe.resources.gpus_per_node == 8
    test = 'benchmarks=[{client: command, command: ["true"]}]'
    done = slurm_rig.recipe("submit", "mine.yaml", "-c", "site", "--set", test, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
