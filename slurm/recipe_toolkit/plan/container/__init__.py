"""Container runtimes: a process as it would run on the node, to the process that runs it in an image.

In every runtime the program has the node's network, IPC and GPU numbers; the run folder at the same
path, the model read-only, the profile's mounts, and neither the user's home nor anything else of the
node's file systems; the working directory that it would have on the node; HOME=/root, private and
writable; and of the environment what the plan says, over what the image says. Values of variables
never stand in the argv, where every user of the node could read them: they are handed on by name.
The image's entrypoint is not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from recipe_toolkit.cluster import Container
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.feasibility.containers import unmountable
from recipe_toolkit.plan.container import apptainer, docker, enroot, podman, pyxis
from recipe_toolkit.plan.container.inside import Inside, Needs, Runtime
from recipe_toolkit.plan.container.store import located
from recipe_toolkit.plan.model import Image, Process
from recipe_toolkit.plan.tools import Runner

__all__ = ["Needs", "housed", "images"]

_RUNTIMES: Mapping[str, Runtime] = {
    "docker": docker.RUNTIME,
    "podman": podman.RUNTIME,
    "enroot": enroot.RUNTIME,
    "apptainer": apptainer.RUNTIME,
    "pyxis": pyxis.RUNTIME,
}
_NOTHING = Needs()


def housed(process: Process, where: Runner, container: Container, needs: Needs = _NOTHING) -> Process:
    """The process as its runner says: unchanged on the node itself, else in a container of the profile's runtime.

    Raises InputError for an image that the runtime cannot find, or a path that it cannot mount.
    """
    if where.image is None:
        return process
    for path in needs.paths:
        message = unmountable(container.runtime, path) if isinstance(path, str) else None
        if message:
            raise InputError([Problem("recipe", 0, 0, "model", message, "another name, or a link to it")])
    place = located(container, where.image, where.field)
    inside = Inside(process, container, needs, place)
    return replace(_RUNTIMES[container.runtime].housed(inside), image=place.reference)


def images(container: Container, processes: Iterable[Process]) -> tuple[Image, ...]:
    """Every image of the processes, with the nodes that need it, in the order of first use."""
    nodes: dict[str, set[int]] = {}
    for process in processes:
        if process.image is not None:
            nodes.setdefault(process.image, set()).add(process.node)
    runtime = _RUNTIMES.get(container.runtime)
    if runtime is None:
        return ()
    return tuple(
        runtime.image(container, located(container, reference, ""), tuple(sorted(where)))
        for reference, where in nodes.items()
    )
