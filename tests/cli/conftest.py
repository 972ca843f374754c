from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from submit_support import FakeSlurm


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
