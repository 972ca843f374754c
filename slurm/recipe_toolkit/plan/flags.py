"""YAML values as command-line words, for programs other than vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from recipe_toolkit.errors import Problem


def number(value: int | float) -> str:
    """A number without exponent: ``0.00001``, not ``1e-05``; ``2.0`` is ``2``."""
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


def scalar(value: Any) -> str:
    """One word for a string, number or boolean."""
    if isinstance(value, bool):
        return str(value).lower()
    return number(value) if isinstance(value, (int, float)) else str(value)


def document(value: Any) -> str:
    """Compact JSON with the keys in their order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def render(args: Mapping[str, Any]) -> list[str]:
    """``true`` gives the flag, ``false`` nothing, a list several values, a mapping JSON."""
    words: list[str] = []
    for key, value in args.items():
        if value is False:
            continue
        words.append(f"--{key.lstrip('-').replace('_', '-')}")
        if isinstance(value, Mapping):
            words.append(document(value))
        elif isinstance(value, (list, tuple)):
            words += [document(item) if isinstance(item, (Mapping, list)) else scalar(item) for item in value]
        elif value is not True:
            words.append(scalar(value))
    return words


def refuse(args: Mapping[str, Any], reserved: Mapping[str, str], field: str) -> list[Problem]:
    """A problem for each flag that the toolkit sets itself; ``reserved`` says why."""
    problems = []
    for key in args:
        reason = reserved.get(key.lstrip("-").replace("_", "-"))
        if reason:
            problems.append(Problem("recipe", 0, 0, f"{field}.{key}", f"cannot be set: {reason}", "leave it out"))
    return problems
