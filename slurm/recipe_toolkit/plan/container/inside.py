"""What every adapter is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recipe_toolkit.cluster import Container
from recipe_toolkit.plan.container.store import Place
from recipe_toolkit.plan.model import Image, Process
from recipe_toolkit.plan.values import Join, NodeFolder, PackagePath, RunId, RunPath, Value

HOME = "/root"
# What RDMA needs, and NVLink between nodes (CUDA's IMEX channels).
FABRIC = ("/dev/infiniband", "/dev/nvidia-caps-imex-channels")
# The agent adds to them the addresses of the run's nodes.
_NO_PROXY = ("NO_PROXY", "no_proxy")


@dataclass(frozen=True)
class Needs:
    """What a process must find in its container.

    ``paths``: folders to read, at the same place as on the node. ``gpus``: whether it computes on
    GPUs. ``fabric``: whether it talks RDMA to other nodes. ``root``: whether it changes what the image
    holds, as setup steps do. ``folder``: its working directory in the run folder, if not the node's.
    """

    paths: Sequence[Value] = ()
    gpus: bool = False
    fabric: bool = False
    root: bool = False
    folder: RunPath | None = None


@dataclass(frozen=True)
class Mount:
    """``source`` on the node, seen at ``target``."""

    source: Value
    target: Value
    read_only: bool = False

    def text(self, options: str = "", read_only: str = ":ro") -> Value:
        """``SOURCE:TARGET``, ``options``, and what says that nobody may write."""
        end = f"{options}{read_only if self.read_only else ''}"
        return Join((self.source, ":", self.target, *([end] if end else ())))


@dataclass(frozen=True)
class Inside:
    """A process, and the container that it is to run in."""

    process: Process
    container: Container
    needs: Needs
    place: Place

    @property
    def name(self) -> Join:
        """The container's name: the run's and the process's, so that nobody else has it."""
        return Join((RunId(), "-", self.process.name))

    @property
    def program(self) -> Value:
        """What is executed, as the image calls it."""
        return self.process.argv[0]

    @property
    def rest(self) -> Sequence[Value]:
        """Its arguments."""
        return self.process.argv[1:]

    @property
    def shielded(self) -> list[Value]:
        """The arguments of /bin/sh that start the program without USR2.

        Slurm warns of the time limit by a signal to every process of the job. The clients of docker and
        podman, and apptainer, hand it on, and it would end the program; the agent alone decides what it means.
        """
        return ["-c", "trap '' USR2; exec \"$@\"", "sh", self.program, *self.rest]

    @property
    def folder(self) -> Value:
        """The working directory: the same as on the node."""
        return self.needs.folder or NodeFolder()

    @property
    def variables(self) -> list[str]:
        """Names of the variables that are handed on."""
        return sorted({*self.process.env, *self.process.secrets, *_NO_PROXY})

    def mounts(self, *own: Value) -> list[Mount]:
        """The run folder, the profile's mounts, and what the process reads. ``own``: what the adapter itself adds."""
        found = [Mount(RunPath(""), RunPath(""))]
        inside = []
        for text in self.container.mounts:
            source, target, *mode = text.split(":")
            inside.append(target.rstrip("/"))
            found.append(Mount(source, target, mode == ["ro"]))
        for path in dict.fromkeys([*self.needs.paths, *own]):
            if isinstance(path, str) and any(path == at or path.startswith(f"{at}/") for at in inside):
                continue
            if isinstance(path, PackagePath) or str(path).startswith("/"):
                found.append(Mount(path, path, read_only=True))
        return found


@dataclass(frozen=True)
class Runtime:
    """An adapter. ``image``: what nodes must hold, from the profile's container, the image and the nodes."""

    housed: Callable[[Inside], Process]
    image: Callable[[Container, Place, tuple[int, ...]], Image]
