"""Podman (4.3 and later; options as podman-run(1) of 4.3.1 has them).

It has no daemon: root in its container is whoever runs the agent, in a user namespace or really, so
what it writes into the run folder is that user's. Where images were made for another user, and where
files are readable by one of the user's further groups, the profile's ``args`` can say
``--userns=keep-id`` or ``--group-add=keep-groups``.
"""

from __future__ import annotations

from functools import partial

from recipe_toolkit.plan.container import oci
from recipe_toolkit.plan.container.inside import HOME, Inside, Runtime
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.values import Value


def _housed(inside: Inside) -> Process:
    own: list[Value] = ["--user", "0:0"]
    # Rootless it may not raise a limit above the user's own, so it hands the agent's on. It takes `host`
    # alone or not at all: the profile's own limits stand in its place.
    own += [] if any(word.startswith("--ulimit") for word in inside.container.args) else ["--ulimit", "host"]
    own += [] if "HOME" in inside.variables else ["--env", f"HOME={HOME}"]
    return oci.housed(inside, own, ("--device", "nvidia.com/gpu=all"), ("rm", "--force", "--ignore", "--volumes"))


RUNTIME = Runtime(_housed, partial(oci.image, folder="{{.Store.GraphRoot}}"))
