"""Flags of vLLM as other formats write them, to the flags, sizes and names of a recipe.

Others write a flag as it stands on the command line: ``no-x: true`` for ``--no-x``, JSON in a string,
``speculative_config.method`` with a dot, ``_`` for ``-``; ``false`` and null pass nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit import vllm_args
from recipe_toolkit.importers.notes import CHANGED, LOST, SET, UNNEEDED
from recipe_toolkit.importers.reader import Cursor
from recipe_toolkit.vllm_args.lists import list_for

_DYNAMO = {"dyn-tool-call-parser": "tool-call-parser", "dyn-reasoning-parser": "reasoning-parser"}
_TRUE = frozenset({"true", "yes", "on"})
# What older versions called a flag that has another name now.
_RENAMED = {"kv-cache-memory": "kv-cache-memory-bytes"}
_DEEPEST = 30
_ELSEWHERE = frozenset({"served-model-name", "kv-transfer-config", "connector", "revision", "model"})


@dataclass
class Flags:
    """``args`` by flag; ``sizes`` by key of ``parallel``; ``elsewhere``: what stands in other fields of a recipe.

    Each with the place that it came from.
    """

    args: dict[str, tuple[Any, Cursor]] = field(default_factory=dict)
    sizes: dict[str, tuple[Any, Cursor]] = field(default_factory=dict)
    elsewhere: dict[str, Cursor] = field(default_factory=dict)

    def size(self, key: str) -> int:
        """One of the parallel sizes that are numbers."""
        found = self.sizes.get(key)
        return int(found[0]) if found else 1


def read_flags(items: Iterable[tuple[str, Cursor]], version: str) -> Flags:
    """Sort out the flags of one role. What cannot be carried is noted."""
    flags, late = Flags(), []
    for key, cursor in items:
        name, _, inner = key.lstrip("-").partition(".")
        plain = vllm_args.canonical(name)
        if plain in _DYNAMO:
            late.append((plain, cursor))
        elif not _passes_nothing(plain, inner, cursor, flags):
            _read(plain, inner, cursor, flags, version)
    for plain, cursor in late:
        _dynamo(plain, cursor, flags)
    return flags


def _passes_nothing(plain: str, inner: str, cursor: Cursor, flags: Flags) -> bool:
    if cursor.value is not None and cursor.value is not False:
        return False
    if plain == "enable-expert-parallel" and not inner:
        flags.sizes["ep"] = (False, cursor)
        cursor.use()
    else:
        cursor.note(UNNEEDED, "false and null pass no flag")
    return True


def _read(plain: str, inner: str, cursor: Cursor, flags: Flags, version: str) -> None:
    negative = vllm_args.positive(plain, version)
    name = negative or vllm_args.full_name(plain, version)
    if not vllm_args.knows(name, version) and vllm_args.knows(_RENAMED.get(name, name), version):
        name = _RENAMED[name]
    if name in _ELSEWHERE:
        flags.elsewhere[name] = cursor
    elif name in vllm_args.PARALLEL:
        _read_size(vllm_args.PARALLEL[name], bool(negative), cursor, flags)
    elif _is_left_out(plain, name, cursor):
        return
    elif inner:
        _nest(name, inner, cursor, flags)
    elif negative:
        flags.args[name] = (False, cursor)
        cursor.use()
    else:
        option = vllm_args.option(name, version) or {}
        value = typed(cursor.use(), option)
        if isinstance(value, dict) and "config" in option:
            value = coerced(value, option["config"], version)
        _merge(name, value, cursor, flags)


def _is_left_out(plain: str, name: str, cursor: Cursor) -> bool:
    """Whether the flag is none that a recipe passes on; why is noted."""
    if name in vllm_args.RESERVED:
        cursor.note(SET, vllm_args.RESERVED[name])
    elif name == "distributed-executor-backend" and cursor.value == "ray":
        cursor.note(CHANGED, "instances are launched without Ray")
    elif name == "prefill-context-parallel-size" and cursor.value not in (1, "1"):
        cursor.problem("prefill context parallelism has no place in a recipe: it takes GPUs that no size counts")
    elif plain.startswith("dyn-"):
        cursor.note(LOST, "a flag of Dynamo's worker, which vLLM has not")
    else:
        return False
    return True


def _read_size(key: str, negative: bool, cursor: Cursor, flags: Flags) -> None:
    if key in ("ep", "dp_lb"):
        value: Any = not negative and cursor.flag()
        if key == "dp_lb":
            value = "hybrid" if value else "internal"
    else:
        value = cursor.integer(least=1, most=4096) or 1
    flags.sizes[key] = (value, cursor)


def _nest(name: str, inner: str, cursor: Cursor, flags: Flags) -> None:
    value: Any = _inner(cursor.use())
    for part in reversed(inner.split(".")):
        value = {part: value}
    _merge(name, value, cursor, flags)


def _inner(value: Any) -> Any:
    """A value after a dot: vLLM reads it as JSON where it is that."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return value
    return found if _depth(found) <= _DEEPEST else value


