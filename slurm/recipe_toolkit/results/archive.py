"""Copies of runs, as folders and as archives: whether they are whole, and how they are read again."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.results.manifest import Entry, entries_of, parse_manifest
from recipe_toolkit.rundir import RunDir, read_json

# Name -> tarfile's word for the compression; zst since Python 3.14.
ARCHIVES = {".tar.gz": "gz", ".tgz": "gz", ".tar.zst": "zst"}
# Written again after the manifest, by the commands that look at a run.
DERIVED = ("report.html",)
_CHUNK = 1024 * 1024
_MANIFEST = "manifest.json"
# What is read of an archive before anything is known of it.
_MOST_BYTES = 1024 * 1024 * 1024
_CLIENTS_OWN = ("bench", "job", "kv", "metrics")


@dataclass(frozen=True)
class Difference:
    """A file that is not as the manifest says. ``what``: ``missing``, ``changed``, ``unlisted`` or ``unreadable``."""

    path: str
    what: str


@dataclass(frozen=True)
class Verified:
    """A copy held against the manifest in it."""

    run: str
    files: int
    bytes: int
    differences: tuple[Difference, ...]


def is_archive(path: Path) -> bool:
    """Whether the name is an archive's."""
    return compression(path) is not None


def compression(path: Path) -> str | None:
    """tarfile's word for the compression that the name asks for; None for a folder."""
    return next((kind for suffix, kind in ARCHIVES.items() if path.name.endswith(suffix)), None)


def verify_copy(path: Path) -> Verified:
    """Read every byte of what `recipe collect` wrote, a folder or an archive, and compare with its manifest.

    Raises RecipeError if it cannot be read, or is no copy of a run.
    """
    if path.is_dir():
        run = RunDir(path)
        try:
            manifest = read_json(run.manifest)
            found = list(entries_of(run))
        except (OSError, ValueError) as error:
            raise RecipeError(f"{path}: cannot be verified: {error}", hint="name a copy of a run") from error
        return _verified(run.manifest, manifest, [entry for entry in found if entry.path not in DERIVED])
    found, text = [], None
    with _opened(path) as tar:
        for name, member in _members(path, tar):
            file = tar.extractfile(member) if member.isfile() else None
            if file is None:
                found.append(Entry(name, 0, ""))  # a link or a device: no copy holds one
            elif name == _MANIFEST:
                text = file.read(_MOST_BYTES)
            else:
                found.append(_hashed(name, file))
        # To the very end, where the compression has a checksum of all that was before: of headers and times too.
        while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
            pass
    if text is None:
        raise RecipeError(f"{path}: holds no {_MANIFEST}, which is written last", hint="it was cut, or is no run")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: its {_MANIFEST} cannot be read: {error}") from error
    return _verified(path, manifest, found)


def _verified(where: Path, manifest: Any, found: list[Entry]) -> Verified:
    try:
        wanted = parse_manifest(manifest)
    except ValueError as error:
        raise RecipeError(f"{where}: its manifest cannot be read: {error}") from error
    differences = compare(wanted, found)
    return Verified(str(manifest.get("run")), len(found), sum(entry.bytes for entry in found), tuple(differences))


def compare(wanted: Mapping[str, Entry], found: Iterable[Entry]) -> Iterator[Difference]:
    """How files differ from a manifest; :data:`DERIVED` ones need not be there."""
    there = {entry.path: entry for entry in found}
    for path, entry in wanted.items():
        if path not in there:
            if path not in DERIVED:
                yield Difference(path, "missing")
        elif there[path] != entry:
            yield Difference(path, "changed")
    yield from (Difference(path, "unlisted") for path in there if path not in wanted)


def unpack(path: Path, folder: Path) -> RunDir:
    """The run in an archive, unpacked below ``folder``: its documents, without logs and the clients' own files.

    Raises RecipeError if the archive cannot be read, or holds no run.
    """
    left = _MOST_BYTES
    run: RunDir | None = None
    with _opened(path) as tar:
        for name, member in _members(path, tar):
            if not _is_document(name) or not member.isfile():
                continue
            left -= member.size
            file = tar.extractfile(member)
            if left < 0 or file is None:
                raise RecipeError(f"{path}: {name}: larger than any run's", hint="unpack it, and name the folder")
            run = run or RunDir(folder / PurePosixPath(member.name).parts[0])
            target = run.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())
    if run is None or not run.plan.is_file():
        raise RecipeError(f"{path}: holds no run", hint="`recipe collect RUN` makes archives that do")
    return run


def _is_document(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parts[0] not in _CLIENTS_OWN and path.suffix in (".json", ".jsonl", ".yaml")


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """The archive. What is wrong with it while it is read raises RecipeError."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, and /dev/zero never ends
        raise RecipeError(f"{path}: is no file", hint="name a copy of a run: a folder or an archive")
    try:
        with tarfile.open(path, "r:*") as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}", hint="copy it again: it may have been cut") from error


def _members(path: Path, tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """What lies below the one folder of the archive, by its path in there."""
    top: str | None = None
    for member in tar:
        # `tar` run by hand writes ./RUN/…
        parts = PurePosixPath(member.name).parts
        if not parts or (member.isdir() and len(parts) == 1):
            continue
        if len(parts) == 1 or parts[0] != (top or parts[0]) or parts[0].startswith("/") or ".." in parts:
            raise RecipeError(f"{path}: holds {member.name!r}, and a copy of a run has one folder and nothing beside")
        if not member.isdir():
            top = parts[0]
            yield "/".join(parts[1:]), member


def _hashed(name: str, file: IO[bytes]) -> Entry:
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return Entry(name, size, digest.hexdigest())
