"""Enroot (3.4 and later; options from ``enroot.in``, ``runtime.sh`` and ``docker.sh`` of NVIDIA/enroot).

``enroot start FILE`` mounts the image below a layer in memory, in namespaces of its own, and becomes the
program: a descendant of the agent, in the job's cgroup, with nothing that outlives it. Root inside is
the user that runs the agent. ``--env NAME`` takes the value from enroot's own environment; of the
rest of that environment the container sees nothing. A script of ours stands in the place of the
image's ``/etc/rc``, which holds its entrypoint. The hook ``98-nvidia.sh`` gives the GPUs that
NVIDIA_VISIBLE_DEVICES names and needs ``nvidia-container-cli`` for it; ``void`` keeps an image that
names all from asking for it on nodes without GPUs. ``/dev`` is the node's, RDMA devices included, unless
the site sets ENROOT_RESTRICT_DEV: then its profile's ``env`` names MELLANOX_VISIBLE_DEVICES.
"""

from __future__ import annotations

from dataclasses import replace

from recipe_toolkit.cluster import Container
from recipe_toolkit.plan.container.inside import HOME, Inside, Runtime
from recipe_toolkit.plan.container.store import Place, pinned, registry
from recipe_toolkit.plan.model import Image, Process
from recipe_toolkit.plan.values import ImagePart, PackagePath, Program, Value

# Read on the node, before the root is switched: it needs no mount.
_RC = PackagePath("run/rc.sh")
# A login shell would read the image's /etc/profile, and Debian's puts its own PATH over the image's.
_SETTINGS = {"ENROOT_MOUNT_HOME": "no", "ENROOT_LOGIN_SHELL": "no"}


def devices(inside: Inside) -> dict[str, Value]:
    """What tells enroot's hooks which devices to give."""
    if not inside.needs.gpus:
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


def _housed(inside: Inside) -> Process:
    words: list[Value] = [Program("enroot"), "start", "--root", "--rw", "--rc", _RC]
    if "HOME" not in inside.variables:
        words += ["--env", f"HOME={HOME}"]
    for mount in inside.mounts():
        # An entry of fstab(5) with colons: source, target, type, options (doc/image-format.md).
        words += ["--mount", mount.text(":none:x-create=auto,rbind", ",ro")]
    for variable in inside.variables:
        words += ["--env", variable]
    words += [*inside.container.args, str(inside.place.file), inside.folder, inside.program, *inside.rest]
    env = {**inside.process.env, **devices(inside), **_SETTINGS}
    return replace(inside.process, argv=tuple(words), env=env)


def uri(reference: str) -> str:
    """``docker://[REGISTRY#]IMAGE[:TAG]``, and ``@DIGEST`` from enroot 4 on."""
    where, rest = registry(pinned(reference))
    return f"docker://{where}#{rest}" if where else f"docker://{rest}"


def image(container: Container, place: Place, nodes: tuple[int, ...]) -> Image:
    """The .sqsh that nodes must see."""
    source = uri(place.reference)
    return Image(
        reference=place.reference,
        nodes=nodes,
        file=place.file,
        fetch=(Program("enroot"), "import", "--output", ImagePart(), "--", source) if place.cached else (),
        remedy=f"`enroot import --output {place.file} {source}`"
        if place.cached
        else f"put the image file there, or name another in the profile's container.images ({container.runtime})",
    )


RUNTIME = Runtime(_housed, image)
