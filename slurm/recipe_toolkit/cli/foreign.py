"""Recipes in any format that is known, for the verbs that take a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.recipe_loader import LoadedRecipe, load_document, load_recipe

if TYPE_CHECKING:
    from recipe_toolkit.importers.imported import Imported


def load_any(path: Path, sets: Sequence[str] = ()) -> LoadedRecipe:
    """A recipe of ours or, imported on the fly, of another tool: what is lost are then warnings.

    Raises InputError with every problem.
    """
    imported = _imported(path)
    if imported is None:
        return load_recipe(path, sets)
    if len(imported.recipes) != 1:
        keys = [recipe.key for recipe in imported.recipes if recipe.key]
        hint = f"name one: {path}:{keys[0]}; or recipe import {path} -o DIR" if keys else None
        what = f"{imported.format}: it holds {len(imported.recipes)} recipes"
        raise InputError([Problem(str(path), 0, 0, "", what, hint)])
    (recipe,) = imported.recipes
    loaded = load_document(recipe.document, sets)
    return replace(loaded, warnings=(*_told(path, imported), *loaded.warnings))


def _imported(path: Path) -> Imported | None:
    """The import of a file of another tool; None where it is ours, or is nothing that can be read."""
    from recipe_toolkit.document import read_document
    from recipe_toolkit.importers.formats import RECIPE, format_of

    file, selector = _split(path)
    try:
        # Asking our loader first would cost more: its explanation of what it refuses takes a library to load.
        document = read_document(file)
    except InputError:
        return None
    if format_of(document.data) in (None, RECIPE):
        return None
    from recipe_toolkit.importers.imported import import_file

    return import_file(file, selector, document)


def _told(path: Path, imported: Imported) -> list[Problem]:
    from recipe_toolkit.importers import notes

    lost = [note for note in notes.unique(imported.notes) if note.kind in (notes.LOST, notes.ASSUMED)]
    count = sum(note.kind == notes.LOST for note in lost)
    end = "nothing of it is lost" if not count else "1 key is lost" if count == 1 else f"{count} keys are lost"
    hint = f"recipe import {path} shows the recipe and the whole report"
    site = sum(note.kind == notes.PROFILE for note in notes.unique(imported.notes))
    end += f"; {site} belong in the cluster profile" if site else ""
    said = f"{imported.format}, imported as it is read: {end}"
    first = Problem(imported.file, 0, 0, "", said, hint, severity="warning")
    return [first, *(note.problem() for note in lost)]


def import_path(path: Path) -> Imported:
    """What ``FILE`` or ``FILE:KEY`` holds. Raises InputError."""
    from recipe_toolkit.importers.imported import import_file

    return import_file(*_split(path))


def _split(path: Path) -> tuple[Path, str | None]:
    """``FILE:KEY``, where there is no file of that whole name."""
    name, colon, selector = str(path).rpartition(":")
    if colon and name and selector and not _exists(path) and _exists(Path(name)):
        return Path(name), selector
    return path, None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
