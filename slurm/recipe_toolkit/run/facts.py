"""What an agent finds out about its node before anything is started."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import recipe_toolkit
from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Plan, Process
from recipe_toolkit.plan.values import Join, Json, Program, WhereThere
from recipe_toolkit.run.environment import Place, addresses, hostname

_SMI = "nvidia-smi"
# How a runtime comes onto a node that lacks it.
_RUNTIMES = {
    "docker": "install Docker (docker-ce, or Debian's docker.io), and let the user reach its daemon",
    "podman": "install podman",
    "enroot": "install enroot and enroot+caps (github.com/NVIDIA/enroot/releases)",
    "apptainer": "install apptainer (apptainer.org, or EPEL)",
    "srun": "install Slurm's commands (slurm-client), which pyxis extends",
}
_SMI_S = 60.0  # the first call on an idle node without persistence loads the driver


def on_node(plan: Plan, node: int) -> list[Process]:
    """The plan's processes of one node, clients included."""
    everything = [*plan.processes, *(point.process for point in plan.benchmarks)]
    return [process for process in everything if process.node == node]


def programs(plan: Plan, node: int) -> dict[str, str | None]:
    """Where each program that the node's processes need is; None if it is nowhere."""
    found = [item for process in on_node(plan, node) for item in _of_process(process)]
    wanted = [image for image in plan.images if node in image.nodes]
    found += _references([[item.present, item.fetch, item.identify, item.store] for item in wanted])
    return {name: _locate(name) for name in sorted({item.name for item in found if isinstance(item, Program)})}


def paths(plan: Plan, node: int) -> dict[str, bool]:
    """Whether the node has each path on which words of its commands depend."""
    found = [item for process in on_node(plan, node) for item in _of_process(process)]
    return {path: Path(path).exists() for path in sorted({item.path for item in found if isinstance(item, WhereThere)})}


def missing_programs(where: Place, found: Mapping[str, str | None], *, rehearsal: bool = False) -> Iterator[str]:
    """What a node lacks of the programs that it needs (name to path), and what to do about it.

    In a ``rehearsal`` only the client can need vLLM, and there is another one.
    """
    node = f"node {where.index} ({hostname()})"
    runtimes = [name for name, path in found.items() if path is None and name in _RUNTIMES]
    for name in runtimes:
        yield (
            f"{node} has no {name}, neither beside {sys.executable} nor on PATH\n"
            f"hint: {_RUNTIMES[name]}; or choose another in the profile: container: {{runtime: …}}"
        )
    others = [name for name, path in found.items() if path is None and name not in runtimes]
    if others:
        client = "; or measure with AIPerf: --set benchmarks.0.client=aiperf" if rehearsal and "vllm" in others else ""
        yield (
            f"{node} has no {' and no '.join(others)}, neither beside {sys.executable} nor on PATH\n"
            f"hint: install it there, or name its venv under tools in the profile{client}"
        )
    srun = found.get("srun")
    if srun and "--container-image" not in _output([srun, "--help"]):
        yield (
            f"{node} has no pyxis: its srun knows no --container-image\n"
            "hint: install pyxis there (spank_pyxis.so, named in plugstack.conf); or choose another runtime in the "
            "profile: container: {runtime: …}"
        )


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _references(value: Any) -> Iterator[Any]:
    """The value, and every value inside it."""
    yield value
    inner: Any = ()
    if isinstance(value, Join):
        inner = value.parts
    elif isinstance(value, WhereThere):
        inner = value.words
    elif isinstance(value, Json):
        inner = [value.document]
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    for item in inner:
        yield from _references(item)


def _of_process(process: Process) -> Iterator[Any]:
    return _references([process.argv, process.cleanup, process.inspect, process.env])


def _locate(name: str) -> str | None:
    # Not resolved: beside a virtual environment's python link, not beside the system's python.
    beside = Path(sys.executable).parent / name
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which(name)


