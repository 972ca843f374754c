"""Programs as steps of a real Slurm: pyxis, whose container options a fake srun checks and takes off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from container_site import Runtimes, check_seen, runtimes
from recipe_toolkit.run import procfs, step
from slurm_rig import MINI_SLURM, Rig
from slurm_site import LONG, Run, Site, _read, small_recipe
from submit_support import wait_until

pytestmark = pytest.mark.slurm
PROBE, SLEEPER = ["probe"], ["sleeper"]


@pytest.fixture
def fake(slurm_rig):
    yield from runtimes()


@pytest.fixture
def site(slurm_rig, fake: Runtimes, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("OF_THE_SHELL", "1")
    fake.program(fake.folder / "image" / "sleeper", f"#!/bin/sh\nexec python3 -uc '{LONG[2]}'\n")
    path = f"export PATH={fake.bin}:$PATH"
    return Site(slurm_rig, tmp_path, fields=fake.profile("pyxis"), setup=[path])


def steps(run: Run) -> list[str]:
    """Steps of the job, the agents' own left out."""
    text = run.site.rig.exec("squeue", "--steps", "--noheader", f"--jobs={run.job_id}", "--format=%i %j").stdout
    return [line for line in text.splitlines() if run.id in line]


def test_a_whole_run_as_steps(site, fake):
    run = site.start(small_recipe(PROBE))
    state = run.wait(0)
    assert state["points"] == {"c0": "done"}
    check_seen(run.folder, "c0")
    assert run.events("drained")[0]["survivors"] == []
    ended = {name: process["exit_code"] for name, process in state["processes"].items()}
    assert ended["bench-c0"] == 0
    assert [code for code in ended.values() if code in (137, -9)] == [], "TERM has reached the engines"
    assert not [word for call in fake.calls("srun") for word in call if "hunter2" in word]
    run.leaves_nothing()


def test_cancelled(site):
    run = site.start(small_recipe(SLEEPER))
    run.starts("bench-c0")
    wait_until(lambda: len(steps(run)) == 3, what="three steps")
    assert site.recipe("cancel", run.id).returncode == 0
    run.wait(103)
    assert run.events("drained")[0]["survivors"] == []
    run.leaves_nothing()


def test_the_time_limits_warning_ends_no_program(site):
    """Slurm sends it to every process of every step; the agents take it for the beginning of the end."""
    run = site.start(small_recipe(SLEEPER))
    run.starts("bench-c0")
    wait_until(lambda: len(steps(run)) == 3, what="three steps")
    assert site.rig.exec("scancel", "--signal=USR2", run.job_id).returncode == 0
    state = run.wait(105)
    ended = {name: process["exit_code"] for name, process in state["processes"].items() if name != "bench-c0"}
    assert set(ended.values()) == {0}, f"TERM, and nothing before it: {ended}"
    assert run.events("drained")[0]["survivors"] == []
    run.leaves_nothing()


def test_an_agent_that_is_killed_leaves_no_step(site):
    run = site.start(small_recipe(SLEEPER))
    run.starts("bench-c0")
    os.kill(run.agent(1), signal.SIGKILL)
    assert "node 1 (n2) is lost" in run.wait(100)["message"]
    run.leaves_nothing()


def test_an_srun_that_is_killed_leaves_no_step(site):
    """Its step goes on without it."""
    run = site.start(small_recipe(SLEEPER))
    run.starts("bench-c0")
    wait_until(lambda: len(steps(run)) == 3, what="three steps")
    (srun,) = [
        pid for pid in site.rig.processes()
        if _read(pid, "comm") == "srun\n" and f"--job-name={run.id}-serve-0.1" in _read(pid, "cmdline")
        and _read(pid, "stat").rpartition(")")[2].split()[1] != "1"
        and "step.py" in _read(int(_read(pid, "stat").rpartition(")")[2].split()[1]), "cmdline")
    ]  # fmt: skip
    os.kill(srun, signal.SIGKILL)
    state = run.wait(100)
    assert "serve-0.1 on node 1" in state["message"]
    assert run.events("drained")[0]["survivors"] == []
    run.leaves_nothing()


