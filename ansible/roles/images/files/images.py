"""What a node does with one image: look at it, pull it, save it, load it, import it for enroot.

The role passes this text to ``python3 -`` with a call of ``main`` after it, whose argument is a JSON document; one
JSON document is printed. Standard library alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

BLOCK = 8 << 20
# Of an image's configuration, what decides how it runs; both engines name it so.
RUNS_BY = ("Env", "Entrypoint", "Cmd", "WorkingDir", "User")


class Refused(Exception):
    """What is said in place of a traceback."""


def split(reference: str) -> tuple:
    """(repository, tag, digest) of a reference; a tag or digest that is not there is empty."""
    name, _, digest = reference.partition("@")
    found = re.fullmatch(r"(.+?)(?::([^/:]+))?", name)
    return found[1], found[2] or "", digest


def run(ask: dict, *argv: str) -> str:
    """What a command prints. Raises Refused with its last words."""
    if not shutil.which(argv[0]):
        raise Refused(f"no {argv[0]} on PATH: run the role container_toolkit, or install it")
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ask["timeout"], check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{' '.join(argv)}: not done after {ask['timeout']} s (images_timeout_s)") from error
    if done.returncode:
        raise Refused(f"{' '.join(argv)}: {' '.join((done.stderr or done.stdout).split())[-500:]}")
    return done.stdout


def inspect(ask: dict, name: str) -> dict | None:
    """What the engine knows of an image; None where it has none."""
    try:
        found = json.loads(run(ask, ask["runtime"], "image", "inspect", name))
    except Refused as error:
        if re.search(r"no such image|image not known|not found|unable to inspect", str(error), re.I):
            return None
        raise
    return found[0] if found else None


def identify(found: dict | None) -> dict:
    """By what two nodes' copies are compared: no id, which is the config's or the manifest's, as the store has it."""
    if found is None:
        return {}
    config = {key: (found.get("Config") or {}).get(key) or None for key in RUNS_BY}
    parts = {"layers": found["RootFS"].get("Layers") or [], "config": config}
    made = {key: hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12] for key, value in parts.items()}
    digests = sorted({text.partition("@")[2] for text in found.get("RepoDigests") or []})
    return {**made, "architecture": found["Architecture"], "digests": digests}


def differ(mine: dict, other: dict) -> str:
    """How one copy differs from another: by digest where both have one, else by layers."""
    if set(mine["digests"]) & set(other["digests"]):
        return ""
    for key in ("architecture", "layers", "config"):
        if mine[key] != other[key]:
            if mine["digests"] and other["digests"]:
                return f"is {', '.join(mine['digests'])}, not {', '.join(other['digests'])}"
            return f"has {key} {mine[key]}, not {other[key]}"
    return ""


def look(ask: dict) -> dict:
    """What there is of the image, what is wrong with it, and whether there is room for it."""
    if ask["runtime"] == "enroot":
        return look_squashfs(ask)
    repository, tag, digest = split(ask["reference"])
    pinned = inspect(ask, f"{repository}@{digest}") if digest else None
    tagged = inspect(ask, f"{repository}:{tag}") if tag else pinned
    like = ask.get("like")
    if like:
        found, wrong = tagged, differ(identify(tagged), like["identity"]) if tagged else "is not there"
    elif not digest:
        found, wrong = tagged, "" if tagged else "is not there"
    elif pinned and tagged and pinned["Id"] == tagged["Id"]:
        found, wrong = pinned, ""
    else:
        found, wrong = tagged, f"is {describe(identify(tagged))}, not {digest}" if tagged else "is not there"
    size = (like or {}).get("size") or ask["size"]
    place = Path(store(ask))
    return {
        "wrong": wrong,
        "identity": identify(found),
        "id": found["Id"] if found else "",
        "size": found["Size"] if found else 0,
        "space": space([(place, size), *([(Path(ask["spool"]), size)] if ask["handed"] else [])], ask["margin"]),
    }


def describe(identity: dict) -> str:
    """An image in a message."""
    return ", ".join(identity["digests"]) or f"layers {identity['layers']}"


def store(ask: dict) -> str:
    """The folder in which the engine keeps images."""
    field = {"docker": "{{.DockerRootDir}}", "podman": "{{.Store.GraphRoot}}"}[ask["runtime"]]
    return run(ask, ask["runtime"], "info", "--format", field).strip()


def space(needs: list, margin: int) -> str:
    """What there is no room for, by file system; empty where there is."""
    wanted, free, name = {}, {}, {}
    for place, size in needs:
        path = place
        while not path.exists():
            path = path.parent
        device = path.stat().st_dev
        wanted[device] = wanted.get(device, 0) + size
        free[device], name[device] = shutil.disk_usage(path).free, name.get(device, str(place))
    short = [
        f"{name[device]} has {free[device] / 1e9:.1f} GB free; {size / 1e9:.1f} GB are to come, and {margin / 1e9:g} GB"
        " are to be left"
        for device, size in wanted.items()
        if size + margin > free[device]
    ]
    return "; ".join(short)


