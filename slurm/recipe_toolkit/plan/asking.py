"""How the vLLM that a plan runs is asked for its version and its flags, before a run: by ssh, with no agent there.

The image is run as the engines' is, with the profile's own arguments of the runtime and its mounts, read-only; but
without the run's folder, the model and a network, and it is not pulled. pyxis' images are run by enroot: there is no
srun outside a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe_toolkit.cluster import Cluster, Container
from recipe_toolkit.plan.container.store import located, pinned
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.plan.sim import engine_runner
from recipe_toolkit.plan.values import show
from recipe_toolkit.recipe import Recipe

NAME, RC = "{name}", "{rc}"  # the container's, and a file of `exec "$@"`: who asks puts them in
_ENROOT = {"ENROOT_MOUNT_HOME": "no", "ENROOT_LOGIN_SHELL": "no"}


def asking(recipe: Recipe, plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """What ``Expect.vllm`` holds; empty where the plan runs no vLLM.

    ``head``: the words before vLLM's own. ``remove``: what removes the container, its name left out. ``env``: as the
    engines have it. ``where``: in words. ``commands``: role to the distinct ``serve …`` of its processes. ``version``:
    the recipe's. ``setup``: whether steps change what the image holds before it serves.
    """
    if plan.engine != "vllm":
        return {}
    commands: dict[str, list[list[str]]] = {}
    env: dict[str, str] = {}
    for process in plan.processes:
        if process.role == "router":
            continue
        words = [show(word) for word in process.argv]
        serve = words[words.index("serve") :]
        if serve not in commands.setdefault(process.role, []):
            commands[process.role].append(serve)
        env |= {key: value for key, value in process.env.items() if isinstance(value, str)}
    runner = engine_runner(recipe, cluster)
    found: dict[str, Any] = {"head": [show(runner.head)], "remove": [], "env": env, "where": show(runner.head)}
    if runner.image:
        place, gpus = located(cluster.container, runner.image, runner.field), plan.device == "gpu"
        image = place.file or pinned(place.reference)
        found = {**_in_image(cluster.container, image, show(runner.head), env, gpus), "where": place.reference}
    return {**found, "commands": commands, "version": recipe.engine.version, "setup": bool(plan.setup)}


def _in_image(container: Container, image: str, program: str, env: dict[str, str], gpus: bool) -> dict[str, Any]:
    if container.runtime in ("docker", "podman"):
        return _oci(container, image, program, env, gpus)
    mounts = [text.split(":")[:2] for text in container.mounts]
    if container.runtime == "apptainer":
        words = ["apptainer", *container.global_args, "exec", "--cleanenv", "--no-eval", "--no-home", "--pwd", "/"]
        words += ["--nv"] if gpus else []
        words += _each("--bind", (f"{source}:{target}:ro" for source, target in mounts))
        renamed = {f"APPTAINERENV_{name}": value for name, value in env.items()}
        return {"head": [*words, *container.args, image, program], "remove": [], "env": renamed}
    words = ["enroot", "start", "--root", "--rw", "--rc", RC]
    words += _each("--mount", (f"{source}:{target}:none:x-create=auto,rbind,ro" for source, target in mounts))
    words += _each("--env", sorted(env))
    own = container.args if container.runtime == "enroot" else ()  # pyxis' are srun's
    visible = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    devices = visible if gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"head": [*words, *own, image, program], "remove": [], "env": {**env, **devices, **_ENROOT}}


def _oci(container: Container, image: str, program: str, env: dict[str, str], gpus: bool) -> dict[str, Any]:
    engine, podman = [container.runtime, *container.global_args], container.runtime == "podman"
    words = [*engine, "run", "--rm", "--pull=never", "--name", NAME, "--network", "none"]
    if podman and not any(word.startswith("--ulimit") for word in container.args):
        words += ["--ulimit", "host"]  # rootless it may not raise a limit above the user's own
    if gpus:
        words += ["--device", "nvidia.com/gpu=all"] if podman else ["--gpus", "all"]
    # Not --volume: docker would make a folder on the node that is not there.
    mounts = (text.split(":")[:2] for text in container.mounts)
    words += _each("--mount", (f"type=bind,source={source},target={target},readonly" for source, target in mounts))
    words += _each("--env", sorted(env))
    head = [*words, *container.args, "--entrypoint", program, image]
    return {"head": head, "remove": [*engine, "rm", "--force"], "env": env}


def _each(option: str, values: Any) -> Sequence[str]:
    return [word for value in values for word in (option, value)]
