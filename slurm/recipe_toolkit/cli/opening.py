"""Runs by name, and archives of runs, for the verbs that read results."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import find_run
from recipe_toolkit.text_file import user_path


@dataclass(frozen=True)
class Opened:
    """A run to read. ``archive``: the file that it was unpacked from, for as long as the command runs."""

    run: RunDir
    archive: Path | None = None


def open_run(word: str, folders: Sequence[Path]) -> Opened:
    """The run that ``word`` names as for every verb, or the one in an archive of `recipe collect`.

    Raises UnknownRun; RecipeError if the archive cannot be read.
    """
    from recipe_toolkit.results.archive import is_archive, unpack

    path = user_path(word)
    if not is_archive(path) or not path.is_file():
        return Opened(find_run(word, folders))
    folder = click.get_current_context().with_resource(tempfile.TemporaryDirectory(prefix="recipe-"))
    return Opened(unpack(path, Path(folder)), path)