def _merge(name: str, value: Any, cursor: Cursor, flags: Flags) -> None:
    """Set a flag; parts of one document that are written apart come together."""
    before = flags.args.get(name, (None, cursor))[0]
    if isinstance(before, dict) and isinstance(value, dict):
        value = _deep(before, value)
    flags.args[name] = (value, cursor)


def _deep(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _deep(merged[key], value) if both else value
    return merged


def coerced(document: dict[str, Any], config: str, version: str) -> dict[str, Any]:
    """Numbers and booleans out of strings, where vLLM's class has such: it takes "32" for 32, and we ask for 32."""
    entries = list_for(version).configs.get(config, {})
    return {key: _coerced(value, entries.get(key), version) for key, value in document.items()}


def _coerced(value: Any, entry: Any, version: str) -> Any:
    entries = entry if isinstance(entry, list) else [entry]
    if isinstance(value, dict):
        inner = next((item["config"] for item in entries if isinstance(item, dict) and "config" in item), None)
        return coerced(value, inner, version) if inner else value
    kinds = {kind for item in entries if isinstance(item, str) for kind in item.split("|")}
    if not isinstance(value, str) or kinds & {"str", "any"}:
        return value
    if "bool" in kinds and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return _number(value, "float" if "float" in kinds else "int") if kinds & {"int", "float"} else value


def typed(value: Any, option: Any) -> Any:
    """A value as the flag takes it: JSON out of strings, numbers out of strings and the other way round."""
    kind, kind_of_value = (option or {}).get("kind", "any"), (option or {}).get("type")
    if kind == "json" and isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return _document(value)
    if kind in ("bool", "flag") and isinstance(value, str):
        return True if value.lower() in _TRUE else value
    if kind == "optional" and value is True:
        return value
    if isinstance(value, list):
        return [typed(item, {**option, "kind": "value"}) for item in value] if option else value
    if kind_of_value == "str" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if kind_of_value in ("int", "float", "human_int", "human_int_or_auto", "any") and isinstance(value, str):
        return _number(value, kind_of_value)
    return value


def _document(text: str) -> Any:
    """What a JSON text says; the text where it is none, or where no flag of vLLM is so deep."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    return found if _depth(found) <= _DEEPEST else text


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, items), default=0)


def _number(text: str, kind: str) -> Any:
    for convert in (int,) if kind not in ("float", "any") else (int, float):
        try:
            number = convert(text)
        except ValueError:
            continue
        if math.isfinite(number) and (repr(number) == text or kind != "any"):
            return number
    return text


def _dynamo(plain: str, cursor: Cursor, flags: Flags) -> None:
    """Parsers that Dynamo's frontend was told of: vLLM's own server does the same under its own flag."""
    name = _DYNAMO[plain]
    if name in flags.args or cursor.value in (None, False):
        cursor.note(UNNEEDED, "Dynamo is not used; vLLM's own flag says it")
        return
    cursor.note(CHANGED, f"vLLM's own server does it: {name}")
    flags.args[name] = (cursor.value, cursor)
    if name == "tool-call-parser" and "enable-auto-tool-choice" not in flags.args:
        flags.args["enable-auto-tool-choice"] = (True, cursor)
