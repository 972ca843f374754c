"""Imported recipes and profiles as files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.importers.draft import slug, write_yaml
from recipe_toolkit.importers.imported import Imported, Recipe
from recipe_toolkit.importers.profile import ProfileDraft
from recipe_toolkit.rundir import write_atomic


def save(imported: Sequence[Imported], folder: Path | None, profile: Path | None) -> dict[str, list[str]]:
    """Write the recipes into ``folder`` and what is of the site into ``profile``, where these are given.

    Returns the paths by imported file, the profile's under ``""``. Nothing is written where something else stands
    under one of the names, or where the profile would be refused. Raises RecipeError, OSError.
    """
    files: dict[Path, str] = {}
    paths: dict[str, list[str]] = {}
    for one in imported if folder is not None else ():
        for recipe in one.recipes:
            path = (folder or Path()) / f"{recipe.name}.yaml"
            if path in files:
                message = f"two of the files hold a recipe {recipe.name}; {one.file} is the second"
                raise RecipeError(message, hint="import them into folders of their own: -o DIR")
            files[path] = recipe_text(one, recipe)
            paths.setdefault(one.file, []).append(str(path))
    if profile is not None:
        if profile in files:
            raise RecipeError(f"{profile} is the name of a recipe that is written too", hint="--profile-out FILE")
        files[profile] = profile_text(imported, slug(profile.stem))
        _check_profile(files[profile])
        paths[""] = [str(profile)]
    _write(files)
    return paths


def recipe_text(imported: Imported, recipe: Recipe, *, whole: bool = False) -> str:
    """A recipe's file."""
    key = f":{recipe.key}" if recipe.key else ""
    return recipe.yaml(f"Imported from {imported.file}{key} ({imported.format}) by recipe import.", whole=whole)


def profile_text(imported: Sequence[Imported], name: str) -> str:
    """A cluster profile with all that the files say of their site."""
    profile = ProfileDraft()
    for one in imported:
        profile.merge(one.profile)
    head = [f"What {', '.join(one.file for one in imported)} said of a site, by recipe import."]
    guess = {} if "runs" in profile.data else {"runs": "A folder that all nodes share; this one is a guess."}
    return write_yaml(profile.complete(name), head, guess)


def _check_profile(text: str) -> None:
    """Raises InputError where our own loader refuses the profile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        path.write_text(text, encoding="utf-8")
        load_profile(path)


def _write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        if path.exists() and _text(path) != text:
            raise RecipeError(f"{path} is there already, with another text", hint="remove it, or choose another name")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError:
        return None
