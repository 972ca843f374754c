"""Plain YAML scalars by the core schema of YAML 1.2.

PyYAML resolves them by YAML 1.1, where ``on`` and ``no`` are booleans, ``04:00:00`` is the number
14400, ``010`` is eight, ``1e3`` is a string and ``2026-01-01`` a date. Here:

* ``true`` and ``false`` alone (also ``True``, ``TRUE`` …) are booleans; ``yes no on off`` are strings;
* ``null``, ``~`` and nothing at all are null;
* ``010`` is ten, ``0o10`` and ``0x8`` are eight; ``1_000`` and ``1:30`` are strings;
* ``1e3``, ``1.0`` and ``.5`` are floats; dates are strings;
* ``.inf`` and ``.nan`` are refused, because JSON has no such numbers.
"""

from __future__ import annotations

import re

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBER_START = frozenset("+-.0123456789")
_LARGEST = 2**63
_MAX_DIGITS = 40


def resolve(text: str) -> str | int | float | bool | None:
    """The value of a plain scalar. Raises ValueError for a number that is not finite or too large."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INT.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is too large a number")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    return text


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:_MAX_DIGITS]}... is too large a number")
    number = int(text, {"o": 8, "x": 16}.get(text[1:2], 10))
    if abs(number) >= _LARGEST:
        raise ValueError(f"{text} is too large a number")
    return number


def is_plain_string(text: str) -> bool:
    """Whether ``text``, written without quotes, is the string ``text``."""
    try:
        return resolve(text) == text
    except ValueError:
        return False
