"""What docker and podman have in common: options of ``run``, ``inspect``, ``image`` and ``pull``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from recipe_toolkit.cluster import Container
from recipe_toolkit.plan.container.inside import FABRIC, Inside
from recipe_toolkit.plan.container.store import Place, pinned
from recipe_toolkit.plan.model import Image, Process
from recipe_toolkit.plan.values import Program, Value, WhereThere

_DIGEST = "{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}"


def housed(inside: Inside, own: Sequence[Value], gpus: Sequence[Value], remove: Sequence[Value]) -> Process:
    """The process in a container. ``own``: options of one engine. ``remove``: succeeds on a container that is gone."""
    engine = _engine(inside.container)
    words = [*engine, "run", "--rm", "--init", "--name", inside.name]
    words += ["--network", "host", "--ipc", "host", *own, "--workdir", inside.folder]
    if inside.needs.gpus:
        # All of them: which are its own is said by CUDA_VISIBLE_DEVICES, whose numbers are the node's.
        words += gpus
    if inside.needs.fabric:
        # What a node has is known there alone: either engine refuses to start with a device that is not there.
        words += [WhereThere(device, ("--device", device)) for device in FABRIC]
        words += ["--cap-add", "IPC_LOCK"]
    for mount in inside.mounts():
        words += ["--volume", mount.text()]
    for variable in inside.variables:
        words += ["--env", variable]
    words += [*inside.container.args, "--entrypoint", "/bin/sh", pinned(inside.place.reference), *inside.shielded]
    return replace(
        inside.process,
        argv=tuple(words),
        cleanup=(*engine, *remove, inside.name),
        inspect=(*engine, "inspect", "--format", "{{.State.Pid}}", inside.name),
    )


def image(container: Container, place: Place, nodes: tuple[int, ...], folder: str) -> Image:
    """The image in the engine's store. ``folder``: the format of ``info`` that gives where that is."""
    engine, reference = _engine(container), pinned(place.reference)
    return Image(
        reference=place.reference,
        nodes=nodes,
        present=(*engine, "image", "inspect", "--format", "{{.Id}}", reference),
        fetch=(*engine, "pull", reference),  # a line a layer: progress is told from it
        identify=(*engine, "image", "inspect", "--format", _DIGEST, reference),
        remedy=f"`{container.runtime} pull {reference}` or `{container.runtime} load` on the node",
        store=(*engine, "info", "--format", folder),
    )


def _engine(container: Container) -> list[Value]:
    return [Program(container.runtime), *container.global_args]
