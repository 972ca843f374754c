"""A copy of a run for its user to keep: checked against the manifest, whole or not there at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.results.archive import (
    ARCHIVES,
    DERIVED,
    Difference,
    compression,
    is_archive,
    verify_copy,
)
from recipe_toolkit.results.manifest import MANIFEST_SCHEMA, Entry, files_of, name_of, read_manifest
from recipe_toolkit.rundir import RunDir

_CHUNK = 1024 * 1024
# An agent still writes after the lead has written the manifest.
_LOGS = (".log", ".out", ".err", ".jsonl")


@dataclass(frozen=True)
class Gathered:
    """What was copied. ``differences`` is None if the run has no manifest: it never ended."""

    path: Path
    files: int
    bytes: int
    differences: tuple[Difference, ...] | None


def gather(rundir: RunDir, target: Path, extra: Mapping[str, str] | None = None) -> Gathered:
    """Copy every file of a run but the token to ``target``, a folder or an archive, with a manifest of its own.

    What was written is read back and compared before it gets its name. ``extra``: further files, by
    path, that the run lacks. What was there is replaced if it is a copy of the same run. Raises
    RecipeError if ``target`` holds anything else, or what was written reads back otherwise; OSError.
    """
    target = target.absolute()
    _refuse(rundir, target)
    differences = tuple(verify(rundir)) if rundir.manifest.is_file() else None
    target.parent.mkdir(parents=True, exist_ok=True)
    with _staged(target) as stage:
        with _sink(stage, target, rundir.id) as sink:
            entries = _copy(rundir, sink, extra or {})
        damage = verify_copy(stage).differences
        if damage:
            raise RecipeError(
                f"{target}: what was written reads back otherwise ({damage[0].what}: {damage[0].path}); it is not kept",
                hint="the disk or the file system damages data: name another place with -o",
            )
    return Gathered(target, len(entries), sum(entry.bytes for entry in entries), differences)


def verify(rundir: RunDir) -> Iterator[Difference]:
    """The files that are not as the run's own manifest says. A log that has only grown since is as it should be."""
    try:
        entries = read_manifest(rundir.manifest)
    except (OSError, ValueError) as error:
        yield Difference(f"{rundir.manifest.name} ({error})", "unreadable")
        return
    here = {name_of(rundir, path): path for path in files_of(rundir)}
    for name, entry in entries.items():
        if name in DERIVED:
            continue
        if name not in here:
            yield Difference(name, "missing")
        elif _begin_hash(here[name], entry.bytes, grows=name.endswith(_LOGS)) != entry.sha256:
            yield Difference(name, "changed")


def _begin_hash(path: Path, size: int, *, grows: bool) -> str | None:
    """The hash of a file's first ``size`` bytes; None if it is shorter, or longer and does not grow."""
    digest, left = hashlib.sha256(), size
    try:
        with path.open("rb") as file:
            while left and (chunk := file.read(min(_CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
            if not grows and file.read(1):
                return None
    except OSError:
        return None
    return None if left else digest.hexdigest()


def _refuse(rundir: RunDir, target: Path) -> None:
    root = rundir.root.resolve()
    where = target.parent.resolve() / target.name
    if where == root or where.is_relative_to(root):
        raise RecipeError(f"{target} lies in the run's own folder", hint="name another place with -o")
    kind = compression(target)
    if kind is not None:
        if target.is_dir():
            raise RecipeError(f"{target} is a folder", hint="name a file or a folder that is not there yet")
        if kind not in tarfile.TarFile.OPEN_METH:
            raise RecipeError(f"{target}: this Python cannot write {kind}; 3.14 can", hint="name a .tar.gz")
        return
    if target.name.endswith((".zip", ".tar")) or ".tar." in target.name:
        raise RecipeError(f"{target}: no archive that is written here", hint=f"one of {', '.join(ARCHIVES)}")
    if not target.exists() and not target.is_symlink():
        return
    if target.is_symlink() or not target.is_dir():
        raise RecipeError(f"{target} is there and is no folder", hint="name another place with -o")
    if any(target.iterdir()) and _copy_of(target) != rundir.id:
        raise RecipeError(f"{target} is there and is no earlier copy of {rundir.id}", hint="name another place with -o")


def _copy_of(folder: Path) -> str | None:
    """Which run a folder holds a copy of; a run's own folder has a token and is none."""
    try:
        data: Any = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_copy = isinstance(data, dict) and data.get("copy") is True
    return str(data.get("run")) if is_copy else None


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A name beside ``target`` that becomes it at the end, or goes away."""
    stage = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        made = stage / "made"
        yield made
        if is_archive(target):
            made.replace(target)
            return
        old = stage / "old"
        if target.exists():
            target.rename(old)
        made.rename(target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _copy(rundir: RunDir, sink: "_Folder | _Archive", extra: Mapping[str, str]) -> list[Entry]:
    entries = []
    for path in files_of(rundir):
        name = name_of(rundir, path)
        try:
            with path.open("rb") as source:
                entries.append(sink.add(name, source, os.fstat(source.fileno())))
        except FileNotFoundError:
            continue
    there = {entry.path for entry in entries}
    now = rundir.root.stat()
    for name, text in extra.items():
        if name not in there:
            entries.append(sink.add(name, io.BytesIO(text.encode()), _with_size(now, len(text.encode()))))
    files = [{"path": entry.path, "bytes": entry.bytes, "sha256": entry.sha256} for entry in entries]
    manifest = {"schema": MANIFEST_SCHEMA, "run": rundir.id, "copy": True, "files": files}
    data = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    sink.add("manifest.json", io.BytesIO(data), _with_size(now, len(data)))
    return entries


def _with_size(status: os.stat_result, size: int) -> os.stat_result:
    fields = list(status)
    fields[0], fields[6] = 0o100644, size
    return os.stat_result(fields)


def _sink(stage: Path, target: Path, folder: str) -> "_Folder | _Archive":
    kind = compression(target)
    return _Folder(stage) if kind is None else _Archive(stage, folder, kind)


class _Counted:
    """A file that is hashed as it is read, and ends at the size it had when it was opened."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self._digest = hashlib.sha256()
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(chunk)
        self.bytes += len(chunk)
        self._digest.update(chunk)
        return chunk

    def entry(self, name: str) -> Entry:
        return Entry(name, self.bytes, self._digest.hexdigest())


class _Folder:
    """Copies into a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> "_Folder":
        self._root.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, name: str, source: IO[bytes], status: os.stat_result) -> Entry:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        counted = _Counted(source, status.st_size)
        with path.open("wb") as file:
            while chunk := counted.read(_CHUNK):
                file.write(chunk)
        os.utime(path, (status.st_mtime, status.st_mtime))
        return counted.entry(name)


class _Archive:
    """Copies into an archive with one folder in it; owners are not told."""

    def __init__(self, path: Path, folder: str, kind: str) -> None:
        self._path = path
        self._top = folder
        self._mode: Any = f"w:{kind}"

    def __enter__(self) -> "_Archive":
        # gzip's best level takes twice the time for 1 % less.
        level: dict[str, Any] = {"compresslevel": 6} if self._mode == "w:gz" else {}
        self._tar = tarfile.open(self._path, self._mode, **level)
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

    def add(self, name: str, source: IO[bytes], status: os.stat_result) -> Entry:
        info = tarfile.TarInfo(f"{self._top}/{name}")
        info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o644
        counted = _Counted(source, status.st_size)
        self._tar.addfile(info, counted)
        return counted.entry(name)
