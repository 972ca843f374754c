"""Data against the package's JSON Schemas; every fault at once, in words of the schema's own titles."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit import durations
from recipe_toolkit.faults import Fault, FieldPath, did_you_mean, shown
from recipe_toolkit.schema_accept import Acceptor, fits

SCHEMAS = Path(__file__).parent / "schemas"
_MOST_FAULTS = 200  # nobody reads more
_REPAIRS = 3  # a stand-in may show what else is missing

_TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
_FORMATS: dict[str, tuple[Callable[[Any], object], tuple[type, ...]]] = {
    "duration-or-seconds": (durations.parse_duration, (str, int, float)),
    "slurm-time": (durations.parse_time_limit, (str,)),
}
_FIX_BOOLEAN = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


@functools.cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema ``name`` (``recipe``, ``cluster``, ``plan``, ``results``, ``frontier``). Raises OSError."""
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return schema


@functools.cache
def _acceptor(name: str) -> Acceptor:
    return Acceptor(load_schema(name), {form: parse for form, (parse, _) in _FORMATS.items()})


@functools.cache
def _validator(name: str) -> Any:
    import jsonschema

    checker = jsonschema.FormatChecker(formats=())
    for form, (parse, types) in _FORMATS.items():
        checker.checks(form, raises=ValueError)(functools.partial(_parses, parse, types))

    def pattern(validator: Any, regex: str, instance: Any, _schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "string") and not fits(regex, instance):
            yield jsonschema.ValidationError("pattern")

    base = jsonschema.Draft202012Validator
    # JSON Schema takes 8.0 for an integer, and so the 1e3 of YAML: here a count is written as one.
    types = base.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    cls = jsonschema.validators.extend(base, {"pattern": pattern}, type_checker=types)  # type: ignore[no-untyped-call]
    return cls(load_schema(name), format_checker=checker)


def _parses(parse: Callable[[Any], object], types: tuple[type, ...], value: Any) -> bool:
    if isinstance(value, types) and not isinstance(value, bool):
        parse(value)
    return True


def check_schema(data: Any, name: str) -> list[Fault]:
    """What the schema ``name`` finds wrong in ``data``, 200 faults at most; no two of one field."""
    if _acceptor(name).accepts(data):
        return []
    faults: dict[tuple[FieldPath, bool], Fault] = {}
    for error in _validator(name).iter_errors(data):
        for fault in _faults(error, load_schema(name)):
            faults.setdefault((fault.path, fault.key), fault)
            if len(faults) >= _MOST_FAULTS:
                return list(faults.values())
    return list(faults.values())


def _faults(error: Any, root: dict[str, Any]) -> Iterator[Fault]:
    path: FieldPath = tuple(error.absolute_path)
    kind, value, schema = error.validator, error.instance, error.schema
    if kind == "additionalProperties" and error.validator_value is False:
        known = schema.get("properties", {})
        for key in value:
            if key not in known:
                yield Fault((*path, key), "unknown key", _unknown_hint(key, known, root), key=True)
    elif kind == "required":
        for key in error.validator_value:
            if key not in value:
                yield Fault((*path, key), "missing", describe(root, (*path, key)), absent=True)
    elif kind == "anyOf" and (inner := [item for item in error.context if item.validator != "type" or item.path]):
        # Of the branch that the value's type has chosen: `a mapping or null` is wrong inside the mapping.
        for item in inner:
            yield from _faults(item, root)
    elif "propertyNames" in error.absolute_schema_path:
        message = f"{shown(value)} is not {schema.get('title', 'a good name')}"
        yield Fault((*path, value), message, did_you_mean(value, schema.get("enum", ())), key=True)
    else:
        message, hint = _explain(error, root, path)
        yield Fault(path, message, hint)


def _unknown_hint(key: str, known: dict[str, Any], root: dict[str, Any]) -> str:
    for definition in root.get("$defs", {}).values():
        if "x-where" in definition and key in definition.get("properties", {}):
            return f"`{key}` belongs in {definition['x-where']}"
    return did_you_mean(key, known) or f"known here: {', '.join(known)}"


_BOUNDS = {"minimum": "less than", "exclusiveMinimum": "not more than", "maximum": "more than"}


def _explain(error: Any, root: dict[str, Any], path: FieldPath) -> tuple[str, str | None]:
    kind, value, limit = error.validator, error.instance, error.validator_value
    if kind in _BOUNDS:
        return f"{shown(value)} is {_BOUNDS[kind]} {limit}", None
    if kind in ("minLength", "minItems", "minProperties"):
        return "is empty", describe(root, path)
    if kind in _EXPLAIN:
        return _EXPLAIN[kind](value, limit, error)
    return error.message[:1].lower() + error.message[1:], describe(root, path)


def _explain_enum(value: Any, limit: list[Any], _error: Any) -> tuple[str, str | None]:
    words = [item for item in limit if isinstance(item, str)]
    choices = ", ".join(item if isinstance(item, str) else shown(item) for item in limit)
    return f"{shown(value)} is not one of {choices}", did_you_mean(value, words) if isinstance(value, str) else None


def _explain_const(value: Any, limit: Any, error: Any) -> tuple[str, str | None]:
    version = list(error.absolute_path) == ["schema"]
    return f"{shown(value)} is not {shown(limit)}", "the version of the format that is read" if version else None


def _explain_pattern(value: Any, limit: str, error: Any) -> tuple[str, str | None]:
    return f"{shown(value)} is not {error.schema.get('title', f'of the form {limit}')}", None


def _explain_format(_value: Any, _limit: str, error: Any) -> tuple[str, str | None]:
    return str(error.cause), None


