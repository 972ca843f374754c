"""Flags against the list of a version."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipe_toolkit.faults import did_you_mean
from recipe_toolkit.vllm_args.documents import check_config, no_choice
from recipe_toolkit.vllm_args.gone import BEFORE, whereabouts
from recipe_toolkit.vllm_args.lists import ArgList, Match, load, match, versions
from recipe_toolkit.vllm_args.problem import ArgProblem, among, shown
from recipe_toolkit.vllm_args.render import canonical, scalar
from recipe_toolkit.vllm_args.reserved import PARALLEL, RESERVED

# Plugins register further values under these flags, so any value may be right beside them.
_OPEN = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
_HUMAN = re.compile(r"-?[0-9]+(\.[0-9]+)?[kKmMgGtT]?")
_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (operator.lt, "less than"),
    "gt": (operator.le, "not more than"),
    "le": (operator.gt, "more than"),
    "lt": (operator.ge, "not less than"),
}


def unknown_version(version: str) -> ArgProblem | None:
    """What to say where another version's list stands in; its ``path`` is empty, as it is about no flag."""
    found = match(version)
    if not found.reason:
        return None
    hint = None if found.severity == "note" else f"there are lists from {versions()[0]} to {versions()[-1]}"
    return ArgProblem((), f"{found.reason}: {_lists(found)}", hint, found.severity)


def _lists(found: Match) -> str:
    if found.later:
        return "flags are checked against both, and what one of them takes is let through"
    if found.severity == "note":
        return f"its flags are those of {found.used}"
    return f"flags are checked against {found.used}, and what that lacks is a warning"


def check(args: Mapping[str, Any], version: str, where: str) -> list[ArgProblem]:
    """Everything wrong with the flags at ``where`` (such as ``engine.args``) for this version.

    A version without a list of its own is checked against the nearest; :func:`unknown_version` says so. A build
    between releases, or of somebody's own, may know flags and values that the lists lack: these are warnings then.
    """
    found = match(version)
    problems = list(_problems(args, load(found.used), where))
    if found.later and problems:
        still = {problem.path for problem in _problems(args, load(found.later), where)}
        problems = [problem for problem in problems if problem.path in still]
    if not found.sure:
        problems = [replace(item, severity="warning") if item.lacking else item for item in problems]
    return problems


def _problems(args: Mapping[str, Any], known: ArgList, where: str) -> Iterator[ArgProblem]:
    seen: dict[str, str] = {}
    for key, value in args.items():
        found = list(_check_key(key, known, where))
        name = known.names.get(canonical(key))
        if not found and name:
            found = list(_check_value(key, name, value, args, known))
            if name in seen:
                found.append(ArgProblem((key,), f"is the same flag as {seen[name]}", "say it once"))
            seen.setdefault(name, key)
        yield from found


def _check_key(key: str, known: ArgList, where: str) -> Iterator[ArgProblem]:
    plain = canonical(key)
    name = known.names.get(plain) or known.negative.get(plain)
    at = (key,)
    if name is None:
        yield _unknown(key, plain, known)
    elif name in RESERVED:
        yield ArgProblem(at, f"cannot be set: {RESERVED[name]}", "leave it out")
    elif name in PARALLEL:
        role = where.split(".")[1] if where.startswith("roles.") else "ROLE"
        yield ArgProblem(at, "parallel sizes have one place", f"say it in roles.{role}.parallel.{PARALLEL[name]}")
    elif plain in known.negative and plain not in known.names:
        yield ArgProblem(at, f"is the negative of {name}", f"write `{name}: false`")
    elif key != plain:
        yield ArgProblem(at, "is not spelt as vLLM's help spells it", f"write `{plain}`")
    elif name != plain and len(plain) <= 3:
        yield ArgProblem(at, "is a short form", f"write `{name}`")


def _unknown(key: str, plain: str, known: ArgList) -> ArgProblem:
    at = (key,)
    base, _, inner = key.lstrip("-").partition(".")
    name = known.names.get(canonical(base))
    if inner and name and known.options[name]["kind"] == "json":
        return ArgProblem(at, "is written with a dot", f"write a mapping, `{name}: {{{inner}: …}}`")
    positive = known.names.get(plain.removeprefix("no-"))
    if positive and plain.startswith("no-"):
        kind = "a flag that is only ever added" if known.options[positive]["kind"] == "flag" else "a flag with a value"
        return ArgProblem(at, f"does not exist: {positive} is {kind}", f"leave out {positive}", lacking=True)
    message = f"vLLM {known.version} has no flag --{plain}"
    # As any argparse, vLLM's takes the beginning of a name for the name.
    begun = {full for spelling, full in known.names.items() if spelling.startswith(plain)}
    if len(begun) == 1 and len(plain) > 3:
        (full,) = begun
        return ArgProblem(at, f"{message}, and reads it as {full}", f"write `{full}`")
    where = whereabouts(lambda other: plain in other.names or plain in other.negative, known.version)
    if where:
        return ArgProblem(at, f"{message}; {where}", _renamed(plain, known), lacking=True)
    if plain in BEFORE:
        last, instead = BEFORE[plain]
        return ArgProblem(at, f"{message}; {last} was the last to have it", instead or "leave it out", lacking=True)
    spellings = {spelling: known.negative.get(spelling) or spelling for spelling in (*known.names, *known.negative)}
    return ArgProblem(at, message, did_you_mean(plain, spellings), lacking=True)


