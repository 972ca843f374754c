"""JSON documents of flags such as ``compilation-config`` against the classes that vLLM reads them into."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_toolkit.faults import FieldPath, did_you_mean
from recipe_toolkit.vllm_args.gone import whereabouts
from recipe_toolkit.vllm_args.lists import ArgList
from recipe_toolkit.vllm_args.problem import ArgProblem, among, nearest_of, shown

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_TRUTH = frozenset(["true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n"])
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "null": "null",
    "object": "a mapping",
    "items": "a list",
    "values": "a mapping",
    "config": "a mapping",
}


def check_config(config: str, document: Mapping[str, Any], at: FieldPath, known: ArgList) -> Iterator[ArgProblem]:
    """Everything wrong with a document that vLLM reads into the class ``config``."""
    keys = known.configs[config]
    for key, value in document.items():
        if key in keys:
            yield from check_typed(keys[key], value, (*at, key), known)
        elif config == "SpeculativeConfig" and (plain := key.replace("-", "_")) in keys:
            # vLLM's create_speculative_config takes the two for the same; of other documents it takes none.
            if plain in document:
                yield ArgProblem((*at, key), f"is the same key as {plain}", "say it once")
                continue
            note = ArgProblem((*at, key), "is written with dashes", f"`{plain}`, as vLLM's help has it", "note")
            yield from list(check_typed(keys[plain], value, (*at, key), known)) or [note]
        else:
            yield _unknown(config, key, at, known)


def _unknown(config: str, key: str, at: FieldPath, known: ArgList) -> ArgProblem:
    where = whereabouts(lambda other: key in other.configs.get(config, ()), known.version)
    message = f"vLLM {known.version} knows no key {key} in {at[-1]}"
    hint = did_you_mean(key, known.configs[config])
    if where:
        return ArgProblem((*at, key), f"{message}; {where}", None, lacking=True)
    return ArgProblem((*at, key), message, hint, lacking=True)


def check_typed(entry: Any, value: Any, at: FieldPath, known: ArgList) -> Iterator[ArgProblem]:
    """Everything wrong with one value. ``entry``: its type, as the list of the version has it."""
    kinds = _alternatives(entry)
    if "any" in kinds:
        return
    problems: list[ArgProblem] = []
    for kind in kinds:
        found = list(_check_one(kind, value, at, known))
        if not found:
            return
        # What is wrong inside a mapping or list says more than that it is no null.
        if isinstance(kind, dict) and _fits(kind, value):
            problems = found
    yield from problems or [_wrong_type(kinds, value, at, known)]


def _alternatives(entry: Any) -> list[Any]:
    entries = entry if isinstance(entry, list) else [entry]
    return [kind for item in entries for kind in (item.split("|") if isinstance(item, str) else [item])]


def _fits(kind: Mapping[str, Any], value: Any) -> bool:
    """Whether the value is of the outer form that ``kind`` asks for."""
    if "choices" in kind:
        return isinstance(value, (str, int)) and not isinstance(value, bool)
    return isinstance(value, (list, tuple)) if "items" in kind else isinstance(value, Mapping)


def _check_one(kind: Any, value: Any, at: FieldPath, known: ArgList) -> Iterator[ArgProblem]:
    if isinstance(kind, str):
        if not _is(kind, value):
            yield _wrong_type([kind], value, at, known)
    elif not _fits(kind, value):
        yield _wrong_type([kind], value, at, known)
    elif "choices" in kind:
        allowed = _choices(kind, known)
        if not among(value, allowed):
            yield no_choice(value, allowed, at, known)
    elif "config" in kind:
        yield from check_config(kind["config"], value, at, known)
    elif "items" in kind:
        for index, item in enumerate(value):
            yield from check_typed(kind["items"], item, (*at, index), known)
    else:
        for key, item in value.items():
            yield from check_typed(kind["values"], item, (*at, key), known)


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "bool"
    if kind == "int":
        return isinstance(value, int)
    if kind == "float":
        return isinstance(value, (int, float))
    if kind == "null":
        return value is None
    return isinstance(value, Mapping if kind == "object" else str) and kind in ("object", "str")


def _choices(kind: Mapping[str, Any], known: ArgList) -> list[Any]:
    named = kind["choices"]
    return known.choices(named) if isinstance(named, str) else named


def no_choice(value: Any, allowed: list[Any], at: FieldPath, known: ArgList, extra: str | None = None) -> ArgProblem:
    """A value that is none of a list, with the nearest that is."""
    where = whereabouts(lambda other: among(value, _same_choices(at, other)), known.version)
    message = f"{str(value)!r} is none of vLLM {known.version}'s values"
    hint = None if where else nearest_of(str(value), allowed)
    return ArgProblem(
        at, f"{message}; {where}" if where else message, f"{hint} {extra}" if extra and hint else hint, lacking=True
    )


def _same_choices(at: FieldPath, other: ArgList) -> list[Any]:
    """The choices of the same flag, or of the same key of its document, in another list."""
    name = str(at[0]).lstrip("-").replace("_", "-")
    name = other.names.get(name, name)
    entry: Any = {"config": other.options.get(name, {}).get("config")}
    for key in at[1:]:
        inner = next((item for item in _alternatives(entry) if isinstance(item, dict)), {})
        if "config" in inner:
            entry = other.configs.get(inner["config"] or "", {}).get(str(key), "any")
        else:
            entry = inner.get("items", inner.get("values", "any"))
    if len(at) == 1:
        return list(other.choices(name))
    return [
        value
        for item in _alternatives(entry)
        if isinstance(item, dict) and "choices" in item
        for value in _choices(item, other)
    ]


def _wrong_type(kinds: list[Any], value: Any, at: FieldPath, known: ArgList) -> ArgProblem:
    words: list[str] = []
    for kind in kinds:
        if isinstance(kind, dict) and "choices" in kind:
            allowed = [str(item) for item in _choices(kind, known)]
            word = f"one of {', '.join(allowed[:8])}{', …' if len(allowed) > 8 else ''}"
        else:
            word = _WORDS[kind if isinstance(kind, str) else next(iter(kind))]
        if word not in words and word != "null":
            words.append(word)
    read = any(isinstance(kind, str) and _is_read_as(kind, value) for kind in kinds)
    hint = "without quotes" if read and isinstance(value, str) else None
    message = f"needs {' or '.join(words)}, and is {shown(value)}"
    return ArgProblem(at, message, hint, "warning" if read else "error")


def _is_read_as(kind: str, value: Any) -> bool:
    """Whether pydantic makes the type of the value all the same."""
    if kind in ("int", "float") and isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None and (kind == "float" or "." not in value)
    if kind == "bool":
        return (value in (0, 1)) if isinstance(value, int) else isinstance(value, str) and value.lower() in _TRUTH
    return kind == "int" and isinstance(value, float) and value.is_integer()
