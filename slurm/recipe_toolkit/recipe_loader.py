"""A recipe file to a checked :class:`Recipe`, with every fault at once."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from recipe_toolkit.schema_check import check_schema, example, load_schema

_REPAIRS = 3  # a stand-in may show what else is missing


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
        path = _path_of(problem.field, self.document)
        place = self.document.locate(path)
        return Problem(*place, problem.field, problem.message, problem.hint, problem.warning)


def load_recipe(path: Path, sets: Sequence[str] = ()) -> LoadedRecipe:
    """Read a recipe with its bases, apply ``--set`` assignments, check everything.

    Raises InputError with every problem: of the YAML, the schema, and what the fields mean together.
    """
    document = read_with_bases(path)
    apply_sets(document, sets, "recipe")
    data = document.data
    faults = [*check_schema(data, "recipe"), *_time_limit_warning(data)]
    recipe = _best_effort(data, faults)
    if recipe is not None:
        faults += check_recipe(recipe, [fault.path for fault in faults if not fault.warning])
    problems = [*document.problems, *(document.problem(fault) for fault in faults)]
    errors = [problem for problem in problems if not problem.warning]
    if errors or recipe is None:
        raise InputError(problems)
    return LoadedRecipe(recipe, recipe_data(recipe), tuple(sorted(problems)), document)


def _time_limit_warning(data: dict[str, Any]) -> Iterator[Fault]:
    limit = data.get("time_limit")
    said = minutes_warning(limit) if isinstance(limit, str) else None
    if said:
        yield Fault(("time_limit",), *said, warning=True)


def _best_effort(data: dict[str, Any], faults: Sequence[Fault]) -> Recipe | None:
    """The recipe, with the schema's examples in place of what is wrong or missing; None if that is not enough."""
    wrong = [fault for fault in faults if not fault.warning]
    for _ in range(_REPAIRS):
        if not wrong:
            return build_recipe(data)
        data = _repaired(data, wrong)
        wrong = check_schema(data, "recipe")
    return None


def _repaired(data: dict[str, Any], faults: Iterable[Fault]) -> dict[str, Any]:
    data, schema = copy.deepcopy(data), load_schema("recipe")
    for fault in faults:
        path = fault.path
        while path and isinstance(path[-1], int):
            path = path[:-1]
        holder = _at(data, path[:-1])
        if not path or not isinstance(holder, dict):
            continue
        stand_in = None if fault.key else example(schema, path)
        if stand_in is None:
            holder.pop(path[-1], None)
        else:
            holder[path[-1]] = copy.deepcopy(stand_in)
    return data


def _at(data: Any, path: FieldPath) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _path_of(field: str, document: Document) -> FieldPath:
    """The path that a dotted field means, as far as the document has it."""
    path: FieldPath = ()
    holder: Any = document.data
    parts = field.split(".") if field else []
    for index, part in enumerate(parts):
        if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
            path, holder = (*path, int(part)), holder[int(part)]
        elif isinstance(holder, dict):
            rest = ".".join(parts[index:]).strip('"')
            if rest in holder:
                return (*path, rest)
            path, holder = (*path, part), holder.get(part)
        else:
            break
    return path
