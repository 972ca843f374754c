"""What differs between documents, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.faults import dotted

_LONGEST = 100


class _Absent:
    """Stands where a document lacks a field; null is a value."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


@dataclass(frozen=True)
class Change:
    """A field that is not the same in all documents. ``values``: in the order of the documents, or :data:`ABSENT`."""

    field: str
    values: tuple[Any, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data: ``values`` with null for what is absent, which ``absent`` names by position."""
        return {
            "field": self.field,
            "values": [None if value is ABSENT else value for value in self.values],
            "absent": [index for index, value in enumerate(self.values) if value is ABSENT],
        }


def changes(documents: Sequence[Any]) -> list[Change]:
    """The fields that differ, in the order in which the documents name them.

    Mappings are compared key by key. Lists of mappings that have a ``name`` each are compared by name: an
    item that some document lacks is one change. Other values, other lists too, are compared as they are.
    """
    return list(_walk((), tuple(documents)))


def _walk(path: tuple[str, ...], values: tuple[Any, ...]) -> Iterator[Change]:
    there = [value for value in values if value is not ABSENT]
    if all(isinstance(value, Mapping) for value in there):
        for key in dict.fromkeys(key for value in there for key in value):
            yield from _walk((*path, str(key)), tuple(_at(value, key) for value in values))
    elif all(_named(value) is not None for value in there):
        items = [_named(value) for value in values]
        for name in dict.fromkeys(name for item in items for name in item or ()):
            found = tuple(_at(item, name) for item in items)
            yield from [Change(dotted((*path, name)), found)] if ABSENT in found else _walk((*path, name), found)
    elif any(_differ(values[0], value) for value in values[1:]) and not all(map(_empty, values)):
        yield Change(dotted(path), values)


def _at(holder: Any, key: str) -> Any:
    return holder.get(key, ABSENT) if isinstance(holder, Mapping) else ABSENT


def _named(data: Any) -> dict[str, Any] | None:
    """The items of a list by their names, where each is a mapping with a name of its own."""
    if not isinstance(data, (list, tuple)) or not data or not all(isinstance(item, Mapping) for item in data):
        return None
    names = [item.get("name") for item in data]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        return None
    return {str(item["name"]): {key: value for key, value in item.items() if key != "name"} for item in data}


def _empty(value: Any) -> bool:
    """An empty mapping says no more than none."""
    return value is ABSENT or value in ({}, [])


def _differ(first: Any, second: Any) -> bool:
    # 1 and true are one in Python, and two things in a recipe.
    return (type(first) is not type(second) and not _both_numbers(first, second)) or first != second


def _both_numbers(first: Any, second: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (first, second))


def shown(value: Any) -> str:
    """A value on one line, as JSON where it is no plain word; shortened."""
    if value is ABSENT:
        return "–"
    text = value if isinstance(value, str) and value.strip() == value != "" else json.dumps(value, ensure_ascii=False)
    text = "".join(char if char.isprintable() else "�" for char in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
