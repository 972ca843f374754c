"""Every path of a run, and writes that are whole or not there."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunDir:
    """The folder of one run, on a file system that all its nodes share."""

    root: Path

    @property
    def id(self) -> str:
        """The run's id: the folder's name."""
        return self.root.name

    @property
    def recipe_lock(self) -> Path:
        """The resolved recipe; it runs again as it is."""
        return self.root / "recipe.lock.yaml"

    @property
    def cluster_lock(self) -> Path:
        """The profile as it was used."""
        return self.root / "cluster.lock.yaml"

    @property
    def plan(self) -> Path:
        """The plan, before it is bound."""
        return self.root / "plan.json"

    @property
    def setup(self) -> Path:
        """The setup steps, and the script that runs them; not there without any."""
        return self.root / "setup"

    @property
    def job_folder(self) -> Path:
        """submitit's own files."""
        return self.root / "job"

    @property
    def job(self) -> Path:
        """Which job runs this: scheduler, job id, host, command."""
        return self.root / "job.json"

    @property
    def cancelled(self) -> Path:
        """There when somebody has told the job to end."""
        return self.job_folder / "cancelled"

    @property
    def sweep(self) -> Path:
        """Of which sweep the run is a part, and which variants it measures; not there for other runs."""
        return self.root / "sweep.json"

    @property
    def token(self) -> Path:
        """The secret of the control channel, mode 0600."""
        return self.root / "token"

    @property
    def state(self) -> Path:
        """What the lead last knew: state, phase, processes."""
        return self.root / "state.json"

    @property
    def events(self) -> Path:
        """What happened when, a JSON object a line, written by the lead alone."""
        return self.root / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """Scraped series, a file a process."""
        return self.root / "metrics"

    @property
    def results(self) -> Path:
        """The results in the one schema."""
        return self.root / "results.json"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.root / "report.html"

    @property
    def manifest(self) -> Path:
        """Path, bytes and sha256 of every file."""
        return self.root / "manifest.json"

    def attempt(self, number: int) -> "AttemptDir":
        """The folder of one attempt; a requeue adds the next."""
        return AttemptDir(self.root / "attempts" / str(number))

    def attempts(self) -> list[int]:
        """The numbers of the attempts so far, in order."""
        folder = self.root / "attempts"
        return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []

    def bench(self, point: str) -> Path:
        """The client's own artifacts of one point."""
        return self.root / "bench" / point


@dataclass(frozen=True)
class AttemptDir:
    """What one attempt of a run writes."""

    root: Path

    @property
    def bound(self) -> Path:
        """The plan as bound: addresses, GPU ids, ports and every command as executed."""
        return self.root / "bound.json"

    @property
    def check(self) -> Path:
        """What the preflight found on the nodes."""
        return self.root / "check.json"

    @property
    def lead(self) -> Path:
        """Where the lead listens."""
        return self.root / "lead.json"

    def node(self, index: int) -> Path:
        """The folder of one node."""
        return self.root / "nodes" / f"{index:02d}"

    def facts(self, index: int) -> Path:
        """What the node said of itself."""
        return self.node(index) / "facts.json"

    def agent_log(self, index: int) -> Path:
        """The agent's own log."""
        return self.node(index) / "agent.log"

    def process_log(self, index: int, process: str) -> Path:
        """stdout and stderr of one process."""
        return self.node(index) / f"{process}.log"


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write ``text`` under a temporary name beside ``path``, then rename. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):  # that of a full disk names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_json(path: Path, data: Any, mode: int = 0o644) -> None:
    """Write data as indented JSON, whole or not at all. Raises OSError, TypeError."""
    write_atomic(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n", mode)


def read_json(path: Path) -> Any:
    """The data of a JSON file. Raises OSError, ValueError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None
