"""What a foreign recipe says of its site: the makings of a cluster profile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recipe_toolkit.feasibility.profile import DIRECTIVES
from recipe_toolkit.importers.notes import LOST, PROFILE, SET
from recipe_toolkit.importers.reader import Cursor

_ORDER = ("models", "data", "tools", "container", "env", "secrets", "interface", "slurm")


class ProfileDraft:
    """``data``: fields of a profile, without those that every site must say itself. ``runtime``: of its images."""

    def __init__(self, runtime: str = "pyxis") -> None:
        self.runtime = runtime
        self.data: dict[str, Any] = {}

    def set(self, path: tuple[str, ...], value: Any, origin: Cursor, message: str | None = None) -> None:
        """Set a field that comes from ``origin``; where it has another value already, the first one stays."""
        holder = self.data
        for part in path[:-1]:
            holder = holder.setdefault(part, {})
        where = ".".join(path)
        if holder.setdefault(path[-1], value) != value:
            origin.note(LOST, f"another value was given before for {where} of the cluster profile")
        else:
            origin.note(PROFILE, message or f"{where} of the cluster profile")

    def add(self, path: tuple[str, ...], value: str, origin: Cursor) -> None:
        """Add an item to a list."""
        holder = self.data
        for part in path[:-1]:
            holder = holder.setdefault(part, {})
        items = holder.setdefault(path[-1], [])
        if value not in items:
            items.append(value)
        origin.note(PROFILE, f"{'.'.join(path)} of the cluster profile")

    def merge(self, other: "ProfileDraft") -> None:
        """Take over what another file says and this one does not."""
        _merge(self.data, other.data)

    def complete(self, name: str) -> dict[str, Any]:
        """A whole profile: what must be said and is not known is what most sites have."""
        head = {"schema": 1, "name": name, "scheduler": "slurm", "runs": self.data.get("runs", "~/recipe-runs")}
        data = dict(self.data)
        if "tools" in data or "container" in data:
            # pyxis starts from files, which are fetched into the cache.
            usual = {"runtime": self.runtime} | ({"cache": "~/recipe-images"} if self.runtime == "pyxis" else {})
            data["container"] = usual | data.get("container", {})
        return head | {key: data[key] for key in _ORDER if key in data}


def _merge(into: dict[str, Any], data: dict[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list) and isinstance(into.get(key), list):
            into[key] += [item for item in value if item not in into[key]]
        else:
            into.setdefault(key, value)


def read_directives(cursor: Cursor, profile: ProfileDraft) -> None:
    """Options of sbatch, by their long names; an empty value is a bare option."""
    for key, item in cursor.items():
        name = key.lstrip("-").replace("_", "-")
        if name in ("partition", "account", "qos", "reservation", "constraint"):
            profile.set(("slurm", name), item.text() or "", item)
        elif name == "segment":
            profile.set(("slurm", "segment"), item.integer(least=1) or 1, item)
        elif name == "exclusive":
            profile.set(("slurm", "exclusive"), True, item)
        elif name in DIRECTIVES:
            item.note(SET, f"it follows from {DIRECTIVES[name]}")
        else:
            text = item.text() or ""
            profile.set(("slurm", "directives", name), True if text in ("", "true") else text, item)


def read_srun_options(cursor: Cursor, profile: ProfileDraft) -> None:
    """Options of the srun that starts each process; those of the container plugin go with its containers."""
    for key, item in cursor.items():
        name, text = key.lstrip("-").replace("_", "-"), item.text() or ""
        word = f"--{name}={text}" if text else f"--{name}"
        if name == "container-mounts":
            read_mounts([(mount, item) for mount in text.split(",")], profile)
        elif name in ("container-image", "container-name", "container-save"):
            item.note(SET, "the runtime names its containers and images itself")
        else:
            profile.add(("container", "args") if name.startswith("container-") else ("slurm", "srun_args"), word, item)


def read_mounts(cursors: Iterable[tuple[str, Cursor]], profile: ProfileDraft) -> None:
    """Mounts HOST:CONTAINER; a host path that holds a placeholder of the tool is no path here."""
    for mount, item in cursors:
        host, _, inside = mount.partition(":")
        if "{" in mount or not host or not inside.startswith("/"):
            item.note(LOST, "not of the form HOST:CONTAINER with two absolute paths")
        else:
            profile.add(("container", "mounts"), mount, item)
