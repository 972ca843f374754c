"""How a model goes from node to node: each serves it on its lanes, and fetches what it lacks.

The server speaks HTTP, to those who know the copy's secret. It hands on what is still coming in, so that a chain of
nodes takes the time of one copy; every node verifies each file for itself before the file takes its name.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import hmac
import http.client
import http.server
import os
import signal
import socket
import threading
import time
import urllib.parse
from pathlib import Path
from typing import BinaryIO

import weights
from weights import BLOCK, INCOMING, MANIFEST, Refused, forget, hash_file, list_some, read_manifest, write, write_marker

RUN = Path("/run/recipe-weights")
PAUSE = 0.02  # seconds between two looks at a file that grows


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers ``GET /FILE`` with ``Range: bytes=N-``: what there is of the file, and what comes, as it comes.

    A file that is being fetched is handed on before it is whole and verified; whoever receives it verifies it anyway.
    503: nothing of it is there yet; the body is a number that changes while the fetching goes on. 410: the fetching
    has ended without it.
    """

    protocol_version = "HTTP/1.1"
    busy = time.monotonic()
    state: dict = {}  # path, secret, listed, have, spoilt: file -> inode of what is there and not as it should be

    def do_GET(self) -> None:
        """Send one file from an offset to its end."""
        Handler.busy = time.monotonic()
        name, start = urllib.parse.unquote(self.path[1:]), int(self.headers.get("Range", "bytes=0-")[6:-1])
        size, whole = int(self.headers.get("X-Size", 0)), self.headers.get("X-Whole") == "1"
        signed = sign(self.state["secret"], name, start, size, whole)
        if name not in self.state["listed"] or not hmac.compare_digest(signed, self.headers.get("Authorization", "")):
            return self.say(403, "not yours")
        file = self.find(name, whole)
        if file is None:
            return self.say(410, "failed") if (RUN / "failed").exists() else self.say(503, str(self.moved()))
        with file:
            self.send_response(206)
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            self.close_connection = not self.send(file, start, size)
            if name in self.state["have"]:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def find(self, name: str, whole: bool) -> BinaryIO | None:
        """The file, or what has come of it."""
        root = self.state["path"]
        for place in [root / name] if whole or name in self.state["have"] else [root / INCOMING / name, root / name]:
            with contextlib.suppress(OSError):
                file = place.open("rb")
                if os.fstat(file.fileno()).st_ino != self.state["spoilt"].get(name):
                    return file
                file.close()
        return None

    def moved(self) -> int:
        """A number that changes while files come in."""
        return sum(size for size, _ in list_some(self.state["path"] / INCOMING, self.state["listed"]).values())

    def send(self, file: BinaryIO, start: int, size: int) -> bool:
        """Send the file while it grows; whether all of it could be sent."""
        still = time.monotonic()
        while start < size:
            sent = self.connection.sendfile(file, start, min(BLOCK, size - start))
            start += sent
            if sent:
                still = Handler.busy = time.monotonic()
            elif (
                os.fstat(file.fileno()).st_nlink == 0  # it was not as it should be, and is fetched anew
                or (RUN / "failed").exists()
                or time.monotonic() > still + self.state["stall"]
            ):
                return False
            else:
                time.sleep(PAUSE)
        return True

    def say(self, code: int, text: str) -> None:
        """Answer without a file."""
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: object) -> None:
        """Keep quiet: nobody reads it."""


def sign(secret: str, name: str, start: int, size: int, whole: bool) -> str:
    """What shows that a request comes from a node of this copy; the secret itself is not sent."""
    return hmac.new(secret.encode(), f"{name}\n{start}\n{size}\n{whole}".encode(), "sha256").hexdigest()


