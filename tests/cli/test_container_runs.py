"""Runs of two local nodes whose engines and clients are in containers: of fakes that really run the programs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from container_site import Runtimes, check_seen, runtimes
from recipe_toolkit.run import procfs
from slurm_site import LONG, small_recipe
from submit_support import wait_until

RUNTIMES = ["docker", "enroot", "apptainer"]


@pytest.fixture
def fake():
    yield from runtimes()


class Site:
    """A profile of the local scheduler and one runtime."""

    def __init__(self, recipe, fake: Runtimes, runtime: str) -> None:
        self.recipe, self.fake, self.folder = recipe, fake, recipe.folder
        profile = {"schema": 1, "name": "here", "scheduler": "local", "runs": "runs", **fake.profile(runtime)}
        (self.folder / "here.yaml").write_text(json.dumps(profile))
        self.env = {"PATH": f"{fake.bin}:{os.environ['PATH']}", "HF_TOKEN": "hunter2", "OF_THE_SHELL": "1"}

    def submit(self, *commands: list[str]) -> Path:
        """A run of these clients."""
        (self.folder / "tiny.yaml").write_text(json.dumps(small_recipe(*commands)))
        done = self.recipe("submit", "tiny.yaml", "-c", "./here.yaml", "--json", **self.env)
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)["folder"])

    def wait(self, run: Path, code: int) -> dict:
        done = self.recipe("wait", run.name, "--runs", "runs", "--json", "--timeout", "90s")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def survivors(self, run: Path) -> list[str]:
        """Programs that have the run's folder in their command or environment, the daemon's left out."""
        found = []
        for item in procfs.table().values():
            try:
                words = Path(f"/proc/{item.pid}/cmdline").read_bytes() + Path(f"/proc/{item.pid}/environ").read_bytes()
            except OSError:
                continue
            if str(run).encode() in words and item.state not in "ZX":
                found.append(f"{item.pid} {procfs.command(item.pid)}")
        return found


@pytest.fixture(params=RUNTIMES)
def site(recipe, fake, request):
    fake.program(fake.folder / "image" / "sleeper", f"#!/bin/sh\nexec python3 -uc '{LONG[2]}'\n")
    if request.param == "docker":
        fake.start_daemon()
    made = Site(recipe, fake, request.param)
    yield made
    for run in (made.folder / "runs").iterdir():
        wait_until(lambda run=run: not made.survivors(run), 30, f"an end of {made.survivors(run)}")
    assert not list(Path("/tmp").glob(f"recipe-{run.name}*"))


def started(run: Path, process: str) -> bool:
    path = run / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return any(event["event"] == "process_started" and event["process"] == process for event in events)


def test_a_whole_run(site):
    run = site.submit(["probe"])
    state = site.wait(run, 0)
    assert state["points"] == {"c0": "done"}
    check_seen(run, "c0")
    codes = {name: process["exit_code"] for name, process in state["processes"].items()}
    assert set(codes.values()) <= {0, 143, -15}, f"TERM has reached the programs: {codes}"
    drained = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines() if '"drained"' in line]
    assert drained[0]["survivors"] == []
    assert not [word for call in site.fake.calls() for word in call if "hunter2" in word or word == "the site's"]


def test_cancelled(site):
    run = site.submit(["sleeper"])
    wait_until(lambda: started(run, "bench-c0"), 60)
    assert site.recipe("cancel", run.name, "--runs", "runs").returncode == 0
    site.wait(run, 103)


def test_an_agent_that_is_killed(site):
    run = site.submit(["sleeper"])
    wait_until(lambda: started(run, "bench-c0"), 60)
    (agent,) = [
        item.pid
        for item in procfs.table().values()
        if b"SUBMITIT_LOCAL_GLOBALID=1\0" in _environ(item.pid) and "submitit.core._submit" in procfs.command(item.pid)
        and str(run) in procfs.command(item.pid)
    ]  # fmt: skip
    os.kill(agent, signal.SIGKILL)
    assert "node 1" in site.wait(run, 100)["message"]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_node_without_the_runtime(recipe, fake, runtime):
    """It is named, with what is missing and what to do."""
    (fake.bin / runtime).unlink()
    for program in ("sh", "env", "rm"):
        (fake.bin / program).symlink_to(f"/bin/{program}")
    site = Site(recipe, fake, runtime)
    site.env["PATH"] = str(fake.bin)  # this machine may have the real one
    run = site.submit(["probe"])
    message = site.wait(run, 100)["message"]
    assert f"has no {runtime}, neither beside" in message
    assert "bind: node 0 (" in message
    assert f"hint: install {'Docker' if runtime == 'docker' else runtime}" in message