def _explain_most(value: Any, limit: int, error: Any) -> tuple[str, str | None]:
    what = "keys" if isinstance(value, dict) else "items"
    return f"has {len(value)} {what}, at most {limit}", _as_hint(error.schema.get("description"))


def _explain_forms(_value: Any, _limit: Any, error: Any) -> tuple[str, str | None]:
    return "is of none of the forms that are allowed here", _as_hint(error.schema.get("description"))


def _explain_unique(value: list[Any], _limit: bool, _error: Any) -> tuple[str, str | None]:
    twice = next((item for index, item in enumerate(value) if item in value[:index]), None)
    return f"{shown(twice)} stands twice", None


def _explain_type(value: Any, limit: str | list[str], error: Any) -> tuple[str, str | None]:
    schema, types = error.schema, [limit] if isinstance(limit, str) else limit
    if value is None:
        return "is null", "give it a value, or leave the key out"
    if schema.get("format") == "slurm-time" and isinstance(value, (int, float)):
        return f"{shown(value)} has no unit", f'write "HH:MM:SS" in quotes; "{value}" would be minutes, as for sbatch'
    what = schema.get("title") or " or ".join(_TYPES[name] for name in types)
    return f"{shown(value)} is not {what}", _type_hint(value, types)


_EXPLAIN: dict[str, Callable[[Any, Any, Any], tuple[str, str | None]]] = {
    "type": _explain_type,
    "enum": _explain_enum,
    "const": _explain_const,
    "pattern": _explain_pattern,
    "format": _explain_format,
    "maxProperties": _explain_most,
    "maxItems": _explain_most,
    "uniqueItems": _explain_unique,
    "anyOf": _explain_forms,
    "oneOf": _explain_forms,
}


def _type_hint(value: Any, types: list[str]) -> str | None:
    if isinstance(value, bool) or (isinstance(value, (int, float)) and "string" in types):
        if "string" not in types:
            return None
        text = f'in quotes it is a string: "{shown(value)}"'
        # YAML reads the version 0.30 as 0.3.
        return f'{text}, or "{value}0" if that was written' if re.fullmatch(r"\d+\.[1-9]", str(value)) else text
    if isinstance(value, str) and "boolean" in types and value.lower() in _FIX_BOOLEAN:
        return f"write {_FIX_BOOLEAN[value.lower()]}"
    if isinstance(value, float) and "integer" in types and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, str) and ("integer" in types or "number" in types) and re.fullmatch(r"[0-9][0-9_,]*", value):
        return f"write {re.sub('[_,]', '', value)}"
    if "array" in types and not isinstance(value, dict):
        parts = re.split(r"[x,\s]+", value.strip()) if isinstance(value, str) else [str(value)]
        return f"write a list: [{', '.join(parts)}]" if all(part.isalnum() for part in parts) else "write a list: [...]"
    return None


def subschemas(root: dict[str, Any], path: FieldPath) -> list[dict[str, Any]]:
    """Every part of the schema that speaks of the field at ``path``, whatever the conditions around it."""
    level = [root]
    for part in path:
        level = [child for node in level for every in _parts(root, node) for child in _children(every, part)]
    return [every for node in level for every in _parts(root, node)]


def _parts(root: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    if "$ref" in node:
        yield from _parts(root, root["$defs"][node["$ref"].rsplit("/", 1)[1]])
    for branch in [*node.get("allOf", ()), *(node[key] for key in ("then", "else") if key in node)]:
        yield from _parts(root, branch)


def _children(node: dict[str, Any], part: str | int) -> Iterator[dict[str, Any]]:
    if isinstance(part, int):
        if "items" in node:
            yield node["items"]
    elif part in node.get("properties", {}):
        yield node["properties"][part]
    elif isinstance(node.get("additionalProperties"), dict):
        yield node["additionalProperties"]


def describe(root: dict[str, Any], path: FieldPath) -> str | None:
    """The schema's description of a field, as a hint."""
    return _as_hint(next((part["description"] for part in subschemas(root, path) if "description" in part), None))


def _as_hint(sentence: str | None) -> str | None:
    if not sentence:
        return None
    word = sentence.split(" ", 1)[0]
    return (
        sentence if word.upper() == word or word[1:] != word[1:].lower() else sentence[0].lower() + sentence[1:]
    ).rstrip(".")


def example(root: dict[str, Any], path: FieldPath) -> Any:
    """A value that the schema gives as an example for a field, or None."""
    return next((part["examples"][0] for part in subschemas(root, path) if "examples" in part), None)


def repaired(data: Any, faults: Sequence[Fault], name: str) -> Any:
    """The data with the schema's examples in place of what is wrong or missing, so that the rest can be checked.

    Data without errors is returned as it is. None where the repair does not satisfy the schema.
    """
    wrong = [fault for fault in faults if fault.refuses]
    for _ in range(_REPAIRS):
        if not wrong:
            return data
        data = _patched(data, wrong, load_schema(name))
        wrong = check_schema(data, name)
    return None


def _patched(data: Any, faults: Sequence[Fault], root: dict[str, Any]) -> Any:
    data = copy.deepcopy(data)
    for fault in faults:
        path = fault.path
        while path and isinstance(path[-1], int):
            path = path[:-1]
        holder = _at(data, path[:-1])
        if not path or not isinstance(holder, dict):
            continue
        stand_in = None if fault.key else example(root, path)
        if stand_in is None:
            holder.pop(path[-1], None)
        else:
            holder[path[-1]] = copy.deepcopy(stand_in)
    return data


def _at(data: Any, path: FieldPath) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def takes_only(kind: str, root: dict[str, Any], path: FieldPath) -> bool:
    """Whether nothing but a ``kind`` (``string``, ``array``) can stand at ``path``."""
    types = [part["type"] for part in subschemas(root, path) if "type" in part]
    return bool(types) and all(item == kind for item in types)
