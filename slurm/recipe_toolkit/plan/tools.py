"""Where a program runs, and what a model's or tokenizer's path means, by the profile."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.plan.values import Program, Value


@dataclass(frozen=True)
class Runner:
    """The first word of a command, and the image in which it runs (None: on the node itself).

    ``field``: where that image is named, as FILE:FIELD.
    """

    head: Value
    image: str | None = None
    field: str = ""


def runner(cluster: Cluster, name: str, image: str | None = None, program: str | None = None) -> Runner:
    """How the profile runs its tool ``name``.

    ``program``: what it is called in its virtual environment or image, if not by the tool's name.

    ``image``: the recipe's own, which is pinned and so comes before the profile's; it counts where the
    profile has a container runtime. Without a word in the profile the program is looked for on the node.

    Raises InputError for an image without a runtime.
    """
    tool, program = cluster.tools.get(name), program or name
    inside = cluster.container.runtime != "none"
    wanted = image if inside and image else tool.image if tool else None
    if wanted:
        at = f"profile {cluster.name}"
        if not inside:
            message = "an image needs a container runtime, and the profile has none"
            raise InputError([Problem(at, 0, 0, f"tools.{name}.image", message, "container: {runtime: docker}")])
        return Runner(program, wanted, "recipe:engine.image" if wanted is image else f"{at}:tools.{name}.image")
    if tool and tool.path:
        return Runner(tool.path)
    if tool and tool.venv:
        return Runner(f"{tool.venv.rstrip('/')}/bin/{program}")
    return Runner(Program(program))


@dataclass(frozen=True)
class Source:
    """A model or tokenizer: a path or a repository of the hub, and the repository's revision."""

    name: str
    revision: str | None = None

    @property
    def is_path(self) -> bool:
        """Whether it is a folder that the nodes must see."""
        return self.name.startswith("/")


def folder(path: str, cluster: Cluster, field: str) -> str:
    """The folder on the nodes that ``path`` (absolute, or an alias of the profile's ``data``) means here.

    Raises InputError for an alias that the profile lacks.
    """
    if path.startswith("/"):
        return path
    if path not in cluster.data:
        known = difflib.get_close_matches(path, cluster.data, n=1)
        hint = f"did you mean `{known[0]}`?" if known else f"`data: {{{path}: /PATH}}` in the profile"
        message = f"{path!r} is no data of the profile {cluster.name}"
        raise InputError([Problem("recipe", 0, 0, field, message, hint)])
    return cluster.data[path]


def source(path: str, cluster: Cluster, field: str) -> Source:
    """What ``path`` (absolute, an alias of the profile, or ``hf:ORG/REPO[@REVISION]``) means here.

    Raises InputError for an alias that the profile lacks.
    """
    if not path.startswith(("/", "hf:")):
        if path not in cluster.models:
            known = difflib.get_close_matches(path, cluster.models, n=1)
            hint = f"did you mean `{known[0]}`?" if known else f"`models: {{{path}: /PATH}}` in the profile"
            message = f"{path!r} is no model of the profile {cluster.name}"
            raise InputError([Problem("recipe", 0, 0, field, message, hint)])
        path = cluster.models[path]
    if not path.startswith("hf:"):
        return Source(path)
    name, _, revision = path.removeprefix("hf:").partition("@")
    return Source(name, revision or None)
