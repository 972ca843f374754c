"""A site on the private Slurm: its profile, small recipes on the simulated engine, and their runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_rig import Rig
from submit_support import wait_until

DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd")

# Prints, so that nobody takes it for stalled.
LONG = ["python3", "-uc", "import time; [(print(i), time.sleep(0.5)) for i in range(400)]"]
QUICK = ["python3", "-c", "print('measured')"]


def small_recipe(*commands: list[str], nodes: int = 2, **fields: Any) -> dict[str, Any]:
    """One instance over ``nodes`` nodes with a DP rank on each, and a client that is a command for each point."""
    clients = [{"client": "command", "name": f"c{i}", "command": words} for i, words in enumerate(commands or [QUICK])]
    return {
        "schema": 1,
        "name": "small",
        "model": {"path": "/models/tiny", "served_name": "tiny"},
        "engine": {"kind": "sim", "version": "0.32.0", "args": {"max-model-len": 2048}, "sim": {"startup_s": 0.2}},
        "resources": {"gpu": "simulated", "gpus_per_node": 2},
        "roles": {"serve": {"instances": 1, "parallel": {"tp": 2, "dp": nodes}}},
        "router": {"kind": "none"},
        "benchmarks": clients,
        "deadlines": {"bind": 60, "ready": 60, "stall": 60, "prove": 60, "drain": 8},
        "time_limit": "00:10:00",
        **fields,
    }


class Site:
    """Files and commands of one test on a rig."""

    def __init__(
        self, rig: Rig, folder: Path, runs: Path | None = None, fields: Mapping[str, Any] | None = None, **slurm: Any
    ) -> None:
        self.rig = rig
        self.folder = folder
        self.runs = runs or folder / "runs"
        self.profile = folder / "site.yaml"
        data = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": str(self.runs)}
        self.profile.write_text(json.dumps({**data, **(fields or {}), "slurm": {"signal_lead": 20, **slurm}}))

    def file(self, recipe: dict[str, Any]) -> Path:
        """Write a recipe."""
        path = self.folder / "recipe.yaml"
        path.write_text(json.dumps(recipe))
        return path

    def recipe(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run ``recipe`` with this site's runs."""
        return self.rig.recipe(*words, "--runs", self.runs)

    def submit(self, recipe: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
        """Submit a recipe to this site."""
        return self.rig.recipe("submit", self.file(recipe), "--cluster", self.profile, *words)

    def start(self, recipe: dict[str, Any], *words: str) -> Run:
        """Submit a recipe and do not wait."""
        done = self.submit(recipe, "--json", *words)
        assert done.returncode == 0, done.stderr
        return Run(self, json.loads(done.stdout))


class Run:
    """A submitted run."""

    def __init__(self, site: Site, submitted: dict[str, Any]) -> None:
        self.site = site
        self.id: str = submitted["run"]
        self.folder = Path(submitted["folder"])
        self.job_id: str = submitted["job_id"]

    @property
    def record(self) -> dict[str, Any]:
        """state.json, empty before it is there."""
        path = self.folder / "state.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of one name."""
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def reaches(self, phase: str, timeout_s: float = 90.0) -> None:
        """Wait until the run is in a phase."""
        wait_until(lambda: self.record.get("phase") == phase, timeout_s, f"phase {phase}: {self.record}")

    def starts(self, process: str, timeout_s: float = 90.0) -> None:
        """Wait until a process has been started."""
        wait_until(lambda: any(event["process"] == process for event in self.events("process_started")), timeout_s)

    def wait(self, code: int, timeout: str = "2m") -> dict[str, Any]:
        """Wait for the end by ``recipe wait``, which must exit with ``code``; returns the state."""
        done = self.site.recipe("wait", self.id, "--json", "--timeout", timeout)
        assert done.returncode == code, f"{done.returncode}: {done.stdout} {done.stderr}"
        state: dict[str, Any] = json.loads(done.stdout)
        return state

    def agent(self, node: int) -> int:
        """The pid of the agent of a node."""
        for pid in self.site.rig.processes():
            environ = _read(pid, "environ").split("\0")
            words = _read(pid, "cmdline").split("\0")
            ours = {f"SLURM_JOB_ID={self.job_id}", f"SLURM_NODEID={node}"} <= set(environ)
            # The shell and srun of node 0 have these words further behind.
            if ours and words[2:4] == ["-m", "submitit.core._submit"]:
                return pid
        raise AssertionError(f"no agent of node {node} in job {self.job_id}")

    def survivors(self) -> list[str]:
        """What runs in the cluster's namespaces beside Slurm's daemons."""
        found = [(pid, _read(pid, "comm").strip()) for pid in self.site.rig.processes()]
        return [f"{pid} {name} {_read(pid, 'cmdline')!r}" for pid, name in found if name and name not in DAEMONS]

    def leaves_nothing(self, timeout_s: float = 30.0) -> None:
        """Wait until nothing of the run is left on any node."""
        wait_until(lambda: not self.survivors(), timeout_s, f"an end of {self.survivors()}")


def command(pid: int) -> str:
    """The words of a process, empty if it is gone."""
    return _read(pid, "cmdline").replace("\0", " ")


def forget(rig: Rig) -> None:
    """Have slurmctld start anew without its jobs: the quick way to a job that it does not know."""
    pid = int((rig.folder / "run" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: pid not in rig.processes())
    assert rig.exec("slurmctld", "-c", "-f", rig.folder / "slurm.conf").returncode == 0
    wait_until(lambda: rig.exec("scontrol", "ping").returncode == 0)


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
