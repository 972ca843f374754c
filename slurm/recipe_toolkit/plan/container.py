"""Container runtimes: (argv, env, mounts, devices) to the argv to exec.

The container has the node's network, IPC and GPU numbers, so it is for nodes that the run has to itself:
it does not stand in the job's cgroup, and sees devices that Slurm may have given to others.
Values of variables never stand in the argv, where every user of the node could read them: ``--env
NAME`` takes the value from the runtime's own environment, which is the one that the plan gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recipe_toolkit.cluster import Container
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.tools import Runner
from recipe_toolkit.plan.values import Join, PackagePath, RunId, RunPath, Value

_OPEN_FILES = 1048576
_INFINIBAND = "/dev/infiniband"


@dataclass(frozen=True)
class Needs:
    """What a process must find in its container.

    ``paths``: folders to read, at the same place as on the node. ``gpus``: whether it computes on
    GPUs. ``fabric``: whether it talks RDMA to other nodes.
    """

    paths: Sequence[Value] = ()
    gpus: bool = False
    fabric: bool = False


_NOTHING = Needs()


def housed(process: Process, where: Runner, container: Container, needs: Needs = _NOTHING) -> Process:
    """The process as its runner says: unchanged on the node itself, else in a container of the profile's runtime."""
    if where.image is None:
        return process
    runtime = _RUNTIMES[container.runtime]
    name = Join((RunId(), "-", process.name))
    program, *rest = process.argv
    words: list[Value] = [container.runtime, "run", "--rm", "--init", "--name", name]
    words += ["--network", "host", "--ipc", "host"]
    # podman takes `host` alone or not at all, so the profile's own limits stand in the place of ours.
    words += [] if any(word.startswith("--ulimit") for word in container.args) else runtime.limits
    if needs.gpus:
        # All of them: which are its own is said by CUDA_VISIBLE_DEVICES, whose numbers are the node's.
        words += runtime.gpus
    if needs.fabric:
        words += ["--device", _INFINIBAND, "--cap-add", "IPC_LOCK"]
    words += _mounts(container, needs.paths)
    for variable in sorted({*process.env, *process.secrets}):
        words += ["--env", variable]
    words += [*container.args, "--entrypoint", program, where.image, *rest]
    inspect = (container.runtime, "inspect", "--format", "{{.State.Pid}}", name)
    return replace(process, argv=tuple(words), cleanup=(*runtime.remove, name), inspect=inspect)


def _mounts(container: Container, paths: Sequence[Value]) -> list[Value]:
    words: list[Value] = ["--volume", Join((RunPath(""), ":", RunPath("")))]
    for mount in container.mounts:
        words += ["--volume", mount]
    inside = [mount.split(":")[1] for mount in container.mounts]
    for path in dict.fromkeys(paths):
        if isinstance(path, str) and any(path == at or path.startswith(f"{at.rstrip('/')}/") for at in inside):
            continue
        if isinstance(path, PackagePath) or str(path).startswith("/"):
            words += ["--volume", Join((path, ":", path, ":ro"))]
    return words


@dataclass(frozen=True)
class _Runtime:
    """What differs. ``gpus``: gives all of the node's. ``remove``: succeeds where there is nothing to remove."""

    limits: tuple[str, ...]
    gpus: tuple[str, ...]
    remove: tuple[str, ...]


_RUNTIMES = {
    "docker": _Runtime(
        limits=("--ulimit", "memlock=-1", "--ulimit", f"nofile={_OPEN_FILES}:{_OPEN_FILES}"),
        gpus=("--gpus", "all"),
        # It has succeeded on a container that is gone since Docker 20.10.
        remove=("docker", "rm", "--force", "--volumes"),
    ),
    "podman": _Runtime(
        # Rootless it may not raise a limit above the user's own, so it hands the agent's on.
        limits=("--ulimit", "host"),
        gpus=("--device", "nvidia.com/gpu=all"),
        remove=("podman", "rm", "--force", "--ignore", "--volumes"),
    ),
}
