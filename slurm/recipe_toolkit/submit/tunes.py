"""The folder of a tuning: which sweeps are its stages, and what has come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RecipeError, UnknownRun
from recipe_toolkit.rundir import read_json, write_json
from recipe_toolkit.submit.folder import new_id
from recipe_toolkit.submit.sweeps import Sweep, find_sweep

STATE_SCHEMA = 1
STAGES = ("prefill", "decode", "confirm")


@dataclass(frozen=True)
class TuneDir:
    """``root``: the folder; ``sweeps``: the id of each stage's sweep, decided before anything is submitted."""

    root: Path
    sweeps: dict[str, str]

    @property
    def frontier(self) -> Path:
        """The combined frontier."""
        return self.root / "frontier.json"

    @property
    def confirm(self) -> Path:
        """The recipes that confirm it."""
        return self.root / "confirm"

    def recipe(self, stage: str) -> Path:
        """The recipe of a stage, with its sweep."""
        return self.root / f"{stage}.yaml"

    def sweep(self, stage: str, folders: Sequence[Path]) -> Sweep | None:
        """The runs of a stage so far; None where there are none. Raises UnknownRun for a folder that is unreadable."""
        try:
            return find_sweep(self.sweeps[stage], folders)
        except UnknownRun:
            return None


def open_tune(root: Path, recipe: str) -> TuneDir:
    """The tuning in a folder, which is made where it is not there. Raises RecipeError."""
    path = root / "tune.json"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            sweeps = {stage: new_id(f"{recipe}-{stage}") for stage in STAGES}
            write_json(path, {"schema": STATE_SCHEMA, "recipe": recipe, "sweeps": sweeps})
        data = read_json(path)
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror or error}", hint="name another folder: --folder DIR") from error
    except ValueError as error:
        raise RecipeError(f"{path}: cannot be read: {error}", hint="name another folder: --folder DIR") from error
    return TuneDir(root, _sweeps(path, data, recipe))


def _sweeps(path: Path, data: Any, recipe: str) -> dict[str, str]:
    sweeps = data.get("sweeps") if isinstance(data, dict) else None
    if not isinstance(sweeps, dict) or not all(isinstance(sweeps.get(stage), str) for stage in STAGES):
        sweeps = None
    if sweeps is None or data.get("schema") != STATE_SCHEMA:
        raise RecipeError(f"{path}: is no state of a tuning that this version knows", hint="--folder DIR: another one")
    if data.get("recipe") != recipe:
        raise RecipeError(
            f"{path}: is of the recipe {data.get('recipe')}, not of {recipe}", hint="--folder DIR: another one"
        )
    return {stage: str(sweeps[stage]) for stage in STAGES}