def pull(ask: dict) -> dict:
    """Pull by digest, and let the tag name it."""
    repository, tag, digest = split(ask["reference"])
    run(ask, ask["runtime"], "pull", "--quiet", f"{repository}@{digest}")
    if tag:
        run(ask, ask["runtime"], "tag", f"{repository}@{digest}", f"{repository}:{tag}")
    forget(ask)
    return {"changed": True}


def forget(ask: dict) -> None:
    """Remove the image that the tag named before, if nothing else names or uses it."""
    repository, tag, _ = split(ask["reference"])
    now = inspect(ask, f"{repository}:{tag}") if tag else None
    if not ask["old"] or (now and now["Id"] == ask["old"]):
        return
    old = inspect(ask, ask["old"])
    if old and not [name for name in old.get("RepoTags") or [] if "<none>" not in name]:
        with contextlib.suppress(Refused):
            run(ask, ask["runtime"], "rmi", ask["old"])


def spool(ask: dict) -> Path:
    """Where an image lies while it is handed on."""
    return Path(ask["spool"], "spool")


def clean(ask: dict) -> dict:
    """Leave nothing of an image that was handed on, or was to be."""
    there = spool(ask).exists()
    shutil.rmtree(spool(ask), ignore_errors=True)
    with contextlib.suppress(OSError):
        Path(ask["spool"]).rmdir()
    return {"changed": there}


def save(ask: dict) -> dict:
    """Save the image; the file leaves the page cache again: an engine would have to do without it."""
    clean(ask)
    spool(ask).mkdir(parents=True, mode=0o700)
    repository, tag, _ = split(ask["reference"])
    path = spool(ask) / "image.tar"
    run(ask, ask["runtime"], "save", "--output", str(path), f"{repository}:{tag}")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"changed": True}


def load(ask: dict) -> dict:
    """Load the image that has come."""
    run(ask, ask["runtime"], "load", "--input", str(spool(ask) / "image.tar"))
    forget(ask)
    return {"changed": True}


def look_squashfs(ask: dict) -> dict:
    """What there is of enroot's file: whole if it is as large as it was written, and of the image that is wanted."""
    path = Path(ask["path"])
    beside, written = Path(f"{path}.sha256"), read_origin(path)
    wrong = ""
    if not path.exists() or not beside.exists():
        wrong = "is not there" if not path.exists() else "has no .sha256 beside it"
    elif written.get("reference") != ask["reference"]:
        wrong = f"is {written.get('reference', 'of an unknown image')}, not {ask['reference']}"
    elif written["size"] != path.stat().st_size:
        wrong = f"has {path.stat().st_size} bytes, not {written['size']}"
    return {"wrong": wrong, "space": space([(path, ask["size"])], ask["margin"])}


def origin(path: Path) -> Path:
    """Where it is written of which image a squashfs is."""
    return Path(f"{path}.image")


def read_origin(path: Path) -> dict:
    """Of which image the file is, and its size in bytes."""
    try:
        return json.loads(origin(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def sweep(ask: dict) -> dict:
    """Remove what a broken import has left."""
    part = Path(ask["path"]).with_name(f".{Path(ask['path']).name}.part")
    there = part.exists()
    part.unlink(missing_ok=True)
    return {"changed": there}


def enroot(ask: dict) -> dict:
    """Import the image as a squashfs, with its sha256 beside it; the manifest of the folder is made anew after that."""
    path = Path(ask["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(ask)
    part = path.with_name(f".{path.name}.part")
    repository, _, digest = split(ask["reference"])
    first, _, rest = repository.partition("/")
    # enroot takes what follows the colon for a tag, and asks the registry for it as it stands: a digest too.
    name = f"{first}#{rest}" if rest and (re.search(r"[.:]", first) or first == "localhost") else repository
    run(ask, "enroot", "import", "--output", str(part), f"docker://{name}:{digest}")
    made = hashlib.sha256()
    with part.open("rb") as file:
        while block := file.read(BLOCK):
            made.update(block)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    Path(path.parent, "MANIFEST.sha256").unlink(missing_ok=True)
    part.replace(path)
    Path(f"{path}.sha256").write_text(f"{made.hexdigest()}  {path.name}\n", encoding="utf-8")
    text = json.dumps({"reference": ask["reference"], "size": path.stat().st_size})
    origin(path).write_text(text + "\n", encoding="utf-8")
    return {"changed": True}


VERBS = {"look": look, "pull": pull, "save": save, "load": load, "clean": clean, "sweep": sweep, "enroot": enroot}


def main(text: str) -> None:
    """Do what the document asks for and print what came of it; on stderr, with exit code 1, why it could not be."""
    ask = json.loads(text)
    try:
        print(json.dumps(VERBS[ask["do"]](ask)))
    except (Refused, OSError) as error:
        sys.exit(str(error))
