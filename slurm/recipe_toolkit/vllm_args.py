"""The flags of ``vllm serve``: what each version takes, and YAML values as its words.

The lists in ``schemas/vllm/VERSION.json`` are written by ``scripts/export-vllm-args`` from vLLM's own
parser. Its ``values`` are those that vLLM's parser takes unseen and refuses later, on the nodes. Only
the standard library is imported, and a list is read when it is first needed.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "schemas" / "vllm"

_PLACED = "the plan places ranks on nodes; sizes stand in roles.ROLE.parallel"
_ADDRESS = "each process is given its own node's address"
_PORT = "ports are reserved on each node when the run begins"
_KV = "it follows from kv_transfer and the role"
_RAY = "instances are launched without Ray"

RESERVED: Mapping[str, str] = {
    "model": "the model stands in model.path",
    "served-model-name": "it stands in model.served_name",
    "revision": "it stands in model.path: hf:ORG/REPO@REVISION",
    "host": _ADDRESS,
    "uds": _ADDRESS,
    "port": _PORT,
    "grpc": "clients and router speak HTTP",
    "nnodes": _PLACED,
    "node-rank": _PLACED,
    "master-addr": _ADDRESS,
    "master-port": _PORT,
    "headless": _PLACED,
    "device-ids": "the plan gives each process its own devices",
    "data-parallel-size-local": _PLACED,
    "data-parallel-start-rank": _PLACED,
    "data-parallel-rank": _PLACED,
    "data-parallel-address": _ADDRESS,
    "data-parallel-rpc-port": _PORT,
    "data-parallel-supervisor-port": _PORT,
    "data-parallel-multi-port-external-lb": "instances behind the router do the same with a health of their own",
    "data-parallel-external-lb": "instances behind the router do the same with a health of their own",
    "data-parallel-backend": _RAY,
    "ray-workers-use-nsight": _RAY,
    "kv-transfer-config": _KV,
    "config": "flags of a file would not be checked, nor stand in the plan",
    "api-key": "a flag stands in plain sight of every user of a node",
    "hf-token": "a flag stands in plain sight of every user of a node",
}
"""Flags that the toolkit sets or does not let through, with the reason."""

PARALLEL: Mapping[str, str] = {
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
    "decode-context-parallel-size": "dcp",
    "enable-expert-parallel": "ep",
    "data-parallel-hybrid-lb": "dp_lb",
}
"""Flags that are said in ``roles.ROLE.parallel``, with the key there."""

# Plugins register further values under these flags, so any value may be right beside them.
_OPEN = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
_HUMAN = re.compile(r"-?[0-9]+(\.[0-9]+)?[kKmMgGtT]?")
_NEGATIVE = ("no-", "disable-")
_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (operator.lt, "less than"),
    "gt": (operator.le, "not more than"),
    "le": (operator.gt, "more than"),
    "lt": (operator.ge, "not less than"),
}


@dataclass(frozen=True)
class ArgProblem:
    """What is wrong with the flag ``key``, as it was written."""

    key: str
    message: str
    hint: str | None = None
    warning: bool = False


@dataclass(frozen=True)
class _List:
    """``exact``: the list is of the version that was asked for, so that what it lacks does not exist."""

    version: str
    exact: bool
    options: Mapping[str, Mapping[str, Any]]
    names: Mapping[str, str]
    negative: Mapping[str, str]
    values: Mapping[str, list[str]]


@functools.cache
def versions() -> list[str]:
    """The versions that have a list, oldest first."""
    return sorted((path.stem for path in FOLDER.glob("*.json")), key=_order)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def nearest(version: str) -> str:
    """The version whose list is used for ``version``: the newest that is not newer, else the oldest."""
    known = versions()
    if version in known:
        return version
    older = [item for item in known if _order(item) <= _order(version)]
    return older[-1] if older else known[0]


def unknown_version(version: str) -> ArgProblem | None:
    """A warning where another version's list stands in; its ``key`` is empty, as it is about no flag."""
    used = nearest(version)
    if used == version:
        return None
    message = f"there is no argument list of vLLM {version}; flags are checked against {used}"
    return ArgProblem("", message, f"lists: {', '.join(versions())}", warning=True)


@functools.cache
def _list(version: str) -> _List:
    data = json.loads((FOLDER / f"{nearest(version)}.json").read_text(encoding="utf-8"))
    names: dict[str, str] = {}
    negative: dict[str, str] = {}
    for name, option in data["options"].items():
        names[name] = name
        for alias in option.get("aliases", ()):
            names.setdefault(alias.lstrip("-"), name)
        for word in option.get("no", ()):
            negative.setdefault(word[2:], name)
    return _List(data["vllm"], nearest(version) == version, data["options"], names, negative, data["values"])