def devices(plan: Plan, where: Place, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the node's GPUs, in slot order; slot numbers where the run needs no GPU.

    Raises RunError if the node has fewer than the plan uses.
    """
    node = plan.nodes[where.index]
    if plan.device != "gpu" or plan.engine == "sim":
        return tuple(str(slot) for slot in range(max(node.gpus, plan.gpus_per_node)))
    source, found = _gpus(environ)
    # Local nodes share the host: each takes the GPUs after those of the nodes before it.
    skip = sum(item.gpus for item in plan.nodes[: where.index]) if where.scheduler == "local" else 0
    if len(found) - skip < node.gpus:
        raise RunError(
            f"node {where.index} ({hostname()}) has {max(0, len(found) - skip)} GPUs for this run "
            f"({source}: {','.join(found) or 'none'}), but the plan uses {node.gpus}",
            hint="check the profile's slurm.gpus and the recipe's resources.gpus_per_node",
        )
    return tuple(found[skip:])


def _gpus(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        text = environ.get(name, "")
        if text and text != "NoDevFiles":
            return name, _expand(text)
    rows = _nvidia_smi("--query-gpu=index", "--format=csv,noheader")
    return _SMI, rows


def _expand(text: str) -> list[str]:
    """Slurm writes ``0-3,6``; CUDA writes ``0,1`` or ids that begin with GPU- or MIG-."""
    found: list[str] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if dash and first.isdigit() and last.isdigit():
            found += [str(number) for number in range(int(first), int(last) + 1)]
        elif item.strip():
            found.append(item.strip())
    return found


def _nvidia_smi(*arguments: str) -> list[str]:
    program = shutil.which(_SMI)
    if program is None:
        return []
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def collect(plan: Plan, where: Place) -> dict[str, Any]:
    """The facts of this node, as they are written to facts.json."""
    limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}")) for name in ("nofile", "memlock")}
    gpus = _gpu_rows() if plan.device == "gpu" and plan.engine != "sim" else []
    return {
        "host": hostname(),
        "node_name": where.node_name or hostname(),
        "user": f"{os.getuid()}:{os.getgid()}",
        "scheduler": where.scheduler,
        "job_id": where.job_id,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": sys.executable,
        "python_version": platform.python_version(),
        "toolkit": recipe_toolkit.__version__,
        "toolkit_path": str(Path(recipe_toolkit.__file__).parent),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "limits": {name: [_limit(value) for value in pair] for name, pair in limits.items()},
        "gpus": gpus,
        "driver": gpus[0]["driver"] if gpus else None,
        "interfaces": [{"name": name, "address": address} for name, address in addresses()],
        "rdma": _rdma(),
        "model": _model(plan, where.index),
    }


def _gpu_rows() -> list[dict[str, str]]:
    keys = ("index", "name", "uuid", "driver", "memory_mib")
    rows = _nvidia_smi("--query-gpu=index,name,uuid,driver_version,memory.total", "--format=csv,noheader,nounits")
    return [dict(zip(keys, (item.strip() for item in row.split(",")), strict=False)) for row in rows]


def _rdma() -> list[dict[str, str]]:
    """RDMA ports as the kernel names them, with their state and rate."""
    return [
        {
            "device": port.parent.parent.name,
            "port": port.name,
            "state": _word(port / "state"),
            "rate": _word(port / "rate"),
        }
        for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
    ]


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _model(plan: Plan, node: int) -> dict[str, Any] | None:
    """The model's path as this node sees it, and its config.json by size and SHA-256.

    vLLM's command line is ``serve MODEL …``, and the simulated engine's is the same.
    """
    for process in on_node(plan, node):
        words = list(process.argv)
        path = words[words.index("serve") + 1] if "serve" in words[:-1] else None
        if isinstance(path, str) and path.startswith("/"):
            config = Path(path) / "config.json"
            try:
                data = config.read_bytes()
            except OSError:
                return {"path": path, "config_bytes": None, "config_sha256": None}
            return {"path": path, "config_bytes": len(data), "config_sha256": hashlib.sha256(data).hexdigest()}
    return None


# Facts that must be the same on all nodes (None: not there), and what to do when they are not.
MUST_AGREE = {
    "toolkit": "install the same recipe-toolkit on all nodes, or name a shared pythonpath in the profile",
    "driver": "drain the node with the other driver, or exclude it with a constraint",
    "model": "put the same model under this path on all nodes",
}


def disagreements(plan: Plan, found: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(what differs between the nodes, what to do about it)."""
    problems = []
    for key, remedy in MUST_AGREE.items():
        values: dict[str, list[str]] = {}
        for node, item in sorted(found.items()):
            value = item.get(key)
            if key == "model" and not any(
                isinstance(word, str) and word == "serve" for p in on_node(plan, node) for word in p.argv
            ):
                continue  # this node serves nothing
            if key == "driver" and plan.device != "gpu":
                continue
            values.setdefault(str(value), []).append(f"{node} ({item.get('host')})")
        if len(values) > 1:
            shown = "; ".join(f"{value} on node {', '.join(nodes)}" for value, nodes in values.items())
            problems.append((f"the nodes disagree on {key}: {shown}", remedy))
    return problems
