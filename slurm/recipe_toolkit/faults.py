"""Faults of a field, before it is known where the field stands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Union

from recipe_toolkit.errors import Severity

FieldPath = tuple[Union[str, int], ...]

_PLAIN = re.compile(r"[A-Za-z0-9_<][A-Za-z0-9_<-]*")
_MAX_SHOWN = 60


@dataclass(frozen=True)
class Fault:
    """What is wrong with the field at ``path``.

    ``key``: the fault is the key's, not the value's. ``absent``: the field is missing; it is placed
    at the mapping that lacks it. ``rule``: the rule that found it, where a recipe may answer the rule by name.
    """

    path: FieldPath
    message: str
    hint: str | None = None
    key: bool = False
    absent: bool = False
    severity: Severity = "error"
    rule: str | None = None

    @property
    def refuses(self) -> bool:
        """Whether the file is refused for it."""
        return self.severity == "error"


def dotted(path: FieldPath) -> str:
    """``roles.decode.args."a.b"``: the path as ``--set`` takes it."""
    return ".".join(str(part) if isinstance(part, int) or _PLAIN.fullmatch(part) else f'"{part}"' for part in path)


def shown(value: Any) -> str:
    """A value as the YAML that would give it, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """``did you mean `tp`?``, or None if no known word is close: a slip or two away, or begun with ``word``.

    A wrong guess costs more than none: ``bogus`` and ``logs`` share half their letters.
    """
    if len(word) > _MAX_SHOWN:
        return None
    by_lower = {item.lower().replace("-", "_"): item for item in known}
    lower = word.lower().replace("-", "_")
    # One wrong letter in three is 0.67 alike, one in four 0.75.
    close = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.66 if len(lower) == 3 else 0.74)
    if not close and len(lower) >= 3:
        close = [item for item in by_lower if item.startswith(lower)][:1]
    return f"did you mean `{by_lower[close[0]]}`?" if close else None


def overlaps(one: FieldPath, other: FieldPath) -> bool:
    """Whether one path is the other, or stands above or below it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
