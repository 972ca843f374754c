"""What a node does with one model: list it, look at it, serve it to other nodes, fetch what it lacks.

The role passes this text to ``python3 -`` with a call of ``main`` after it, whose argument is a JSON document; one
JSON document is printed. Standard library alone. Nothing of it stays on the node but, in the model's folder:

MANIFEST.sha256        what the model is: as sha256sum writes it, and ``sha256sum -c`` reads it
.recipe-weights.json   the manifest's own sha256, and size and mtime of each file when it was last read whole
.recipe-incoming/      what has not been verified yet; gone when all is there
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

MANIFEST, MARKER, INCOMING = "MANIFEST.sha256", ".recipe-weights.json", ".recipe-incoming"
BLOCK = 8 << 20
RUN = Path("/run/recipe-weights")
ABSENT = "No such file or directory"


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
        raise Refused(f"{root} is not there: put the model there, or say from which repository it comes")
    marker = read_marker(root)
    if (root / MANIFEST).exists() and marker.get("origin", origin) == origin:
        text = (root / MANIFEST).read_text(encoding="utf-8")
        read_manifest(text)
        return {"changed": False, "text": text}
    files = list_files(root)
    if not files:
        raise Refused(f"{root} holds no file")
    if strange := [name for name in files if "\n" in name or "\\" in name]:
        raise Refused(f"names that a manifest cannot hold: {strange}")
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(hash_all(root, sorted(files)).items()))
    if not ask["dry"]:
        write(root / MANIFEST, text)
        write_marker(root, text, files, origin)
    return {"changed": True, "text": text}


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


def serve(ask: dict) -> dict:
    """Start an rsync daemon on each lane: reading only, for those who know the secret, for a limited time."""
    stop(ask)
    Path(ask["path"]).mkdir(parents=True, exist_ok=True)
    RUN.mkdir(mode=0o700, exist_ok=True)
    for name, text in {"users": f"recipe:{ask['secret']}\n", "secret": ask["secret"]}.items():
        (RUN / name).touch(mode=0o600)
        (RUN / name).write_text(text)
    lines = ["use chroot = no", "uid = root", "gid = root", "read only = yes", "list = no", "reverse lookup = no"]
    lines += ["[model]", f"path = {ask['path']}", "auth users = recipe", f"secrets file = {RUN / 'users'}"]
    (RUN / "rsyncd.conf").write_text("\n".join(lines) + "\n")
    for address in ask["addresses"]:
        argv = ["timeout", str(ask["timeout"]), "rsync", "--daemon", "--no-detach", f"--config={RUN / 'rsyncd.conf'}"]
        argv += [f"--address={address}", f"--port={ask['port']}", f"--log-file={RUN / 'log'}"]
        with (RUN / f"{address}.err").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        (RUN / f"{address}.pid").write_text(str(process.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
            told = (RUN / f"{address}.err").read_text() + ((RUN / "log").read_text() if (RUN / "log").exists() else "")
            raise Refused(f"the rsync daemon on {address}:{ask['port']} ended: {told.strip()[-500:]}")
    return {"changed": False}


def stop(ask: dict) -> dict:
    """End the daemons, and what is left of an earlier copy; remove the secret."""
    for file in RUN.glob("*.pid"):
        with contextlib.suppress(OSError, ValueError):
            number = int(file.read_text())
            words = Path(f"/proc/{number}/cmdline").read_bytes()
            if b"rsync" in words or b"python3" in words:
                os.killpg(number, signal.SIGTERM)
    for file in RUN.glob("*"):
        file.unlink()
    with contextlib.suppress(OSError):
        RUN.rmdir()
    root = Path(ask["path"])
    if root.is_dir():
        for name in list_some(root, read_manifest(ask["text"])):
            with (root / name).open("rb") as file:
                forget(file.fileno())
    return {"changed": False}


class Fetch:
    """The copying of what a node lacks, over all its links at once.

    Every file is verified before it takes its name, and only then can others copy it from here.
    """

    def __init__(self, ask: dict) -> None:
        self.ask = ask
        self.root = Path(ask["path"])
        self.incoming = self.root / INCOMING
        self.listed = read_manifest(ask["text"])
        self.ended = time.monotonic() + ask["timeout"]
        self.failed = threading.Event()
        self.verifier = concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1))

    def all(self) -> dict:
        """Fetch every file of the plan. Raises Refused with the first thing that went wrong."""
        began = time.time()
        self.incoming.mkdir(exist_ok=True)
        rows = [row for row in self.ask["plan"] if row]
        with concurrent.futures.ThreadPoolExecutor(max(1, len(rows))) as pool:
            waits = [pool.submit(self.row, row) for row in rows]
            done = concurrent.futures.wait(waits, return_when=concurrent.futures.FIRST_EXCEPTION).done
            if any(wait.exception() for wait in done):
                self.failed.set()
        errors = [wait.exception() for wait in waits if wait.exception()]
        if errors:
            raise next((error for error in errors if str(error) != "stopped"), errors[0])
        for folder, _, _ in os.walk(self.incoming, topdown=False):
            Path(folder).rmdir()
        sizes = [(self.root / name).stat().st_size for row in rows for name, _, _ in row]
        return {"files": len(sizes), "bytes": sum(sizes), "began": began, "ended": time.time()}

    def row(self, row: list) -> None:
        """Fetch the files of one link in order; each is verified while the next is copied."""
        checks = [
            self.verifier.submit(self.verify, *job) for job in row if not self.failed.is_set() and self.copy(*job)
        ]
        for check in checks:
            check.result()

    def copy(self, name: str, sender: str, address: str) -> bool:
        """Copy one file, as soon as its sender has it; an earlier beginning of it is gone on from."""
        target = self.incoming / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = f"rsync://recipe@{address}:{self.ask['port']}/model/{name}"
        argv = ["rsync", "--times", "--copy-links", "--chmod=F644", "--inplace", "--append", "--timeout=60"]
        argv += [f"--password-file={RUN / 'secret'}", "--", source, str(target)]
        patience, pause = time.monotonic() + self.ask["stall"], 0.05
        while True:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return True
            last = " ".join(done.stderr.split())[-400:]
            if "No space left" in last:
                raise Refused(f"{target}: no space left on the device")
            if self.failed.is_set():
                raise Refused("stopped")
            if ABSENT not in last:
                pause = max(pause, 1.0)
            if time.monotonic() > min(patience, self.ended):
                raise Refused(f"waited {self.ask['stall']} s for {name} from {sender} ({address}): {last}")
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0 if ABSENT not in last else 0.2)

    def verify(self, name: str, sender: str, address: str) -> None:
        """Let a file take its name if it is what the manifest says; else copy it once more from its beginning."""
        target = self.incoming / name
        for attempt in range(2):
            if hash_file(target) == self.listed[name]:
                place = self.root / name
                place.parent.mkdir(parents=True, exist_ok=True)
                target.replace(place)
                return
            target.unlink()
            if attempt == 0:
                self.copy(name, sender, address)
        self.failed.set()
        raise Refused(f"{name}: what {sender} ({address}) sends is not what the manifest says, twice")


def fetch(ask: dict) -> dict:
    """Fetch what the plan says, and write down that all is there."""
    root, text = Path(ask["path"]), ask["text"]
    jobs = sum(map(len, ask["plan"]))
    if ask["dry"]:
        return {"changed": bool(jobs) or ask["stale"], "files": jobs}
    told = {"files": 0, "bytes": 0}
    if jobs:
        with (root / f".{MANIFEST}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Refused(f"{root}: another copy is under way here") from error
            (RUN / "fetch.pid").write_text(str(os.getpgid(0)))
            told = Fetch(ask).all()
        (root / f".{MANIFEST}.lock").unlink()
    files = list_some(root, read_manifest(text))
    write(root / MANIFEST, text)
    write_marker(root, text, files, ask["origin"])
    return {"changed": bool(jobs) or ask["stale"], **told}


VERBS = {"manifest": make_manifest, "survey": survey, "serve": serve, "fetch": fetch, "stop": stop}


def main(text: str) -> None:
    """Do what the document asks for and print what came of it; on stderr, with exit code 1, why it could not be."""
    ask = json.loads(text)
    try:
        print(json.dumps(VERBS[ask["do"]](ask)))
    except (Refused, OSError) as error:
        sys.exit(str(error))
