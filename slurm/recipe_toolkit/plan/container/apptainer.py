"""Apptainer (1.1 and later; options as apptainer-exec(1) of 1.4 has them).

``apptainer exec`` is a parent of the program and runs no entrypoint: all of it descends from the agent,
in the job's cgroup. The program is the user that runs the agent. ``--cleanenv`` keeps the node's
PYTHONPATH, LD_LIBRARY_PATH and modules out; what the plan says comes in as APPTAINERENV_NAME, which a
small program of ours makes of NAME (``--env`` would show the value), and ``--no-eval`` leaves signs of the
shell in it alone. Apptainer takes no other HOME than ``--home`` says: it is a folder on the node's own disk,
made before and removed after. ``/dev``, ``/tmp``, IPC and network are the node's. With setup steps,
which change what the image holds, the program is root in a user namespace (``--fakeroot``); what they
write must fit into the session's memory (``sessiondir max size`` of apptainer.conf).
"""

from __future__ import annotations

from dataclasses import replace

from recipe_toolkit.cluster import Container
from recipe_toolkit.plan.container.inside import HOME, Inside, Runtime
from recipe_toolkit.plan.container.store import Place, pinned
from recipe_toolkit.plan.model import Image, Process
from recipe_toolkit.plan.values import ImagePart, Join, PackagePath, Program, Python, RunId, Value

_PREPARE = PackagePath("run/apptainer.py")


def _housed(inside: Inside) -> Process:
    scratch = Join(("/tmp/recipe-", RunId(), "-", inside.process.name))
    engine: list[Value] = [Program("apptainer"), *inside.container.global_args]
    words = [*engine, "exec", "--cleanenv", "--no-eval", "--writable-tmpfs", "--home", Join((scratch, ":", HOME))]
    words += ["--pwd", inside.folder]
    if inside.needs.root:
        words.append("--fakeroot")
    if inside.needs.gpus:
        words.append("--nv")
    for mount in inside.mounts():
        words += ["--bind", mount.text()]
    words += [*inside.container.args, str(inside.place.file), "/bin/sh", *inside.shielded]
    before: list[Value] = [Python(), "-I", "-S", _PREPARE, scratch, ",".join(inside.variables)]
    return replace(inside.process, argv=(*before, *words), cleanup=("rm", "-r", "-f", scratch))


def _image(container: Container, place: Place, nodes: tuple[int, ...]) -> Image:
    source = f"docker://{pinned(place.reference)}"
    engine: list[Value] = [Program("apptainer"), *container.global_args]
    return Image(
        reference=place.reference,
        nodes=nodes,
        file=place.file,
        fetch=(*engine, "pull", ImagePart(), source) if place.cached else (),
        remedy=f"`apptainer pull {place.file} {source}`"
        if place.cached
        else "put the image file there, or name another in the profile's container.images",
    )


RUNTIME = Runtime(_housed, _image)
