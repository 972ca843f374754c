"""A quick yes for data that a schema surely takes.

Importing jsonschema takes 0.1 s, a third of what a verb that reads a recipe may take, and most recipes
are right. This says yes where every keyword that applies is one that it knows and holds; everything
else is left to jsonschema, which also finds the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Format = Callable[[Any], object]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_SAYS_NOTHING = frozenset(
    {"title", "description", "default", "examples", "$comment", "$schema", "$id", "$defs", "x-where", "then", "else"}
)


class _Unsure(Exception):
    """A keyword, or a value under it, that only jsonschema can judge."""


class Acceptor:
    """``formats``: name to a function that raises ValueError for a value that is not of the format."""

    def __init__(self, root: Mapping[str, Any], formats: Mapping[str, Format]) -> None:
        self._root = root
        self._formats = formats
        self._checks: dict[str, Callable[[Mapping[str, Any], Any, Any], bool]] = {
            "$ref": lambda _, limit, value: self._takes(root["$defs"][limit.rsplit("/", 1)[1]], value),
            "type": lambda _, limit, value: any(
                _TYPES[name](value) for name in ([limit] if isinstance(limit, str) else limit)
            ),
            "const": lambda _, limit, value: value == limit and type(value) is type(limit),
            "enum": lambda _, limit, value: isinstance(value, str) and value in limit,
            "properties": self._properties,
            "additionalProperties": self._additional,
            "required": lambda _, limit, value: not isinstance(value, dict) or all(key in value for key in limit),
            "propertyNames": lambda _, limit, value: all(self._takes(limit, key) for key in _of(dict, value)),
            "minProperties": lambda _, limit, value: not isinstance(value, dict) or len(value) >= limit,
            "maxProperties": lambda _, limit, value: len(_of(dict, value)) <= limit,
            "items": lambda _, limit, value: all(self._takes(limit, item) for item in _of(list, value)),
            "minItems": lambda _, limit, value: not isinstance(value, list) or len(value) >= limit,
            "maxItems": lambda _, limit, value: len(_of(list, value)) <= limit,
            "uniqueItems": lambda _, limit, value: _all_differ(_of(list, value)),
            "minimum": lambda _, limit, value: not _TYPES["number"](value) or value >= limit,
            "exclusiveMinimum": lambda _, limit, value: not _TYPES["number"](value) or value > limit,
            "maximum": lambda _, limit, value: not _TYPES["number"](value) or value <= limit,
            "minLength": lambda _, limit, value: not isinstance(value, str) or len(value) >= limit,
            "pattern": lambda _, limit, value: not isinstance(value, str) or fits(limit, value),
            "format": self._format,
            "allOf": lambda _, limit, value: all(self._takes(part, value) for part in limit),
            "anyOf": lambda _, limit, value: any(self._takes(part, value) for part in limit),
            "oneOf": lambda _, limit, value: sum(self._takes(part, value) for part in limit) == 1,
            "if": lambda node, limit, value: self._takes(
                node.get("then" if self._takes(limit, value) else "else", {}), value
            ),
        }

    def accepts(self, data: Any) -> bool:
        """Whether the data surely satisfies the schema."""
        try:
            return self._takes(self._root, data)
        except _Unsure:
            return False

    def _takes(self, node: Mapping[str, Any], value: Any) -> bool:
        for key, limit in node.items():
            if key in _SAYS_NOTHING:
                continue
            if key not in self._checks:
                raise _Unsure(key)
            if not self._checks[key](node, limit, value):
                return False
        return True

    def _properties(self, _node: Mapping[str, Any], limit: Mapping[str, Any], value: Any) -> bool:
        return all(self._takes(limit[key], item) for key, item in _of(dict, value).items() if key in limit)

    def _additional(self, node: Mapping[str, Any], limit: Any, value: Any) -> bool:
        others = [item for key, item in _of(dict, value).items() if key not in node.get("properties", ())]
        return not others if limit is False else all(self._takes(limit, item) for item in others)

    def _format(self, _node: Mapping[str, Any], limit: str, value: Any) -> bool:
        if not isinstance(value, str) and not _TYPES["number"](value):
            return True
        try:
            self._formats[limit](value)
        except (ValueError, TypeError):
            return False
        return True


def fits(pattern: str, text: str) -> bool:
    """Whether a schema's pattern holds; unlike ``re.search`` alone, ``$`` means the end."""
    return re.search(pattern, text) is not None and not text.endswith("\n")


def _of(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else kind()


def _all_differ(items: list[Any]) -> bool:
    try:
        return len(set(items)) == len(items)
    except TypeError as error:
        raise _Unsure("uniqueItems") from error
