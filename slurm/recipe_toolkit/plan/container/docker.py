"""Docker (20.10 and later; options as ``docker run --help`` of 28 has them).

Its containers are the daemon's children: they stand in no cgroup of the job and see every GPU, so it
is for nodes that the run has whole. Inside, the program is the user that runs the agent, so that what
it writes into the run folder is the user's; vLLM's images can do that since vllm-project/vllm#40275.
The user has no entry in the image's passwd: USER spares PyTorch the look-up, and HOME is a folder in
memory (``exec``, because compiled kernels are loaded from it), over the image's own that only root could
read. With setup steps, which change what the image holds, the program is root; and what the profile's
``args`` say of ``--user`` stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath

from recipe_toolkit.plan.container import oci
from recipe_toolkit.plan.container.inside import HOME, Inside, Runtime
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.values import User, Value

_OPEN_FILES = 1048576


def _housed(inside: Inside) -> Process:
    own: list[Value] = ["--ulimit", "memlock=-1", "--ulimit", f"nofile={_OPEN_FILES}:{_OPEN_FILES}"]
    chosen = any(word in ("--user", "-u") or word.startswith("--user=") for word in inside.container.args)
    if not inside.needs.root and not chosen:
        own += ["--user", User(), "--env", "USER=recipe"]
        for folder in _own_folders([str(mount.target).rstrip("/") for mount in inside.mounts()]):
            own += ["--tmpfs", f"{folder}:exec,mode=1777"]
    if "HOME" not in inside.variables:
        own += ["--env", f"HOME={HOME}"]
    # It has succeeded on a container that is gone since 20.10.
    return oci.housed(inside, own, ("--gpus", "all"), ("rm", "--force", "--volumes"))


def _own_folders(targets: Sequence[str]) -> list[str]:
    """HOME, and the folders between it and a mount, which docker would make for root; mounts themselves left out."""
    found = [HOME]
    for target in targets:
        between = [str(folder) for folder in reversed(PurePosixPath(target).parents)]
        found += [folder for folder in between if folder.startswith(f"{HOME}/")]
    return [folder for folder in dict.fromkeys(found) if folder not in targets]


RUNTIME = Runtime(_housed, partial(oci.image, folder="{{.DockerRootDir}}"))
