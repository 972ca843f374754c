"""A recipe in the making: its data, and the place that each value of it came from."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from recipe_toolkit.document import Document, Dumper, Place
from recipe_toolkit.errors import printable
from recipe_toolkit.faults import FieldPath
from recipe_toolkit.importers.reader import Cursor

ORDER = (
    "schema",
    "name",
    "description",
    "source",
    "extends",
    "model",
    "engine",
    "setup",
    "resources",
    "roles",
    "kv_transfer",
    "router",
    "benchmarks",
    "slo",
    "deadlines",
    "time_limit",
)
ENGINE = ("kind", "version", "image", "args", "env")
ROLE = ("instances", "instances_per_node", "parallel", "args", "env")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 80


def slug(text: str) -> str:
    """The text as the name of a recipe."""
    return _NAME.sub("-", text).strip("-._")[:_LONGEST_NAME].rstrip("-._") or "recipe"


class Draft:
    """``data``: the recipe. ``comments``: by top-level key, what is written above it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.data: dict[str, Any] = {"schema": 1}
        self.comments: dict[str, str] = {}
        self._origins: dict[FieldPath, Place] = {}

    def set(self, path: Sequence[str | int], value: Any, origin: Cursor | None = None) -> None:
        """Set a field; None and empty mappings are left out. Lists on the way must be long enough, or one short."""
        if value is None or value == {}:
            return
        holder: Any = self.data
        for part, following in itertools.pairwise(path):
            missing: Any = [] if isinstance(following, int) else {}
            if isinstance(holder, list):
                if part == len(holder):
                    holder.append(missing)
                holder = holder[int(part)]
            else:
                holder = holder.setdefault(part, missing)
        last = path[-1]
        if isinstance(holder, list):
            holder[int(last) :] = [value]
        else:
            holder[last] = value
        if origin is not None:
            self._origins[tuple(path)] = origin.place

    def document(self) -> Document:
        """The recipe as if it were read from the source: each field stands where its value came from."""
        places = {(): Place(self.file, 1, 1), **self._origins}
        return Document(self.file, copy.deepcopy(self.data), dict(places), dict(places))

    def hoist(self, roles: Sequence[str]) -> None:
        """Say what all roles say alike once, in ``engine``."""
        for section in ("args", "env"):
            sides = [self.data["roles"][role].get(section, {}) for role in roles]
            for key in [key for key in sides[0] if all(_same(side, key, sides[0][key]) for side in sides)]:
                self.set(("engine", section, key), sides[0][key])
                for role in roles:
                    origin = self._origins.pop(("roles", role, section, key), None)
                    if origin is not None:
                        self._origins[("engine", section, key)] = origin
                    del self.data["roles"][role][section][key]
            for role in roles:
                if not self.data["roles"][role].get(section, True):
                    del self.data["roles"][role][section]


def _same(side: Mapping[str, Any], key: str, value: Any) -> bool:
    return key in side and type(side[key]) is type(value) and side[key] == value


class _Writer(Dumper):
    """Writes short lists and mappings in one line, and text of several lines as it reads."""


class _Block(dict[str, Any]):
    """A mapping of which each key has a line of its own, however short it is."""


_WIDEST = 88


def _short(data: Mapping[str, Any] | Sequence[Any]) -> bool:
    items = list(data.values()) if isinstance(data, Mapping) else list(data)
    plain = all(isinstance(item, (str, int, float, bool)) and "\n" not in str(item) for item in items)
    return plain and len(str(data)) <= _WIDEST


def _write_mapping(writer: Any, data: Mapping[str, Any]) -> Any:
    return writer.represent_mapping("tag:yaml.org,2002:map", data, flow_style=_short(data))


def _write_block(writer: Any, data: Mapping[str, Any]) -> Any:
    return writer.represent_mapping("tag:yaml.org,2002:map", dict(data), flow_style=False)


def _write_list(writer: Any, data: Sequence[Any]) -> Any:
    plain = all(isinstance(item, (str, int, float, bool)) and len(str(item)) < _WIDEST for item in data)
    return writer.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Writer.add_representer(dict, _write_mapping)
_Writer.add_representer(_Block, _write_block)
_Writer.add_representer(list, _write_list)


def pretty(data: Any) -> str:
    """YAML that loads to equal data, for people: keys in the order they have."""
    text: str = yaml.dump(
        _Block(data) if isinstance(data, dict) else data,
        Dumper=_Writer,
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )
    return text


def write_yaml(data: Mapping[str, Any], head: Sequence[str], comments: Mapping[str, str]) -> str:
    """The recipe as commented YAML, in the order of the fields in the documents."""
    data = _ordered(data)
    keys = list(data)
    parts = [f"# {printable(line)}".rstrip() + "\n" for line in head]
    for key in keys:
        if key in comments:
            parts += [f"# {line}\n" for line in comments[key].splitlines()]
        parts.append(pretty({key: data[key]}))
    return "".join(parts)


def _ordered(data: Mapping[str, Any]) -> dict[str, Any]:
    """In the order of the fields in the documents, at the top and within the engine and the roles."""
    found = _sorted(data, ORDER)
    if "engine" in found:
        found["engine"] = _sorted(found["engine"], ENGINE)
    if "roles" in found:
        found["roles"] = {name: role and _sorted(role, ROLE) for name, role in found["roles"].items()}
    return found


def _sorted(data: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    return {key: data[key] for key in sorted(data, key=lambda key: _place(key, order))}


def _place(key: str, order: Sequence[str]) -> int:
    return order.index(key) if key in order else len(order)


def difference(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What must be merged over ``base`` to get ``other``: mappings key by key, null where a key is gone."""
    found: dict[str, Any] = {}
    for key, value in other.items():
        if key not in base:
            found[key] = value
        elif isinstance(value, dict) and isinstance(base[key], dict):
            inner = difference(base[key], value)
            if inner:
                found[key] = inner
        elif type(value) is not type(base[key]) or value != base[key]:
            found[key] = value
    return found | {key: None for key in base if key not in other}
