"""A recipe file to a checked :class:`Recipe`, with every fault at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipe_toolkit.document import Document
from recipe_toolkit.durations import minutes_warning
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.extends import read_with_bases
from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.feasibility import check_recipe
from recipe_toolkit.overrides import apply_sets
from recipe_toolkit.recipe import Recipe
from recipe_toolkit.recipe_data import build_recipe, recipe_data
from recipe_toolkit.schema_check import check_schema, repaired
from recipe_toolkit.setup_steps import read_scripts


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe, the data that it resolves to (all defaults written out), and warnings.

    ``data`` dumps to a file that loads to an equal recipe. ``document`` knows where each field stood.
    """

    recipe: Recipe
    data: dict[str, Any]
    warnings: tuple[Problem, ...]
    document: Document

    def place(self, problem: Problem) -> Problem:
        """A problem that knows only its field, with the file, line and column of that field."""
        path, value = _find(problem.field, self.document)
        place = self.document.locate(path, key=isinstance(value, (dict, list)))
        return replace(problem, file=place.file, line=place.line, column=place.column)


def load_recipe(path: Path, sets: Sequence[str] = ()) -> LoadedRecipe:
    """Read a recipe with its bases, apply ``--set`` assignments, check everything.

    Raises InputError with every problem: of the YAML, the schema, and what the fields mean together.
    """
    return load_document(read_with_bases(path), sets)


def load_document(document: Document, sets: Sequence[str] = ()) -> LoadedRecipe:
    """The recipe that a document holds, merged over its bases; it is changed. Raises InputError, as load_recipe."""
    apply_sets(document, sets, "recipe")
    unread = read_scripts(document)
    data = document.data
    faults = [*check_schema(data, "recipe"), *_time_limit_warning(data)]
    untrusted = [fault.path for fault in faults if fault.refuses]
    sound = repaired(data, faults, "recipe")
    recipe = build_recipe(sound) if sound is not None else None
    if recipe is not None:
        faults += check_recipe(recipe, untrusted)
    problems = document.problems_with([*faults, *unread])
    errors = [problem for problem in problems if problem.refuses]
    if errors or recipe is None:
        raise InputError(problems)
    return LoadedRecipe(recipe, recipe_data(recipe), tuple(sorted(problems)), document)


def _time_limit_warning(data: dict[str, Any]) -> Iterator[Fault]:
    limit = data.get("time_limit")
    said = minutes_warning(limit) if isinstance(limit, str) else None
    if said:
        yield Fault(("time_limit",), *said, severity="warning")


def _find(field: str, document: Document) -> tuple[FieldPath, Any]:
    """The path that a dotted field means, as far as the document has it, and what stands there."""
    path: FieldPath = ()
    holder: Any = document.data
    parts = field.split(".") if field else []
    for index, part in enumerate(parts):
        if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
            path, holder = (*path, int(part)), holder[int(part)]
        elif isinstance(holder, dict):
            rest = ".".join(parts[index:]).strip('"')
            if rest in holder:
                return (*path, rest), holder[rest]
            path, holder = (*path, part), holder.get(part)
        else:
            break
    return path, holder