def knows(flag: str, version: str) -> bool:
    """Whether this version takes the flag."""
    return flag in _list(version).names


def option(name: str, version: str) -> Mapping[str, Any] | None:
    """What the list says of a flag (``kind``, ``type``, ``choices``), None where it lacks the flag."""
    return _list(version).options.get(name)


def positive(key: str, version: str) -> str | None:
    """The flag that ``key`` is the negative of (``no-x`` of ``x``), None where it is none."""
    known = _list(version)
    return None if canonical(key) in known.names else known.negative.get(canonical(key))


def canonical(key: str) -> str:
    """A flag as it is written in a recipe, without dashes before it and with ``-`` for ``_``."""
    return key.lstrip("-").replace("_", "-")


def full_name(key: str, version: str) -> str:
    """The name that a flag or an alias of it goes by; an unknown flag is only spelt with ``-``."""
    plain = canonical(key)
    return _list(version).names.get(plain, plain)


def check(args: Mapping[str, Any], version: str, where: str) -> list[ArgProblem]:
    """Everything wrong with the flags at ``where`` (such as ``engine.args``) for this version.

    An unknown version is checked against the nearest; :func:`unknown_version` says so. A build between
    releases, or of somebody's own, may know flags and values that the list lacks: these are warnings then.
    """
    known = _list(version)
    problems: list[ArgProblem] = []
    seen: dict[str, str] = {}
    for key, value in args.items():
        found = list(_check_key(key, known, where))
        name = known.names.get(canonical(key))
        if not found and name:
            found = list(_check_value(key, name, value, args, known))
            if name in seen:
                found.append(ArgProblem(key, f"is the same flag as {seen[name]}", "say it once"))
            seen.setdefault(name, key)
        problems += found
    return problems


def _check_key(key: str, known: _List, where: str) -> Iterator[ArgProblem]:
    plain = canonical(key)
    name = known.names.get(plain) or known.negative.get(plain)
    if name is None:
        yield _unknown(key, plain, known)
    elif name in RESERVED:
        yield ArgProblem(key, f"cannot be set: {RESERVED[name]}", "leave it out")
    elif name in PARALLEL:
        role = where.split(".")[1] if where.startswith("roles.") else "ROLE"
        yield ArgProblem(key, "parallel sizes have one place", f"say it in roles.{role}.parallel.{PARALLEL[name]}")
    elif plain in known.negative and plain not in known.names:
        yield ArgProblem(key, f"is the negative of {name}", f"write `{name}: false`")
    elif key != plain:
        yield ArgProblem(key, "is not spelt as vLLM's help spells it", f"write `{plain}`")
    elif name != plain and len(plain) <= 3:
        yield ArgProblem(key, "is a short form", f"write `{name}`")


def _unknown(key: str, plain: str, known: _List) -> ArgProblem:
    base, _, inner = key.lstrip("-").partition(".")
    name = known.names.get(canonical(base))
    if inner and name and known.options[name]["kind"] == "json":
        return ArgProblem(key, "is written with a dot", f"write a mapping, `{name}: {{{inner}: …}}`")
    close = difflib.get_close_matches(plain, [*known.names, *known.negative], n=1, cutoff=0.75)
    hint = f"did you mean `{known.negative.get(close[0]) or close[0]}`?" if close else None
    return ArgProblem(key, f"vLLM {known.version} has no flag --{plain}", hint, warning=not known.exact)


def _check_value(key: str, name: str, value: Any, args: Mapping[str, Any], known: _List) -> Iterator[ArgProblem]:
    option = known.options[name]
    kind = option["kind"]
    if value is False and kind == "flag":
        yield ArgProblem(key, "has no negative form: false cannot be said", "leave it out")
    elif kind in ("flag", "bool"):
        if not isinstance(value, bool):
            yield ArgProblem(key, f"takes no value, and is {_shown(value)}", f"{name}: true")
    elif kind == "json":
        yield from _check_document(key, name, value, known)
    elif kind in ("list", "repeat"):
        items = value if isinstance(value, (list, tuple)) else [value]
        if not items:
            yield ArgProblem(key, "is empty, and needs at least one value")
        for item in items:
            # lora-modules takes JSON for an item, and nothing else that takes a list of strings minds.
            if not isinstance(item, Mapping) or option.get("type") != "str":
                yield from _check_scalar(key, name, item, args, known)
    elif not (kind == "optional" and value is True):
        yield from _check_scalar(key, name, value, args, known)


