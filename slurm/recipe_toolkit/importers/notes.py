"""What an import says of each key that a recipe does not hold as it stood."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.document import Place
from recipe_toolkit.errors import Problem
from recipe_toolkit.faults import FieldPath, dotted
from recipe_toolkit.feasibility.variables import looks_secret

LOST = "lost"
CHANGED = "changed"
ASSUMED = "assumed"
SKIPPED = "skipped"
PROFILE = "profile"
SET = "set"
UNNEEDED = "unneeded"

KINDS = {
    LOST: "not carried, and the run differs for it",
    CHANGED: "said in another way, for the same run",
    ASSUMED: "not said there, and a recipe must say it",
    SKIPPED: "a variant that could not start there either",
    PROFILE: "belongs in the cluster profile",
    SET: "set by the toolkit itself",
    UNNEEDED: "of no use without what is not used here",
}
"""Kinds of notes, the gravest first. Only ``lost`` makes an import less than whole."""

_BRIEF = (PROFILE, SET, UNNEEDED)
_LONGEST = 80
_ALIKE = 3


@dataclass(frozen=True)
class Note:
    """One key, as the source spells it, with its value and what became of it."""

    kind: str
    place: Place
    field: str
    value: str
    message: str

    def render(self) -> str:
        """``FILE:LINE:COL: lost: KEY = VALUE: consequence``."""
        where = ":".join(str(part) for part in self.place if part)
        what = f"{self.field} = {self.value}" if self.value else self.field
        return f"{where}: {self.kind}: {what}: {self.message}" if what else f"{where}: {self.kind}: {self.message}"

    def to_json(self) -> dict[str, object]:
        """The note as plain data, for ``--json``."""
        file, line, column = self.place
        place = {"file": file, "line": line, "column": column}
        return {"kind": self.kind, **place, "field": self.field, "value": self.value, "message": self.message}

    def problem(self) -> Problem:
        """The note as a warning of the loader."""
        what = f"{self.kind} in the import ({self.value})" if self.value else f"{self.kind} in the import"
        return Problem(*self.place, self.field, f"{what}: {self.message}", severity="warning")


def note(kind: str, place: Place, path: FieldPath, value: Any, message: str) -> Note:
    """A note of the key at ``path``; what looks like a secret is not repeated."""
    text = "" if value is None else "…" if _secret(path, value) else brief(value)
    return Note(kind, place, dotted(path), text, message)


def _secret(path: FieldPath, value: Any) -> bool:
    if isinstance(value, dict):
        return any(_secret((*path, key), item) for key, item in value.items())
    if isinstance(value, list):
        return any(_secret(path, item) for item in value)
    return looks_secret(str(path[-1]) if path else "", value)


def brief(value: Any) -> str:
    """A value in one short line."""
    text = value if isinstance(value, str) and value.isprintable() and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def is_long(value: Any) -> bool:
    """Whether a value does not show whole in a note."""
    return brief(value).endswith("…")


def lines(notes: Iterable[Note]) -> list[str]:
    """The report: a line a key for what a reader must weigh, a line a reason for the rest and for what is alike."""
    groups: dict[tuple[str, str, str], list[Note]] = {}
    for item in unique(notes):
        groups.setdefault((item.kind, item.place.file, item.message), []).append(item)
    told: list[str] = []
    for (kind, file, message), items in groups.items():
        if kind not in _BRIEF and len(items) < _ALIKE:
            told += [item.render() for item in items]
        else:
            told.append(f"{file}: {kind}: {message}: {', '.join(map(_named, items))}")
    return told


def _named(item: Note) -> str:
    value = f" = {item.value}" if item.value and item.kind not in (SET, UNNEEDED) else ""
    return f"{item.field}{value} (line {item.place.line})" if item.place.line else f"{item.field}{value}"


def unique(notes: Iterable[Note]) -> list[Note]:
    """Without what several variants say alike; by kind, then by place."""
    order = list(KINDS)
    return sorted(dict.fromkeys(notes), key=lambda item: (order.index(item.kind), item.place, item.field))
