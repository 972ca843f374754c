"""The errors that users meet.

::

    RecipeError                 exit code 1
    ├── InputError              a recipe, profile or --set that is refused; holds every Problem
    ├── SubmitError             sbatch or the local controller refused
    ├── UnknownRun              no such run folder (102 from ``recipe wait``)
    └── RunError                a phase of the run failed
        ├── DeadlineError       a wait ended without what it waited for
        └── ControlError        the control channel broke or refused

Messages are lower case with no full stop; the hint says what to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
"""An error refuses the file; a warning is to be looked at; a note says what was taken for granted."""


def printable(text: str) -> str:
    """The text on one line, with escapes for what a terminal would obey or cannot show."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\t" else ascii(sign)[1:-1] for sign in text)


class RecipeError(Exception):
    """Base of all errors that are printed without a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def render(self) -> str:
        """The message, and the hint on a line of its own; what a terminal would obey is escaped."""
        text = f"{self.message}\nhint: {self.hint}" if self.hint else self.message
        return "\n".join(map(printable, text.split("\n")))

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``; see :func:`error_object`."""
        return error_object(self.message, self.exit_code, self.hint)


def error_object(message: str, exit_code: int, hint: str | None = None, **place: Any) -> dict[str, Any]:
    """An error as ``--json`` prints it: always the same keys, null where nothing is to be said.

    ``place``: ``file``, ``line``, ``column`` and ``field`` of the first problem of an input; ``problems``
    has them all.
    """
    where = {key: place.get(key) for key in ("file", "line", "column", "field")}
    problems = place.get("problems", [])
    return {"message": message, "hint": hint, **where, "exit_code": exit_code, "problems": problems}


@dataclass(frozen=True, order=True)
class Problem:
    """What is to be said of a place of an input file.

    ``line`` and ``column`` count from 1; 0 means that the place is not known
    (a value given by ``--set``, or one that only follows from others). ``rule``: the name of the
    rule that found it, under which a recipe may answer it.
    """

    file: str
    line: int
    column: int
    field: str
    message: str
    hint: str | None = dataclasses.field(default=None, compare=False)
    severity: Severity = dataclasses.field(default="error", compare=False)
    rule: str | None = dataclasses.field(default=None, compare=False)

    @property
    def refuses(self) -> bool:
        """Whether the file is refused for it."""
        return self.severity == "error"

    def render(self) -> str:
        """``FILE:LINE:COL: field: message [rule]``, then the hint."""
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        kind = "" if self.refuses else f"{self.severity}: "
        field, rule = f"{self.field}: " if self.field else "", f" [{self.rule}]" if self.rule else ""
        head = f"{where}: {kind}{field}{self.message}{rule}"
        return f"{printable(head)}\n  hint: {printable(self.hint)}" if self.hint else printable(head)

    def to_json(self) -> dict[str, object]:
        """The problem as plain data, for ``--json``."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "field": self.field,
            "message": self.message,
            "hint": self.hint,
            "severity": self.severity,
            "rule": self.rule,
        }


class InputError(RecipeError):
    """Input that is refused, with all its problems at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(p.render() for p in self.problems))

    def to_json(self) -> dict[str, Any]:
        """The first error at the top, and every problem."""
        problems = [problem.to_json() for problem in self.problems]
        # Where a warning refuses, there is no error.
        kinds = ("error", "warning")
        first = next((item for kind in kinds for item in problems if item["severity"] == kind), None)
        if first is None:
            return super().to_json()
        place = {key: first[key] or None for key in ("file", "line", "column", "field")}
        message, hint = str(first["message"]), first["hint"]
        return error_object(message, self.exit_code, str(hint) if hint else None, **place, problems=problems)


class SubmitError(RecipeError):
    """The scheduler refused the job; the message holds its command, exit code and stderr."""


class UnknownRun(RecipeError):
    """No run of that name or path."""


class RunError(RecipeError):
    """A phase of the run failed."""


class DeadlineError(RunError):
    """A wait ended without what it waited for; the message says for what, and how long."""


class ControlError(RunError):
    """The control channel between the agents broke, or a peer was refused."""
