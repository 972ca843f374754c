"""What of a profile's ``container`` its runtime cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.faults import Fault, FieldPath, shown

# Signs that separate the parts of a mount where the runtime reads them.
SEPARATORS = {"docker": ":", "podman": ":", "enroot": ": ", "apptainer": ":,", "pyxis": ":, "}
_NAMES = {":": "a colon", " ": "a space", ",": "a comma"}
# Their programs take no options before a command.
_NO_GLOBALS = ("enroot", "pyxis")


def check_profile(cluster: Cluster) -> Iterator[Fault]:
    """Every fault of ``container``, and of images that it is to run."""
    container, runtime = cluster.container, cluster.container.runtime
    if runtime == "none":
        for name, tool in cluster.tools.items():
            if tool.image is not None:
                hint = "docker, podman, enroot, apptainer or pyxis"
                yield Fault(("tools", name, "image"), "an image, and no container.runtime to run it", hint)
        return
    at: FieldPath = ("container", "runtime")
    if runtime == "pyxis" and cluster.scheduler != "slurm":
        said = f"pyxis runs programs as steps of a Slurm job, and the scheduler is {cluster.scheduler}"
        yield Fault(at, said, "enroot, which runs the same images")
    if runtime in _NO_GLOBALS and container.global_args:
        yield Fault(("container", "global_args"), f"{runtime} takes none", "args", key=True)
    paths: list[tuple[FieldPath, str]] = [(("runs",), cluster.runs)]
    paths += [(("models", alias), path) for alias, path in cluster.models.items() if not path.startswith("hf:")]
    paths += [(("data", alias), path) for alias, path in cluster.data.items()]
    for field, path in paths:
        message = unmountable(runtime, path)
        if message:
            yield Fault(field, message, "another name, or a link to it")
    for index, mount in enumerate(container.mounts):
        message = unmountable(runtime, mount.replace(":", ""))
        if message:
            yield Fault(("container", "mounts", index), message, "another name, or a link to it")


def unmountable(runtime: str, path: str) -> str | None:
    """Why the runtime cannot mount ``path``; None if it can."""
    sign = next((sign for sign in SEPARATORS.get(runtime, "") if sign in path), None)
    return f"{shown(path)} holds {_NAMES[sign]}, and {runtime} cannot mount that" if sign else None
