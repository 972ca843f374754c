"""What is wrong with a flag, and words for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.errors import Severity
from recipe_toolkit.faults import FieldPath


@dataclass(frozen=True)
class ArgProblem:
    """What is wrong with a flag.

    ``path``: the flag as it was written, then the keys of its document. ``lacking``: the version's list does not
    have it, which may be the list's fault where the version has none of its own.
    """

    path: FieldPath
    message: str
    hint: str | None = None
    severity: Severity = "error"
    lacking: bool = False

    @property
    def key(self) -> str:
        """The flag as it was written."""
        return str(self.path[0])


def among(value: Any, allowed: Iterable[Any]) -> bool:
    """Whether a value is one of a list: vLLM reads most of them in any case, with ``-`` or ``_``."""
    return _plain(value) in map(_plain, allowed)


def _plain(value: Any) -> str:
    return str(value).lower().replace("-", "_")


def nearest_of(value: str, allowed: Iterable[Any]) -> str:
    """``did you mean `fp8`?``, or the values there are."""
    words = {_plain(item): str(item) for item in allowed}
    close = difflib.get_close_matches(_plain(value), words, n=1)
    if close:
        return f"did you mean `{words[close[0]]}`?"
    names = list(words.values())
    return f"one of {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"


def shown(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"the string {value!r}" if isinstance(value, str) else repr(value)