def test_nodes_without_pyxis_are_refused(slurm_rig, fake, tmp_path):
    """Their srun would take the options of pyxis for mistakes, one step after the other."""
    site = Site(slurm_rig, tmp_path, fields=fake.profile("pyxis"))
    message = site.start(small_recipe(PROBE)).wait(100)["message"]
    assert "node 0 (n1) has no pyxis: its srun knows no --container-image" in message
    assert "node 1 (n2) has no pyxis" in message
    assert "hint: install pyxis there" in message


STEP = [sys.executable, "-I", "-S", str(Path(step.__file__))]
PROGRAM = """
import json, os, signal, sys, time
names = [name for name in os.environ if name.startswith(("SLURM", "PMI")) or name in ("RANK", "MASTER_ADDR")]
values = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "RECIPE_CUDA_VISIBLE_DEVICES")]
print(json.dumps([names, *values]), flush=True)
def stop(*_):
    print("told to stop", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, stop)
time.sleep(300)
"""


class Step:
    """A step of a job that goes on without it, on node n2."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.record, self.log = rig, folder / "p.step", folder / "p.log"
        submitted = rig.exec(
            "sbatch", "--parsable", "--nodes=2", "--output=/dev/null", "--gres=gpu:2", "--wrap=sleep 300"
        )
        self.job, self.name = submitted.stdout.strip(), f"{folder.name}-p"
        wait_until(lambda: rig.exec("squeue", "-h", "-j", self.job, "-o", "%T").stdout == "RUNNING\n", what="a job")
        srun = [
            "srun", "--overlap", f"--jobid={self.job}", "--nodelist=n2", "--nodes=1", "--ntasks=1", "--mpi=none",
            f"--job-name={self.name}", "--export=PATH,RANK,RECIPE_CUDA_VISIBLE_DEVICES", "--input=none", "/bin/sh",
            Path(step.__file__).with_suffix(".sh"), self.record, "python3", "-c", PROGRAM,
        ]  # fmt: skip
        env = {**os.environ, "MINI_SLURM_DIR": str(rig.folder), "RANK": "3", "RECIPE_CUDA_VISIBLE_DEVICES": "1,0"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [MINI_SLURM, "exec", *STEP, "run", self.record, *srun], env=env, stdout=log, stderr=log
            )
        wait_until(lambda: b"]" in self.log.read_bytes(), what="a program in a step")

    def call(self, verb: str, *words: str) -> str:
        done = self.rig.exec(*STEP, verb, self.record, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def listed(self) -> bool:
        return self.name in self.rig.exec("squeue", "-s", "-h", "-j", self.job, "-o", "%j").stdout

    def children(self) -> list[int]:
        """The srun, and what it has forked."""
        found = procfs.descendants([self.process.pid])
        return [item.pid for item in found if _read(item.pid, "comm") == "srun\n"]


@pytest.fixture
def held(slurm_rig, tmp_path):
    made = Step(slurm_rig, tmp_path)
    yield made
    slurm_rig.exec("scancel", "--signal=KILL", made.job)
    slurm_rig.exec("scancel", made.job)
    wait_until(
        lambda: made.job not in slurm_rig.exec("squeue", "-h", "-o", "%i").stdout.split(), what="an end of the job"
    )
    made.process.wait(30)


def test_a_step_takes_its_program_for_no_task_and_term_reaches_it(held):
    pid = int(held.call("pids"))
    assert PROGRAM[:20] in _read(pid, "cmdline")
    assert json.loads(held.log.read_text().splitlines()[0]) == [[], "1,0", None]
    held.process.terminate()
    assert held.process.wait(20) == 5
    assert "told to stop" in held.log.read_text()
    assert not held.record.exists()
    assert held.call("pids") == ""
    held.call("end", held.job, held.name, "squeue", "scancel")


def test_a_step_is_ended_whose_srun_is_killed(held):
    pid = int(held.call("pids"))
    for child in held.children():
        os.kill(child, signal.SIGKILL)
    assert held.process.wait(20) == 137
    assert held.call("pids") == f"{pid}\n", "it goes on"
    assert held.listed
    held.call("end", held.job, held.name, "squeue", "scancel")
    assert not held.listed
    assert procfs.stat(pid) is None
    assert not held.record.exists()
    assert held.rig.exec("squeue", "-h", "-j", held.job, "-o", "%T").stdout == "RUNNING\n"
