"""Submission to hosts without a scheduler: each is looked at by ssh, then a controller here holds a line to each."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from recipe_toolkit import __version__
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import SubmitError
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.run.seat import MARK
from recipe_toolkit.rundir import RunDir, write_json
from recipe_toolkit.submit import controller, slurm_commands
from recipe_toolkit.submit.slurm import python_command

LOOK_S = 60.0
_AT_ONCE = 32
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")


def argv(cluster: Cluster, host: str) -> list[str]:
    """The command that starts a seat on a host."""
    config = ["-F", cluster.ssh.config] if cluster.ssh.config else []
    return ["ssh", *config, *_OPTIONS, "--", host, f"exec {python_command(cluster)} -m recipe_toolkit.run.seat"]


def check() -> None:
    """Raise SubmitError where there is no ssh."""
    if shutil.which("ssh") is None:
        raise SubmitError("ssh: not found on PATH", hint="install an ssh client")


def order(run: RunDir, plan: Plan, **fields: Any) -> dict[str, Any]:
    """What a seat is told of a run."""
    digest = hashlib.sha256(run.plan.read_bytes()).hexdigest()
    return {"run": str(run.root), "digest": digest, "count": len(plan.nodes), **fields}


@dataclass(frozen=True)
class _Looked:
    """What a host has said. ``problem``: why it cannot take part."""

    host: str
    busy: bool = False
    problem: str | None = None


def choose(run: RunDir, plan: Plan, cluster: Cluster) -> list[str]:
    """The hosts that the run takes: as many as it has nodes, in the order of the profile, those of other runs left out.

    Raises SubmitError with what is wrong with each host, or if too few are free.
    """
    asked = json.dumps(order(run, plan, look=True)) + "\n"
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda host: _look(argv(cluster, host), host, asked), cluster.ssh.hosts))
    bad = [f"{item.host}: {item.problem}" for item in found if item.problem]
    if bad:
        raise SubmitError(
            "hosts that cannot take part:\n  " + "\n  ".join(bad),
            hint="`runs` must be one folder for all hosts, and `python` and `pythonpath` find this package on each; "
            "leave a host out of ssh.hosts that is away",
        )
    free = [item.host for item in found if not item.busy]
    if len(free) < len(plan.nodes):
        busy = ", ".join(item.host for item in found if item.busy)
        count = f"the run needs {len(plan.nodes)} hosts, and {len(free)} of {len(found)} are free"
        raise SubmitError(
            f"{count}; with another run: {busy}",
            hint="`recipe list` shows it; of several runs, --wait --at-once 1 starts each when another has ended",
        )
    return free[: len(plan.nodes)]


def _look(command: list[str], host: str, asked: str) -> _Looked:
    try:
        done = subprocess.run(
            command, input=asked, timeout=LOOK_S, capture_output=True, text=True, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return _Looked(host, problem=f"no answer in {LOOK_S:g} s")
    except OSError as error:
        return _Looked(host, problem=f"ssh: {error.strerror or error}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        said = done.stderr.strip().splitlines()
        return _Looked(host, problem=said[-1] if said else f"ssh exited with {done.returncode}, and said nothing")
    told = json.loads(lines[-1][len(MARK) :])
    if told["version"] != __version__:
        return _Looked(host, problem=f"it has version {told['version']} of this package, and here is {__version__}")
    return _Looked(host, bool(told["busy"]), told["problem"])


def launch(run: RunDir, plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Choose hosts and start the run's controller; returns what ``job.json`` holds. Raises SubmitError."""
    hosts = choose(run, plan, cluster)
    limit = max(1, int(plan.time_limit_s))
    seats = {
        "hosts": hosts,
        "argv": [argv(cluster, host) for host in hosts],
        "order": order(run, plan),
        "secrets": list(cluster.secrets),
        "limit_s": limit,
        "warn_s": limit - max(1, min(cluster.slurm.signal_lead_s, limit // 4)),
    }
    write_json(run.job_folder / "seats.json", seats)
    with (run.job_folder / "controller.log").open("ab") as log:
        # A session of its own: neither the terminal's Ctrl-C nor its end reaches it.
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "recipe_toolkit.submit.ssh_controller", str(run.root)],
            env=slurm_commands.environment(),
            cwd=run.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
        )
    return {"scheduler": "ssh", "job_id": str(process.pid), "hosts": hosts, **controller.identify(process.pid)}


def describe(run: RunDir, plan: Plan, cluster: Cluster) -> str:
    """What :func:`launch` would start, for a dry run; no host is asked."""
    lines = [f"# from {os.uname().nodename}: an agent on each of {len(plan.nodes)} hosts, in {run.root}"]
    lines += [f"{shlex.join(argv(cluster, host))}" for host in cluster.ssh.hosts[: len(plan.nodes)]]
    return "\n".join([*lines, ""])
