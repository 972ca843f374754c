"""YAML values as words of ``vllm serve``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from recipe_toolkit.vllm_args.lists import list_for


def canonical(key: str) -> str:
    """A flag as it is written in a recipe, without dashes before it and with ``-`` for ``_``."""
    return key.lstrip("-").replace("_", "-")


def render(args: Mapping[str, Any], version: str) -> list[str]:
    """The words for the flags, in their order; flags that no list knows are rendered by their values alone."""
    known = list_for(version)
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
        items = [_document(item) if isinstance(item, (Mapping, list, tuple)) else scalar(item) for item in value]
        if kind == "repeat":
            return [word for item in items for word in (f"--{name}", item)]
        return [f"--{name}", *items]
    text = scalar(value)
    # A value that looks like a flag must stand in the same word.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _document(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def scalar(value: Any) -> str:
    """``0.00001`` for 1e-05: not every parser that reads a flag takes an exponent."""
    if isinstance(value, bool):
        return str(value).lower()
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)