def _renamed(plain: str, known: ArgList) -> str | None:
    """Another spelling of a flag of another list that this list has."""
    for version in versions():
        other = load(version)
        name = other.names.get(plain) or other.negative.get(plain)
        same = [spelling for spelling, full in other.names.items() if full == name and len(spelling) > 3]
        for spelling in same if name else ():
            if spelling in known.names:
                return f"write `{known.names[spelling]}`"
    return None


def _check_value(key: str, name: str, value: Any, args: Mapping[str, Any], known: ArgList) -> Iterator[ArgProblem]:
    option = known.options[name]
    kind, at = option["kind"], (key,)
    if value is False and kind == "flag":
        yield ArgProblem(at, "has no negative form: false cannot be said", "leave it out")
    elif kind in ("flag", "bool"):
        if not isinstance(value, bool):
            yield ArgProblem(at, f"takes no value, and is {shown(value)}", f"{name}: true")
    elif kind == "json":
        yield from _check_document(key, option.get("config"), value, known)
    elif kind in ("list", "repeat"):
        items = value if isinstance(value, (list, tuple)) else [value]
        if not items:
            yield ArgProblem(at, "is empty, and needs at least one value")
        for item in items:
            # lora-modules takes JSON for an item, and nothing else that takes a list of strings minds.
            if not isinstance(item, Mapping) or option.get("type") != "str":
                yield from _check_scalar(key, name, item, args, known)
    elif not (kind == "optional" and value is True):
        yield from _check_scalar(key, name, value, args, known)


def _check_document(key: str, config: str | None, value: Any, known: ArgList) -> Iterator[ArgProblem]:
    if isinstance(value, str):
        # Some take a plain word or a number beside JSON (compilation-config: 3, pt-load-map-location: cpu).
        if value.lstrip()[:1] in "{[":
            try:
                value = json.loads(value)
            except ValueError as error:
                yield ArgProblem((key,), f"is no JSON: {error}", "write a mapping in YAML")
    elif isinstance(value, bool):
        yield ArgProblem((key,), f"needs a mapping, and is {shown(value)}")
    if config and isinstance(value, Mapping):
        yield from check_config(config, value, (key,), known)


def _check_scalar(key: str, name: str, value: Any, args: Mapping[str, Any], known: ArgList) -> Iterator[ArgProblem]:
    option = known.options[name]
    message = _TYPES[option.get("type", "any")](value)
    if message:
        yield ArgProblem((key,), f"{message}, and is {shown(value)}", _type_hint(name, option.get("type"), value))
        return
    for sign, (beyond, words) in _BOUNDS.items():
        limit = option.get("limits", {}).get(sign)
        if limit is not None and beyond(_number(value), limit):
            yield ArgProblem((key,), f"{value} is {words} {limit}", lacking=True)
    allowed = known.choices(name)
    if not allowed or among(value, allowed):
        return
    plugin = _OPEN.get(name)
    if not plugin or "choices" in option:
        yield no_choice(value, allowed, (key,), known)
    elif plugin not in {canonical(other) for other in args}:
        # The plugin may stand in another place of the recipe.
        yield replace(no_choice(value, allowed, (key,), known, f"or name a {plugin}"), severity="warning")


def _number(value: Any) -> float:
    """The size of a value that has bounds, as vLLM reads it; of no number (``auto``) one that none excludes."""
    found = _HUMAN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return math.nan if isinstance(value, str) else float(value)
    digits = value.rstrip("kKmMgGtT")
    return float(digits) * (1000 if digits != value else 1)


def _needs_int(value: Any) -> str | None:
    return None if isinstance(value, int) and not isinstance(value, bool) else "needs an integer"


def _needs_float(value: Any) -> str | None:
    return None if isinstance(value, (int, float)) and not isinstance(value, bool) else "needs a number"


def _needs_text(value: Any) -> str | None:
    return None if isinstance(value, str) else "needs a string"


def _needs_human(value: Any) -> str | None:
    if isinstance(value, str) and _HUMAN.fullmatch(value):
        return None
    return None if _needs_int(value) is None else "needs an integer, or one such as 8k (8000) or 8K (8192)"


def _needs_human_or_auto(value: Any) -> str | None:
    return None if value == "auto" else _needs_human(value)


def _needs_scalar(value: Any) -> str | None:
    return None if isinstance(value, (str, int, float)) and not isinstance(value, bool) else "needs one value"


_TYPES = {
    "int": _needs_int,
    "float": _needs_float,
    "str": _needs_text,
    "human_int": _needs_human,
    "human_int_or_auto": _needs_human_or_auto,
    "any": _needs_scalar,
}


def _type_hint(name: str, wanted: str | None, value: Any) -> str | None:
    if isinstance(value, str):
        return "without quotes" if re.fullmatch(r"-?[0-9]+" if wanted == "int" else r"-?[0-9.]+", value) else None
    if wanted == "str" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'{name}: "{scalar(value)}"'
    return None