def serve(ask: dict) -> dict:
    """Serve what the node has, and what it is fetching, on each lane: for those who know the secret, for a time."""
    stop(ask)
    root, listed = Path(ask["path"]), read_manifest(ask["text"])
    root.mkdir(parents=True, exist_ok=True)
    RUN.mkdir(mode=0o700, exist_ok=True)
    have = set(ask["have"])
    spoilt = {name: (root / name).stat().st_ino for name in list_some(root, listed) if name not in have}
    Handler.state = {**ask, "path": root, "listed": listed, "have": have, "spoilt": spoilt}
    servers = []
    for address in ask["addresses"]:
        try:
            servers.append(http.server.ThreadingHTTPServer((address, ask["port"]), Handler))
        except OSError as error:
            raise Refused(f"cannot listen on {address}:{ask['port']}: {error}") from error
    number = os.fork()
    if number == 0:
        os.setsid()
        for stream in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        for server in servers:
            threading.Thread(target=server.serve_forever).start()
        ended = time.monotonic() + ask["timeout"]
        while time.monotonic() < min(ended, Handler.busy + ask["stall"]):  # nobody may be left to end it
            time.sleep(0.5)
        clean()
        os._exit(0)
    (RUN / "serve.pid").write_text(str(number))
    return {"changed": False}


def stop(ask: dict) -> dict:
    """End the server, and what is left of an earlier copy."""
    for file in RUN.glob("*.pid"):
        with contextlib.suppress(OSError, ValueError):
            number = int(file.read_text())
            if b"python3" in Path(f"/proc/{number}/cmdline").read_bytes():
                os.killpg(os.getpgid(number), signal.SIGTERM)
                wait_gone(number)
    clean()
    root = Path(ask["path"])
    if root.is_dir():
        for name in list_some(root, read_manifest(ask["text"])):
            with (root / name).open("rb") as file:
                forget(file.fileno())
    return {"changed": False}


def clean() -> None:
    """Remove what tells of a copy."""
    for file in RUN.glob("*"):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        RUN.rmdir()


def wait_gone(number: int) -> None:
    """Wait until a process is gone, at most five seconds: its port is free then."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{number}/fd/0").is_symlink() and time.monotonic() < deadline:
        time.sleep(0.02)


class Fetch:
    """The copying of what a node lacks, over all its links at once.

    ``plan``: a list for each link, of [file, bytes, [[sender, address], ...]]: whom to ask first, and then.
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
                self.fail()
        errors = [wait.exception() for wait in waits if wait.exception()]
        if errors:
            raise next((error for error in errors if str(error) != "stopped"), errors[0])
        for folder, _, _ in os.walk(self.incoming, topdown=False):
            Path(folder).rmdir()
        files = [size for row in rows for _, size, _ in row]
        return {"files": len(files), "bytes": sum(files), "began": began, "ended": time.time()}

    def fail(self) -> None:
        """Stop the other links, and let this node's server tell who waits for it; it may have ended by itself."""
        self.failed.set()
        with contextlib.suppress(FileNotFoundError):
            (RUN / "failed").touch()

    def row(self, row: list) -> None:
        """Fetch the files of one link in order; each is verified while the next is copied."""
        with contextlib.closing(Line(self.ask)) as line:
            checks = []
            for job in row:
                self.copy(line, job)
                checks.append(self.verifier.submit(self.verify, job))
        for check in checks:
            check.result()

    def copy(self, line: Line, job: list, whole: bool = False) -> None:
        """Copy one file; an earlier beginning of it is gone on from. Raises Refused."""
        name, size, senders = job
        target = self.incoming / name
        target.parent.mkdir(parents=True, exist_ok=True)
        patience, seen, turn = time.monotonic() + self.ask["stall"], None, 0
        with target.open("ab", buffering=0) as file:
            if file.tell() > size:
                file.truncate(0)
            while file.tell() < size:
                sender, address = senders[turn % len(senders)]
                before, last, moved = file.tell(), "", None
                try:
                    code, told = line.get(address, name, file, size, whole)
                    last, moved = f"{code} {told}", told if code == 503 else None
                except (OSError, http.client.HTTPException) as error:
                    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                        raise Refused(f"{target}: no space left on the device") from error
                    last = str(error) or type(error).__name__
                if self.failed.is_set():
                    raise Refused("stopped")
                if file.tell() > before or moved not in (None, seen):
                    patience, seen = time.monotonic() + self.ask["stall"], moved
                if file.tell() < size:
                    if time.monotonic() > min(patience, self.ended):
                        waited = f"waited {self.ask['stall']} s for {name} from {sender} ({address})"
                        raise Refused(f"{waited}: {'it has nothing of it yet' if moved is not None else last}")
                    turn += moved is None
                    time.sleep(PAUSE if moved is not None else min(1.0, self.ask["stall"] / 4))

    def verify(self, job: list) -> None:
        """Let a file take its name if it is what the manifest says; else copy it once more from its beginning."""
        name, _, senders = job
        target = self.incoming / name
        for attempt in range(2):
            if hash_file(target) == self.listed[name]:
                place = self.root / name
                place.parent.mkdir(parents=True, exist_ok=True)
                target.chmod(0o644)
                target.replace(place)
                return
            target.unlink()
            if attempt == 0:
                with contextlib.closing(Line(self.ask)) as line:
                    self.copy(line, job, whole=True)
        self.fail()
        sender = " or ".join(f"{sender} ({address})" for sender, address in senders)
        raise Refused(f"{name}: what {sender} sends is not what the manifest says, twice")


