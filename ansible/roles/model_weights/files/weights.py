"""What a node knows of one model: its manifest, and what there is of it.

The role passes the programs in this folder to ``python3 -`` with a call of ``main``, whose argument is a JSON document;
one JSON document is printed. Standard library alone. Nothing stays on the node but, in the model's folder:

MANIFEST.sha256        what the model is: as sha256sum writes it, and ``sha256sum -c`` reads it
.recipe-weights.json   the manifest's own sha256, and size and mtime of each file when it was last read whole
.recipe-incoming/      what has not been verified yet; gone when all is there
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

MANIFEST, MARKER, INCOMING = "MANIFEST.sha256", ".recipe-weights.json", ".recipe-incoming"
BLOCK = 8 << 20


class Refused(Exception):
    """What is said in place of a traceback."""


def hash_file(path: Path) -> str:
    """The sha256 of a file; it leaves the page cache again, which an engine would have to do without."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
        forget(file.fileno())
    return digest.hexdigest()


def forget(number: int) -> None:
    """Take an open file out of the page cache."""
    os.fsync(number)
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)


def hash_all(root: Path, names: list) -> dict:
    """File -> sha256, as many at a time as there are processors (at most eight)."""
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(lambda name: hash_file(root / name), names), strict=True))


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def list_files(root: Path) -> dict:
    """The model's files -> [size, mtime in ns]; links are followed, names that begin with a dot are left out."""
    found, broken = {}, []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(folder, name)
            if name.startswith(".") or path == root / MANIFEST:
                continue
            try:
                stat = path.stat()
            except OSError:
                broken.append(str(path))
                continue
            found[str(path.relative_to(root))] = [stat.st_size, stat.st_mtime_ns]
    if broken:
        raise Refused(f"links that lead nowhere: {', '.join(sorted(broken))}")
    return found


def read_manifest(text: str) -> dict:
    """File -> sha256. Raises Refused."""
    listed = {}
    for number, line in enumerate(text.splitlines(), 1):
        digest, _, name = line.partition("  ")
        parts = Path(name).parts
        if len(digest) != 64 or not name or Path(name).is_absolute() or ".." in parts:
            raise Refused(f"{MANIFEST}:{number}: not a line of sha256sum: {line!r}")
        listed[name] = digest
    if not listed:
        raise Refused(f"{MANIFEST} names no file")
    return listed


def read_marker(root: Path) -> dict:
    """What was verified when; empty where nothing was."""
    try:
        return json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def make_manifest(ask: dict) -> dict:
    """The manifest of the model on its first node: the one that is there, or a new one of all its files."""
    root, origin = Path(ask["path"]), ask["origin"]
    if not root.is_dir():
        raise Refused(f"{root} is not there: put the model there, or say where it is (source, repository)")
    if (root / INCOMING).exists() and not (root / MANIFEST).exists():
        raise Refused(
            f"{root} is a copy that was cut off: name a node that has all of it (source), or take it in by --limit"
        )
    marker = read_marker(root)
    if (root / MANIFEST).exists() and marker.get("origin", origin) == origin:
        text = (root / MANIFEST).read_text(encoding="utf-8")
        read_manifest(text)
        return {"changed": False, "text": text}
    files = list_files(root)
    if not files:
        raise Refused(f"{root} holds no file")
    if missing := sorted(needed(root, files) - set(files)):
        raise Refused(f"{root} lacks files that its index names: {', '.join(missing)}")
    if strange := [name for name in files if "\n" in name or "\\" in name]:
        raise Refused(f"names that a manifest cannot hold: {strange}")
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(hash_all(root, sorted(files)).items()))
    if not ask["dry"]:
        write(root / MANIFEST, text)
        write_marker(root, text, files, origin)
    return {"changed": True, "text": text}


def needed(root: Path, files: dict) -> set:
    """The shards that the model's indices name."""
    names: set = set()
    for index in (name for name in files if name.endswith(".index.json")):
        with contextlib.suppress(ValueError, AttributeError):
            shards = json.loads((root / index).read_text(encoding="utf-8")).get("weight_map", {}).values()
            names |= {str(Path(index).parent / shard) for shard in shards}
    return names


def write_marker(root: Path, text: str, files: dict, origin: str) -> None:
    """Remember that all files are as the manifest says."""
    marker = {"manifest": hashlib.sha256(text.encode()).hexdigest(), "origin": origin, "files": files}
    write(root / MARKER, json.dumps(marker, indent=1) + "\n")


def survey(ask: dict) -> dict:
    """What the node has of the model, what it lacks, and whether that has room.

    A file that has kept the size and mtime at which it was last read whole is taken to be as it was then, unless
    ``verify`` asks for every byte.
    """
    root, listed = Path(ask["path"]), read_manifest(ask["text"])
    if root.exists() and not root.is_dir():
        raise Refused(f"{root} is not a folder")
    try:
        files = list_files(root) if root.exists() else {}
    except Refused:
        files = list_some(root, listed)
    marker = read_marker(root)
    known = (
        marker.get("files", {}) if marker.get("manifest") == hashlib.sha256(ask["text"].encode()).hexdigest() else {}
    )
    doubtful = sorted(name for name in listed if name in files and (ask["verify"] or known.get(name) != files[name]))
    digests = hash_all(root, doubtful)
    broken = [name for name in doubtful if digests[name] != listed[name]]
    lacking = sorted(set(broken) | (set(listed) - set(files)))
    place = root
    while not place.exists():
        place = place.parent
    disk = os.statvfs(place)
    return {
        "have": {name: files[name][0] for name in listed if name not in lacking},
        "lacking": lacking,
        "broken": broken,
        "strange": sorted(set(files) - set(listed)),
        "arrived": sum(path.stat().st_size for path in (root / INCOMING).rglob("*") if path.is_file()),
        "free": disk.f_bavail * disk.f_frsize,
        "place": str(place),
        # One that was seen whole again is as good as one that is copied: the marker is to say so.
        "stale": bool(lacking) or any(known.get(name) != files[name] for name in listed),
    }


def list_some(root: Path, names: dict) -> dict:
    """Those of the files that can be looked at -> [size, mtime in ns]."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            stat = (root / name).stat()
            found[name] = [stat.st_size, stat.st_mtime_ns]
    return found


VERBS = {"manifest": make_manifest, "survey": survey}


def main(text: str, verbs: dict = VERBS) -> None:
    """Do what the document asks for and print what came of it; on stderr, with exit code 1, why it could not be."""
    ask = json.loads(text)
    try:
        print(json.dumps(verbs[ask["do"]](ask)))
    except (Refused, OSError) as error:
        sys.exit(str(error))
