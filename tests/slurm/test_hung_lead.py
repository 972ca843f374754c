"""A lead that hangs, as on a file system that does: the other nodes are not held until the time limit."""

from __future__ import annotations

import os
import signal

import pytest

from slurm_site import LONG, QUICK, Site, small_recipe

pytestmark = pytest.mark.slurm


def test_the_job_ends_when_only_a_lead_that_hangs_is_left(slurm_rig, tmp_path):
    # A site's own --wait comes after ours, which is ten minutes and more.
    site = Site(slurm_rig, tmp_path, srun_args=["--wait=5"])
    run = site.start(small_recipe(QUICK, LONG))
    run.starts("bench-c1")
    os.kill(run.agent(0), signal.SIGSTOP)
    state = run.wait(100)
    assert state["state"] == "failed", state
    run.leaves_nothing()
    assert "c0" in site.recipe("report", run.id).stdout