class Line:
    """One connection at a time, kept from file to file while the sender is the same."""

    def __init__(self, ask: dict) -> None:
        self.ask = ask
        self.address = ""
        self.connection: http.client.HTTPConnection | None = None

    def get(self, address: str, name: str, file: BinaryIO, size: int, whole: bool) -> tuple:
        """Append what is missing of ``file``: (206, "") or the sender's reason. Raises OSError, HTTPException."""
        if self.connection is None or self.address != address:
            self.close()
            connection = http.client.HTTPConnection(address, self.ask["port"], timeout=min(10, self.ask["stall"]))
            connection.connect()
            self.connection, self.address = connection, address
            line = connection.sock
            line.settimeout(self.ask["stall"])
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
                line.setsockopt(socket.IPPROTO_TCP, option, value)
        try:
            return self.receive(name, file, size, whole)
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def receive(self, name: str, file: BinaryIO, size: int, whole: bool) -> tuple:
        """Ask, and write what comes as it comes: others may be reading it already."""
        assert self.connection
        start = file.tell()
        signed = sign(self.ask["secret"], name, start, size, whole)
        headers = {"Range": f"bytes={start}-", "X-Size": size, "X-Whole": int(whole), "Authorization": signed}
        self.connection.request("GET", "/" + urllib.parse.quote(name), headers=headers)
        answer = self.connection.getresponse()
        if answer.status != 206:
            return answer.status, answer.read().decode()
        while start < size:
            data = answer.read1(1 << 20)  # what is there now, not as much as that
            if not data:
                raise http.client.HTTPException("the connection was closed in the middle")
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            start += len(data)
        answer.read()
        return 206, ""

    def close(self) -> None:
        """Hang up."""
        if self.connection:
            self.connection.close()
        self.connection = None


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
            (RUN / "fetch.pid").write_text(str(os.getpid()))
            try:
                told = Fetch(ask).all()
            finally:
                (RUN / "fetch.pid").unlink(missing_ok=True)
        (root / f".{MANIFEST}.lock").unlink()
    files = list_some(root, read_manifest(text))
    write(root / MANIFEST, text)
    write_marker(root, text, files, ask["origin"])
    return {"changed": bool(jobs) or ask["stale"], **told}


def main(text: str) -> None:
    """As ``weights.main``, for what is done with other nodes."""
    weights.main(text, {"serve": serve, "fetch": fetch, "stop": stop})
