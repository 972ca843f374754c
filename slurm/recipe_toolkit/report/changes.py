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

    Mappings are compared key by key, and lists of mappings that have a ``name`` each by name; other
    values, other lists too, as they are.
    """
    flat = [dict(_leaves(document, ())) for document in documents]
    fields = dict.fromkeys(path for leaves in flat for path in leaves)
    found = []
    for path in fields:
        values = tuple(leaves.get(path, ABSENT) for leaves in flat)
        if any(_differ(values[0], value) for value in values[1:]) and not all(map(_empty, values)):
            found.append(Change(dotted(path), values))
    return found


def _empty(value: Any) -> bool:
    """An empty mapping says no more than none."""
    return value is ABSENT or value in ({}, [])


def _leaves(data: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from _leaves(value, (*path, str(key)))
    elif (names := _names(data)) is not None:
        for name, item in zip(names, data, strict=True):
            yield from _leaves({key: value for key, value in item.items() if key != "name"}, (*path, name))
    else:
        yield path, data


def _names(data: Any) -> list[str] | None:
    """The names of a list's items, where each has one of its own."""
    if not isinstance(data, (list, tuple)) or not data or not all(isinstance(item, Mapping) for item in data):
        return None
    names = [item.get("name") for item in data]
    return names if all(isinstance(name, str) for name in names) and len(set(names)) == len(names) else None


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
