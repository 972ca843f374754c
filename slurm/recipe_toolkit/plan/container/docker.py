"""Docker (20.10 and later; options as ``docker run --help`` of 28 has them).

Its containers are the daemon's children: they stand in no cgroup of the job and see every GPU, so it
is for nodes that the run has whole. Inside, the program is the user that runs the agent, so that what
it writes into the run folder is the user's; vLLM's images can do that since vllm-project/vllm#40275.
The user has no entry in the image's passwd: USER spares PyTorch the look-up, and HOME is a folder in
memory (``exec``, because compiled kernels are loaded from it). With setup steps, which change what the
image holds, the program is root.
"""

from __future__ import annotations

from functools import partial

from recipe_toolkit.plan.container import oci
from recipe_toolkit.plan.container.inside import HOME, Inside, Runtime
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.values import User, Value

_OPEN_FILES = 1048576


def _housed(inside: Inside) -> Process:
    own: list[Value] = ["--ulimit", "memlock=-1", "--ulimit", f"nofile={_OPEN_FILES}:{_OPEN_FILES}"]
    if not inside.needs.root:
        own += ["--user", User(), "--env", "USER=recipe"]
        if not any(mount.target == HOME for mount in inside.mounts()):
            own += ["--tmpfs", f"{HOME}:exec,mode=1777"]
    if "HOME" not in inside.variables:
        own += ["--env", f"HOME={HOME}"]
    # It has succeeded on a container that is gone since 20.10.
    return oci.housed(inside, own, ("--gpus", "all"), ("rm", "--force", "--volumes"))


RUNTIME = Runtime(_housed, partial(oci.image, folder="{{.DockerRootDir}}"))