def _check_document(key: str, name: str, value: Any, known: _List) -> Iterator[ArgProblem]:
    if isinstance(value, str):
        # Some take a plain word or a number beside JSON (compilation-config: 3, pt-load-map-location: cpu).
        if value.lstrip()[:1] in "{[":
            try:
                value = json.loads(value)
            except ValueError as error:
                yield ArgProblem(key, f"is no JSON: {error}", "write a mapping in YAML")
    elif isinstance(value, bool):
        yield ArgProblem(key, f"needs a mapping, and is {_shown(value)}")
    if isinstance(value, Mapping):
        for inner, item in value.items():
            allowed = known.values.get(f"{name}.{inner}")
            if allowed and isinstance(item, str) and not _among(item, allowed):
                yield _no_choice(key, f"{inner} ", item, allowed, known)


def _check_scalar(key: str, name: str, value: Any, args: Mapping[str, Any], known: _List) -> Iterator[ArgProblem]:
    option = known.options[name]
    message = _TYPES[option.get("type", "any")](value)
    if message:
        yield ArgProblem(key, f"{message}, and is {_shown(value)}", _type_hint(name, option.get("type"), value))
        return
    for sign, (beyond, words) in _BOUNDS.items():
        limit = option.get("limits", {}).get(sign)
        if limit is not None and beyond(_number(value), limit):
            yield ArgProblem(key, f"{value} is {words} {limit}", warning=not known.exact)
    allowed = option.get("choices") or known.values.get(name)
    open_ended = _OPEN.get(name)
    if allowed and not _among(str(value), allowed):
        if open_ended and "choices" not in option:
            # The plugin may stand in another place of the recipe.
            if open_ended not in {canonical(other) for other in args}:
                yield ArgProblem(
                    key, *_no_choice_text("", str(value), allowed, known, f"or name a {open_ended}"), warning=True
                )
        else:
            yield _no_choice(key, "", str(value), allowed, known)


def _number(value: Any) -> float:
    """The size of a value that has bounds, as vLLM reads it; of no number (``auto``) one that none excludes."""
    match = _HUMAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return math.nan if isinstance(value, str) else float(value)
    digits = value.rstrip("kKmMgGtT")
    return float(digits) * (1000 if digits != value else 1)


def _among(value: str, allowed: Iterable[str]) -> bool:
    lowered = value.lower().replace("-", "_")
    return any(value == item or lowered == item.lower().replace("-", "_") for item in allowed)


def _no_choice(key: str, inner: str, value: str, allowed: list[str], known: _List) -> ArgProblem:
    return ArgProblem(key, *_no_choice_text(inner, value, allowed, known), warning=not known.exact)


def _no_choice_text(
    inner: str, value: str, allowed: list[str], known: _List, extra: str | None = None
) -> tuple[str, str]:
    close = difflib.get_close_matches(value, allowed, n=1)
    if close:
        hint = f"did you mean `{close[0]}`?"
    else:
        hint = f"one of {', '.join(allowed[:12])}{', …' if len(allowed) > 12 else ''}"
    return f"{inner}{value!r} is none of vLLM {known.version}'s values", f"{hint} {extra}" if extra else hint


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


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"the string {value!r}" if isinstance(value, str) else repr(value)


def _type_hint(name: str, wanted: str | None, value: Any) -> str | None:
    if isinstance(value, str):
        return "without quotes" if re.fullmatch(r"-?[0-9]+" if wanted == "int" else r"-?[0-9.]+", value) else None
    if wanted == "str" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'{name}: "{_scalar(value)}"'
    return None


def render(args: Mapping[str, Any], version: str) -> list[str]:
    """The words for the flags, in their order; flags that no list knows are rendered by their values alone."""
    known = _list(version)
    words: list[str] = []
    for key, value in args.items():
        plain = canonical(key)
        option = known.options.get(known.names.get(plain, ""), {})
        words += _words(plain, value, option)
    return words


def _words(name: str, value: Any, option: Mapping[str, Any]) -> list[str]:
    kind = option.get("kind")
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [next(iter(option.get("no", ())), f"--no-{name}")]
    if isinstance(value, Mapping) or (kind == "json" and isinstance(value, (list, tuple))):
        return [f"--{name}", _document(value)]
    if isinstance(value, (list, tuple)):
        items = [_document(item) if isinstance(item, (Mapping, list, tuple)) else _scalar(item) for item in value]
        if kind == "repeat":
            return [word for item in items for word in (f"--{name}", item)]
        return [f"--{name}", *items]
    text = _scalar(value)
    # A value that looks like a flag must stand in the same word.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _document(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _scalar(value: Any) -> str:
    """``0.00001`` for 1e-05: not every parser that reads a flag takes an exponent."""
    if isinstance(value, bool):
        return str(value).lower()
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)
