"""InferenceX's master file: entries that name recipes of srt-slurm, which hold what runs.

An entry's own fields are labels of its results (``configs/CONFIGS.md``): the launcher executes the file of
``additional-settings: [CONFIG_FILE=PATH[:KEY]]``, which InferenceX keeps below
``benchmarks/multi_node/srt-slurm-recipes`` in the place of srt-slurm's ``recipes``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from recipe_toolkit.document import Document, read_document
from recipe_toolkit.errors import InputError
from recipe_toolkit.faults import FieldPath
from recipe_toolkit.importers import formats
from recipe_toolkit.importers.notes import LOST, UNNEEDED, Note
from recipe_toolkit.importers.reader import Source

_SETTING = "CONFIG_FILE="
_RECIPES = "recipes"
_KEPT = Path("benchmarks/multi_node/srt-slurm-recipes")
_LEVELS = 8
_LABELS = frozenset(
    {
        "image",
        "model",
        "model-prefix",
        "runner",
        "precision",
        "framework",
        "multinode",
        "disagg",
        "router",
        "kv-p2p-transfer",
        "hardware",
        "dram-utilization",
        "scenarios",
    }
)


@dataclass(frozen=True)
class Entry:
    """One recipe that an entry names. ``at``: where it does."""

    key: str
    file: Path
    selector: str | None
    at: FieldPath


def entries(
    document: Document, selector: str | None, read: Callable[[Document, str, str | None], Any]
) -> tuple[list[Any], list[Note]]:
    """What ``read`` makes of each file that is named, and notes of the entries that name none."""
    source = Source(document)
    done: list[Any] = []
    for key, cursor in source.root.items():
        if selector is not None and not fnmatchcase(key, selector):
            source.use(cursor.path)
            continue
        engine = cursor.at("framework").value
        found = list(_named(document, key, cursor.value))
        if not found:
            source.note(LOST, cursor.path, engine, "its flags stand in a shell script, not in a recipe")
        else:
            source.note(UNNEEDED, cursor.path, engine, "labels of results: what runs stands in the file that is named")
        for entry in found:
            _read(entry, source, read, done)
        for name, item in cursor.items():
            if name not in _LABELS:
                item.note(LOST, "not a label that is known")
        source.use(cursor.path)
    return done, source.notes


def _read(entry: Entry, source: Source, read: Callable[[Document, str, str | None], Any], done: list[Any]) -> None:
    try:
        document = read_document(entry.file)
        kind = formats.format_of(document.data)
        if kind not in (formats.SRT1, formats.SRT2):
            source.note(LOST, entry.at, str(entry.file), "not a recipe of srt-slurm")
            return
        done.append(read(document, kind, entry.selector))
    except InputError as error:
        problem = next((item for item in error.problems if item.refuses), error.problems[0])
        source.note(LOST, entry.at, str(entry.file), f"is refused: {problem.message}")


def _named(document: Document, key: str, entry: Any) -> Iterator[Entry]:
    """Each file that the entry names, once."""
    seen: set[str] = set()
    for path, text in _settings(entry, (key,)):
        name, _, selector = text.removeprefix(_SETTING).partition(":")
        if text.startswith(_SETTING) and text not in seen:
            seen.add(text)
            yield Entry(key, _resolved(Path(document.file), name), selector or None, path)


def _settings(data: Any, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _settings(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _settings(value, (*path, index))
    elif isinstance(data, str) and "additional-settings" in path:
        yield path, data


def _resolved(master: Path, name: str) -> Path:
    """The file in the folders above the master file, under the name as it stands or where InferenceX keeps it."""
    parts = PurePosixPath(name).parts
    kept = _KEPT.joinpath(*parts[1:]) if parts[:1] == (_RECIPES,) else Path(name)
    if "\0" in name or ".." in parts or PurePosixPath(name).is_absolute():
        return Path(name)
    above = [Path(os.path.normpath(master.parent.joinpath(*[".."] * level))) for level in range(_LEVELS)]
    candidates = [folder / form for folder in above for form in (kept, Path(name))]
    return next((path for path in candidates if path.is_file()), Path(name))
