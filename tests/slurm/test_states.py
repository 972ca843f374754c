"""How a run's end is told on a site with slurmdbd, with jobcomp alone, and with no accounting: never as a success.

Each end is made for real. Then slurmctld forgets its jobs, as it does within minutes on any site, and every run is
asked about twice: as it is, and as a copy of its folder in which the run did not come to write its end. The copy's end
is known to the accounting alone; where there is none the run is lost.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_rig import Rig, make_rig, require_slurmdbd
from slurm_site import LONG, QUICK, Run, Site, forget, small_recipe
from submit_support import wait_until

pytestmark = pytest.mark.slurm

CODES = {"done": 0, "failed": 100, "lost": 102, "cancelled": 103, "timeout": 105}


@dataclass(frozen=True)
class End:
    """``run``: the state that the run's own word gives; ``job``: Slurm's; ``silent``: what follows from that alone."""

    run: str
    job: str
    silent: str


ENDS = {
    "done": End("done", "COMPLETED", "failed"),
    "failed": End("failed", "FAILED", "failed"),
    "cancelled": End("cancelled", "CANCELLED", "cancelled"),
    "in-queue": End("cancelled", "CANCELLED", "cancelled"),
    "warned": End("timeout", "FAILED", "failed"),
    "timeout": End("timeout", "TIMEOUT", "timeout"),
    "requeued": End("done", "COMPLETED", "failed"),
    "node-failure": End("failed", "NODE_FAIL", "failed"),
}


@pytest.fixture(scope="module", params=["slurmdbd", "jobcomp", "none"])
def story(request, tmp_path_factory):
    """A cluster that has seen every end and has forgotten its jobs; its runs by name."""
    if request.param == "slurmdbd":
        require_slurmdbd()
    lines = ("KillWait=10", "MinJobAge=2", "SlurmdTimeout=15", "ResumeTimeout=60", "OverTimeLimit=0")
    words = [word for line in lines for word in ("--conf", line)]
    for rig in make_rig("--accounting", request.param, *words):
        folder = tmp_path_factory.mktemp(request.param)
        yield request.param, tell(rig, folder), folder


def tell(rig: Rig, folder: Path) -> dict[str, Run]:
    site = Site(rig, folder, exclusive=False)
    (folder / "once").mkdir()
    once = Site(rig, folder / "once", runs=site.runs, exclusive=False, directives={"no-requeue": True})
    runs: dict[str, Run] = {}

    def start(name: str, *commands: list[str], at: Site = site, words: tuple[str, ...] = (), **fields) -> Run:
        runs[name] = at.start(small_recipe(*commands, nodes=1, name=name, **fields), *words)
        return runs[name]

    # The two whose node fails go first, and are alone on it.
    drain(rig, "n2", "n3", "n4")
    script = 'test -e "$1" || { touch "$1"; while :; do echo .; sleep 1; done; }'
    start("requeued", QUICK, ["sh", "-c", script, "sh", str(folder / "again")]).starts("bench-c1")
    start("node-failure", LONG, at=once).starts("bench-c0")
    drain(rig, "n1")
    assert rig.exec("scontrol", "update", "nodename=n[2-4]", "state=resume").returncode == 0
    start("warned", QUICK, LONG, time_limit="00:01:00")
    start("timeout", QUICK, at=deaf(rig, folder / "deaf", site), time_limit="00:01:00")
    start("done", QUICK)
    start("failed", QUICK, ["sh", "-c", "exit 3"])
    start("in-queue", QUICK, words=("--hold",))
    start("cancelled", QUICK, LONG).starts("bench-c1")
    assert rig.exec("scancel", runs["cancelled"].job_id, runs["in-queue"].job_id).returncode == 0
    fail(rig, "n1")
    wait_until(lambda: rig.exec("squeue", "-h").stdout == "", 240, f"an empty queue: {rig.exec('squeue').stdout}")
    forget(rig)
    return runs


def deaf(rig: Rig, folder: Path, site: Site) -> Site:
    """A site whose agents hang from their start on, and heed no signal."""
    folder.mkdir()
    python = folder / "python"
    python.write_text("#!/bin/sh\ntrap '' TERM USR2 CONT\nwhile :; do sleep 1; done\n")
    python.chmod(0o755)
    made = Site(rig, folder, runs=site.runs, exclusive=False)
    made.profile.write_text(json.dumps({**json.loads(made.profile.read_text()), "python": str(python)}))
    return made


def drain(rig: Rig, *nodes: str) -> None:
    done = rig.exec("scontrol", "update", f"nodename={','.join(nodes)}", "state=drain", "reason=test")
    assert done.returncode == 0, done.stderr


def fail(rig: Rig, node: str) -> None:
    """As if its power were gone: slurmd and all else there end at once, with no word."""
    namespace = (rig.folder / "ns" / node).stat()
    for pid in rig.processes():
        try:
            inode = Path(f"/proc/{pid}/ns/net").stat()
        except OSError:
            continue
        if (inode.st_dev, inode.st_ino) == (namespace.st_dev, namespace.st_ino):
            os.kill(pid, signal.SIGKILL)


def silenced(run: Run, folder: Path) -> Path:
    """A copy of the run that did not come to write its end."""
    copy = folder / run.id
    shutil.copytree(run.folder, copy, symlinks=True)
    state = copy / "state.json"
    if state.exists():
        state.write_text(json.dumps({**json.loads(state.read_text()), "state": "running", "phase": "bench"}))
        events = copy / "events.jsonl"
        lines = [line for line in events.read_text().splitlines() if '"run_ended"' not in line]
        events.write_text("\n".join(lines) + "\n")
    return copy


@pytest.mark.parametrize("name", ENDS)
def test_the_runs_own_word_stays(story, name):
    accounting, runs, _ = story
    end = ENDS[name]
    unwritten = name in ("node-failure", "in-queue", "timeout")  # by the way in which it ended
    expected = "lost" if unwritten and accounting == "none" else end.run
    state = runs[name].wait(CODES[expected])
    assert (state["state"], state["stale"]) == (expected, unwritten)
    assert state["attempt"] == (1 if name == "requeued" else 0)
    if expected == "lost":
        assert "neither squeue nor sacct know job" in state["message"]


@pytest.mark.parametrize("name", ENDS)
def test_what_is_told_of_a_run_that_could_not_write_its_end(story, name, tmp_path):
    accounting, runs, _ = story
    end = ENDS[name]
    run = runs[name]
    copy = silenced(run, tmp_path)
    expected = end.silent if accounting != "none" else "lost"
    done = run.site.rig.recipe("wait", copy, "--json", "--timeout", "1m")
    state = json.loads(done.stdout)
    assert (state["state"], done.returncode) == (expected, CODES[expected]), state
    assert state["job_state"] == (None if accounting == "none" else end.job)
    assert state["stale"]
