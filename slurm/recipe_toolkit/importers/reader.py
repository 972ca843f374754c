"""Foreign documents, read so that no key goes unseen.

Each key that an importer reads is marked as used; what is left at the end is lost, and is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from recipe_toolkit.document import Document, Place
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.faults import FieldPath, dotted, shown
from recipe_toolkit.importers.notes import Note, is_long, note

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})([eE][+-]?[0-9]{1,2})?")
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})


class Source:
    """A document, which of its paths were used, and what was said of them."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.notes: list[Note] = []
        self.problems: list[Problem] = list(document.problems)
        self._used: set[FieldPath] = set()
        self._touched: set[FieldPath] = set()

    @property
    def root(self) -> "Cursor":
        """The whole document."""
        return Cursor(self, ())

    @property
    def file(self) -> str:
        """How the document is named in messages."""
        return self.document.file

    def use(self, path: FieldPath) -> None:
        """Mark a path, and all below it, as seen."""
        self._used.add(path)
        self._touched.update(path[:depth] for depth in range(len(path) + 1))

    def note(self, kind: str, path: FieldPath, value: Any, message: str) -> None:
        """Say what became of a key."""
        self.notes.append(note(kind, self.document.locate(path, key=True), path, value, message))

    def problem(self, path: FieldPath, message: str, hint: str | None = None) -> None:
        """Say why the document is refused."""
        place = self.document.locate(path)
        self.problems.append(Problem(place.file, place.line, place.column, dotted(path), message, hint))

    def refuse(self) -> None:
        """Raise InputError with every problem there is."""
        if any(problem.refuses for problem in self.problems):
            raise InputError(self.problems)

    def reset(self, path: FieldPath) -> None:
        """Forget that a path was used: something else stands there now."""
        self._used.discard(path)

    def leftovers(self) -> Iterator["Cursor"]:
        """The topmost of each key that nothing has used."""
        yield from self._leftovers((), self.document.data)

    def _leftovers(self, path: FieldPath, value: Any) -> Iterator["Cursor"]:
        if path in self._used:
            return
        if path in self._touched and isinstance(value, dict):
            for key, item in value.items():
                yield from self._leftovers((*path, key), item)
        elif path in self._touched and isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._leftovers((*path, index), item)
        else:
            yield Cursor(self, path)


class Cursor:
    """A place in a source, which need not exist. Reading a value marks it as used."""

    def __init__(self, source: Source, path: FieldPath) -> None:
        self.source = source
        self.path = path

    def at(self, *keys: str | int) -> "Cursor":
        """A place below this one."""
        return Cursor(self.source, (*self.path, *keys))

    @property
    def value(self) -> Any:
        """What stands here, None where nothing does; not marked as used."""
        found = self.source.document.data
        for part in self.path:
            known = isinstance(found, dict) and part in found
            if not known and not (isinstance(found, list) and isinstance(part, int) and part < len(found)):
                return None
            found = found[part]
        return found

    @property
    def given(self) -> bool:
        """Whether something other than null stands here."""
        return self.value is not None

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.source.document.locate(self.path)

    def use(self) -> Any:
        """What stands here; it and all below it is used."""
        self.source.use(self.path)
        return self.value

    def note(self, kind: str, message: str, value: Any = None) -> None:
        """Use it, and say what became of it."""
        found = self.use()
        if value is None and is_long(found) and isinstance(found, (dict, list)):
            # Each key by its own name: one line would not show them all.
            for key in found if isinstance(found, dict) else range(len(found)):
                self.at(key).note(kind, message)
        else:
            self.source.note(kind, self.path, found if value is None else value, message)

    def problem(self, message: str, hint: str | None = None) -> None:
        """Use it, and say why it is refused."""
        self.use()
        self.source.problem(self.path, message, hint)

    def items(self) -> list[tuple[str, "Cursor"]]:
        """Its keys with their places; the mapping is touched, its keys are not used. Anything else is refused."""
        found = self.value
        if isinstance(found, dict):
            self.source._touched.update(self.path[:depth] for depth in range(len(self.path) + 1))
            if not found:
                self.use()
            return [(key, self.at(key)) for key in found]
        if found is None:
            self.use()
        else:
            self.problem(f"is {shown(found)}, not a mapping")
        return []

    def entries(self) -> list["Cursor"]:
        """The places of a list's items; a single value is its own. A mapping is refused."""
        found = self.value
        if isinstance(found, list):
            self.source._touched.update(self.path[:depth] for depth in range(len(self.path) + 1))
            if not found:
                self.use()
            return [self.at(index) for index in range(len(found))]
        if isinstance(found, dict):
            self.problem("is a mapping, not a list")
            return []
        if found is None:
            self.use()
            return []
        return [self]

    def text(self) -> str | None:
        """A string; a number is taken as it is written."""
        found = self.use()
        if found is None or isinstance(found, str):
            return found
        if isinstance(found, (dict, list)):
            self.source.problem(self.path, f"is {shown(found)}, not a string")
            return None
        return str(found).lower() if isinstance(found, bool) else str(found)

    def integer(self, least: int = 0, most: int = 10**9) -> int | None:
        """An integer, also as a string, within bounds."""
        found = self.use()
        if found is None:
            return None
        number = int(found) if isinstance(found, str) and _INTEGER.fullmatch(found.strip()) else found
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int):
            self.source.problem(self.path, f"{shown(found)} is not an integer")
        elif not least <= number <= most:
            self.source.problem(self.path, f"{shown(found)} is not between {least} and {most}")
        else:
            return number
        return None

    def number(self) -> float | None:
        """A number, also as a string."""
        found = self.use()
        if found is None:
            return None
        number = float(found) if isinstance(found, str) and _NUMBER.fullmatch(found.strip()) else found
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            self.source.problem(self.path, f"{shown(found)} is not a number")
            return None
        return float(number)

    def flag(self, default: bool = False) -> bool:
        """A boolean, also in YAML 1.1's words."""
        found = self.use()
        if found is None:
            return default
        if isinstance(found, bool):
            return found
        if isinstance(found, str) and found.lower() in _TRUE | _FALSE:
            return found.lower() in _TRUE
        self.source.problem(self.path, f"{shown(found)} is not true or false")
        return default
