"""``--set a.b=c``: typed values over a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from recipe_toolkit.document import Document, parse_yaml
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.faults import Fault, FieldPath, did_you_mean, dotted, shown
from recipe_toolkit.schema_check import load_schema, takes_only

_PART = re.compile(r'"([^"]*)"|([^."=]+)')
_MAX_INDEX_DIGITS = 6


class Refused(Exception):
    """A ``--set`` that cannot be applied; holds the fault."""

    def __init__(self, path: FieldPath, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(path, message, hint)


def apply_sets(document: Document, sets: Sequence[str], schema: str) -> None:
    """Apply each ``PATH=VALUE`` in turn to ``document``, which is changed; refusals go to its problems.

    VALUE is YAML: ``8``, ``true``, ``[1, 8]``, ``{tp: 2}``; it is taken as it stands where the schema
    knows strings alone. ``null`` deletes. List items are named by index, parts that hold dots are quoted.
    A mapping replaces what was there.
    """
    for text in sets:
        source = f"--set {text}"
        try:
            parts, value = _split(text)
            path = _steps(document.data, parts)
            _apply(document, path, _parse(value, source, path, schema))
        except Refused as refused:
            fault = refused.fault
            document.problems.append(Problem(source, 0, 0, dotted(fault.path), fault.message, fault.hint))
        except InputError as error:
            hint = "quote the value: --set a.b='\"text\"'"
            document.problems.extend(Problem(source, 0, 0, "", item.message, hint) for item in error.problems)


def put(document: Document, path: FieldPath, value: Document) -> None:
    """Set one field as ``--set`` does; ``value`` brings the places that it came from. Raises Refused."""
    _apply(document, path, value)


def find_field(data: Any, text: str) -> FieldPath:
    """The path that ``a.b.0."c.d"`` means in ``data``; it may lead to keys that are new. Raises Refused."""
    parts, position = _parts(text, "no path", "roles.decode.instances")
    if position != len(text):
        raise Refused(parts, f"{text[position:][:20]!r} does not go on with the path", 'a."b.c" quotes a key')
    return _steps(data, parts)


def _parts(text: str, nothing: str, hint: str) -> tuple[tuple[str, ...], int]:
    """The parts of the path that the text begins with, and where it ends."""
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise Refused((), nothing, hint)
        parts.append(match[1] if match[2] is None else match[2])
        position = match.end()
        if text[position : position + 1] != ".":
            return tuple(parts), position
        position += 1


def _split(text: str) -> tuple[tuple[str, ...], str]:
    parts, position = _parts(text, "no path before the first =", "--set roles.decode.instances=2")
    if text[position : position + 1] != "=":
        raise Refused(parts, "no = after the path", f"--set {dotted(parts)}=VALUE")
    value = text[position + 1 :]
    if not value.strip():
        raise Refused(parts, "no value after =", "null deletes the key, '\"\"' is an empty string")
    return parts, value


def _steps(data: Any, parts: tuple[str, ...]) -> FieldPath:
    """The parts as a path into ``data``, with indexes where it has lists; it may lead to keys that are new."""
    path: FieldPath = ()
    holder = data
    for part in parts:
        if isinstance(holder, list):
            index = int(part) if part.isascii() and part.isdigit() and len(part) <= _MAX_INDEX_DIGITS else None
            if index is None:
                raise Refused((*path, part), f"{dotted(path)} is a list", f"name its item: {dotted((*path, 0, part))}")
            if index >= len(holder):
                raise Refused((*path, index), f"{dotted(path)} has {len(holder)} items; the first is 0")
            path, holder = (*path, index), holder[index]
        elif isinstance(holder, dict):
            path, holder = (*path, part), holder.get(part, {})
        else:
            raise Refused((*path, part), f"{dotted(path)} is {shown(holder)}, not a mapping")
    return path


def _parse(text: str, source: str, path: FieldPath, schema: str) -> Document:
    parsed = parse_yaml(text, source)
    if parsed.problems:
        raise InputError(parsed.problems)
    scalar = not isinstance(parsed.data, (dict, list, str)) and parsed.data is not None
    if scalar and takes_only("string", load_schema(schema), path):
        parsed.data = text.strip()
    for places in (parsed.keys, parsed.values):
        for item, place in places.items():
            places[item] = place._replace(line=0, column=0)
    return parsed


def _apply(document: Document, path: FieldPath, value: Document) -> None:
    holder = document.data
    for depth, part in enumerate(path[:-1]):
        if isinstance(holder, dict) and part not in holder:
            if value.data is None:
                raise _nothing_to_delete(path, part, holder)
            at = path[: depth + 1]
            holder[part] = {}
            document.keys[at] = document.values[at] = value.locate(())
        holder = holder[part]
    if value.data is None:
        _delete(document, holder, path)
        return
    holder[path[-1]] = value.data
    document.drop(path)
    document.graft(path, value)
    document.keys[path] = value.locate(())


def _nothing_to_delete(path: FieldPath, part: str | int, holder: dict[str, Any]) -> Refused:
    return Refused(path, "null deletes a key, and there is none here", did_you_mean(str(part), holder))


def _delete(document: Document, holder: Any, path: FieldPath) -> None:
    if isinstance(holder, list):
        raise Refused(path, "an item of a list cannot be deleted", "set the whole list")
    if path[-1] not in holder:
        raise _nothing_to_delete(path, path[-1], holder)
    del holder[path[-1]]
    document.drop(path)
