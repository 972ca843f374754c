"""Plans, profiles, run folders and a fake Slurm for the tests of submission."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recipe_toolkit.cluster import Cluster, Slurm
from recipe_toolkit.plan.model import Deadlines, Gpus, Node, Plan, Proof
from recipe_toolkit.rundir import RunDir, write_json

FAKE = Path(__file__).parent / "fakes" / "slurm.py"
PROGRAMS = ("sbatch", "squeue", "scontrol", "sacct", "scancel", "sinfo")

NO_ACCOUNTING = {"err": "Slurm accounting storage is disabled\n", "code": 1}
UNKNOWN_JOB = {"err": "slurm_load_jobs error: Invalid job id specified\n", "code": 1}


def make_plan(
    nodes: int = 2, *, device: str = "gpu", time_limit_s: int = 3600, name: str = "tiny", **fields: Any
) -> Plan:
    """A plan of nodes alone: submission looks at nothing else."""
    return Plan(
        name=name,
        engine="sim",
        engine_version="0.32.0",
        served_name="tiny",
        device=device,
        gpu="B300",
        gpus_per_node=8,
        time_limit_s=time_limit_s,
        nodes=tuple(Node(index, 4) for index in range(nodes)),
        instances=(),
        processes=(),
        benchmarks=(),
        entry="serve-0",
        proof=Proof("generate", 1),
        deadlines=Deadlines(),
        gpus=Gpus(allocated=8 * nodes, working=4 * nodes, by_role={"serve": 4 * nodes}),
        **fields,
    )


def make_cluster(runs: Path | str, **fields: Any) -> Cluster:
    """A profile of a Slurm with one partition."""
    return Cluster(**{"name": "site", "scheduler": "slurm", "runs": str(runs), "slurm": Slurm(), **fields})


def loaded(**fields: Any) -> Any:
    """Stands for what a loader returns."""
    return SimpleNamespace(warnings=(), **fields)


class FakeSlurm:
    """Programs on PATH that answer what they are told to, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for program in PROGRAMS:
            path = self.bin / program
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{FAKE}" "{folder}" {program} "$@"\n')
            path.chmod(0o755)

    def says(self, program: str, out: str = "", *, err: str = "", code: int = 0, call: int | None = None, **more: Any):
        """Record the answer to every call of ``program``, or to one."""
        name = program if call is None else f"{program}.{call}"
        (self.folder / f"{name}.json").write_text(json.dumps({"out": out, "err": err, "code": code, **more}))

    def calls(self, program: str | None = None) -> list[dict[str, Any]]:
        """The calls so far, in order."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if program in (None, call["program"])]

    def holds(self, *jobs: str) -> None:
        """squeue knows these jobs: ``ID|STATE|REASON|NODES|WAIT STATUS|RESTARTS``."""
        self.says("squeue", "".join(f"{job}|\n" for job in jobs))

    def forgets(self, *, accounting: bool = False) -> None:
        """No program knows any job any more."""
        self.says("squeue", **UNKNOWN_JOB)
        self.says("scontrol", **UNKNOWN_JOB)
        self.says("sacct", **({} if accounting else NO_ACCOUNTING))


def make_run(
    runs: Path, name: str = "2026-11-29T12-00-00-tiny-ab12", *, job: dict[str, Any] | None = None, **state: Any
) -> RunDir:
    """A run folder as it stands after submission; with ``state``, also state.json."""
    run = RunDir(runs / name)
    run.job_folder.mkdir(parents=True)
    write_json(run.plan, make_plan().to_json())
    run.recipe_lock.write_text("schema: 1\n")
    if job is None:
        job = {"scheduler": "slurm", "job_id": "7", "cluster": None, "submitted": time.time()}
    if job:
        write_json(run.job, job)
    if state:
        write_state(run, **state)
    return run


def write_state(run: RunDir, state: str, **fields: Any) -> None:
    """Write state.json as the lead does."""
    known = {"schema": 1, "state": state, "phase": "end", "attempt": 0, "updated": time.time(), "message": None}
    write_json(run.state, {**known, "valid": None, "nodes": [], "processes": {}, "points": {}, **fields})


def wait_until(condition: Callable[[], Any], timeout_s: float = 30.0, what: str = "it") -> Any:
    """Poll until ``condition`` gives something true, and return that; AssertionError at the deadline."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout_s:g} s for {what}")
