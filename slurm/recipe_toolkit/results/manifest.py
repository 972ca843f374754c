"""What a run folder holds: path, bytes and sha256 of every file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.rundir import RunDir, read_json, write_json

MANIFEST_SCHEMA = 1
_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """A file of the folder. ``path`` is relative, with ``/``."""

    path: str
    bytes: int
    sha256: str


def write_manifest(rundir: RunDir) -> None:
    """Write the manifest of everything but the token and the manifest itself, whole or not at all. Raises OSError."""
    entries = [{"path": entry.path, "bytes": entry.bytes, "sha256": entry.sha256} for entry in entries_of(rundir)]
    write_json(rundir.manifest, {"schema": MANIFEST_SCHEMA, "run": rundir.id, "files": entries})


def entries_of(rundir: RunDir) -> Iterator[Entry]:
    """The files of the folder by path. A file that goes away meanwhile is left out. Raises OSError."""
    for path in files_of(rundir):
        try:
            size, digest = hash_file(path)
        except FileNotFoundError:
            continue
        yield Entry(name_of(rundir, path), size, digest)


def name_of(rundir: RunDir, path: Path) -> str:
    """A file's path in the manifest; bytes that are no UTF-8 are written as ``\\xNN``."""
    return os.fsencode(path.relative_to(rundir.root)).decode("utf-8", "backslashreplace")


def files_of(rundir: RunDir) -> list[Path]:
    """Regular files of the folder in the order of their paths, without the token, the manifest and unfinished writes.

    A symbolic link counts where it leads to a file inside the folder; folders behind links are not entered.
    """
    root = rundir.root.resolve()
    found = []
    for folder, _, names in os.walk(rundir.root, followlinks=False):
        for name in names:
            path = Path(folder) / name
            if path in (rundir.token, rundir.manifest) or _unfinished(rundir, path) or not path.is_file():
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                continue
            if path.resolve() == rundir.token.resolve():
                continue
            found.append(path)
    return sorted(found, key=lambda path: path.relative_to(rundir.root).parts)


def hash_file(path: Path) -> tuple[int, str]:
    """Bytes and sha256 of a file, read in pieces. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def read_manifest(path: Path) -> dict[str, Entry]:
    """The entries of a manifest by path. Raises OSError, ValueError if it is none."""
    return parse_manifest(read_json(path))


def parse_manifest(data: Any) -> dict[str, Entry]:
    """The entries of a manifest's data by path. Raises ValueError, saying what is wrong with which file."""
    if not isinstance(data, dict) or data.get("schema") != MANIFEST_SCHEMA:
        raise ValueError(f"no manifest of schema {MANIFEST_SCHEMA}")
    files = data.get("files")
    if not isinstance(files, list):
        raise ValueError("`files` is not a list")
    entries = [_entry(index, item) for index, item in enumerate(files)]
    return {entry.path: entry for entry in entries}


def _entry(index: int, item: Any) -> Entry:
    path, size, digest = (item.get(key) if isinstance(item, dict) else None for key in ("path", "bytes", "sha256"))
    if not isinstance(path, str) or type(size) is not int or size < 0 or not isinstance(digest, str):
        raise ValueError(f"files.{index} is not a path with its bytes and sha256")
    return Entry(path, size, digest)


def _unfinished(rundir: RunDir, path: Path) -> bool:
    """Whether ``path`` is the temporary file of an atomic write that never ended (or is under way)."""
    known = (rundir.results, rundir.report, rundir.state, rundir.manifest, rundir.token, rundir.job, rundir.plan)
    return path.parent == rundir.root and any(path.name.startswith(f".{other.name}.") for other in known)
