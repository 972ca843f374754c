"""One container image on one node: looked for, fetched under a lock if it is missing, and identified.

Fetching writes to a temporary name beside the image's and renames, so that a file that is there is
whole. The lock is a file's (flock): beside the image where that is a file, so that hosts that share the
folder wait for each other as far as their file system has locks; else in /tmp, for this host and user.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from recipe_toolkit.errors import DeadlineError, RunError
from recipe_toolkit.run import environment, logs, process, procfs

FLOOR_BYTES = 4 * 1024**3  # less free than this, and no engine's image fits
_COMMAND_S = 60.0
_POLL_S = 0.5
_SAY_S = 10.0  # progress is told so often at first, and ever more rarely, up to
_SAY_MOST_S = 60.0
_ENDS_BYTES = 1024 * 1024
_STOP_S = 10.0

T = TypeVar("T")

log = logging.getLogger("recipe_toolkit.run")


@dataclass(frozen=True)
class Order:
    """What the lead asks for: the plan's Image with its references resolved.

    ``part``: the temporary file for ``fetch``. ``env``: that of a program that needs the image.
    ``deadline``, ``stall``: seconds.
    """

    reference: str
    file: str | None
    part: str | None
    present: Sequence[str]
    fetch: Sequence[str]
    identify: Sequence[str]
    store: Sequence[str]
    remedy: str
    env: Mapping[str, str]
    deadline: float
    stall: float


class Fetcher:
    """Serves one order.

    ``say`` is told of what takes long: an event's name and fields. ``started`` is told of the program
    that fetches. ``shown``: what messages call the log.
    """

    def __init__(
        self,
        order: Order,
        log_file: Path,
        say: Callable[..., None],
        started: Callable[[process.Child], None],
        shown: str = "",
    ) -> None:
        self._order = order
        self._log = log_file
        self._shown = shown or str(log_file)
        self._say = say
        self._started = started
        self._limit = time.monotonic() + order.deadline
        self._child: process.Child | None = None

    async def run(self) -> tuple[bool, str | None]:
        """Whether the image is there, fetched if the order says how; and what identifies it, if anything does.

        Raises RunError, DeadlineError.
        """
        if not await self._is_there():
            if not self._order.fetch:
                return False, None
            self._make_folder()
            async with self._locked():
                # Another run, or another node on this host, may have got it meanwhile.
                if not await self._is_there():
                    await self._get()
        return True, await self._identity()

    async def _is_there(self) -> bool:
        if self._order.file is not None:
            return await _in_thread(_is_file, Path(self._order.file))
        code, _ = await self._command(self._order.present)
        return code == 0

    def _make_folder(self) -> None:
        if self._order.file is None:
            return
        folder = Path(self._order.file).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"image {self._order.reference}: {folder} cannot be made: {error.strerror}") from error

    async def _command(self, argv: Sequence[str]) -> tuple[int, str]:
        """Exit code and output of a short command. Raises RunError if it cannot be executed or takes too long."""
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(self._order.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise RunError(f"image {self._order.reference}: cannot execute {argv[0]}: {error.strerror}") from error
        try:
            out, err = await asyncio.wait_for(child.communicate(), _COMMAND_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            if isinstance(error, asyncio.TimeoutError):
                message = f"image {self._order.reference}: no answer within {_COMMAND_S:g} s from {' '.join(argv)}"
                raise DeadlineError(message) from None
            raise
        code = await child.wait()
        if code:
            log.info("%s ended with %d: %s", " ".join(argv), code, err.decode("utf-8", "replace").strip()[-400:])
        return code, out.decode("utf-8", "replace").strip()

    # --- the lock

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        descriptor = await self._open_lock()
        try:
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    async def _open_lock(self) -> int | None:
        """The descriptor that holds the lock; None where the file system has no locks."""
        tries = 0
        for path in self._lock_paths():
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                log.info("no lock %s: %s", path, error.strerror)
                continue
            try:
                while not _lock(descriptor):
                    if time.monotonic() > self._limit:
                        raise DeadlineError(
                            f"image {self._order.reference}: waited {self._order.deadline:g} s for another that "
                            f"fetches it and holds {path}: {_holder(descriptor)}",
                            hint="raise deadlines.images, or end that run",
                        )
                    tries += 1
                    if tries == 2:  # by then the holder has written its name
                        self._say("image_waits", lock=str(path), holder=_holder(descriptor))
                    await asyncio.sleep(_POLL_S)
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"pid {os.getpid()} on {environment.hostname()}\n".encode(), 0)
                return descriptor
            except OSError as error:
                os.close(descriptor)
                log.info("no lock %s: %s", path, error.strerror)
            except BaseException:
                os.close(descriptor)
                raise
        return None

    def _lock_paths(self) -> list[Path]:
        words = [self._order.file] if self._order.file else [self._order.reference, *self._order.fetch]
        name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
        shared = Path(f"/tmp/.recipe-toolkit-{os.getuid()}-{name}.lock")
        if self._order.file is None:
            return [shared]
        file = Path(self._order.file)
        return [file.with_name(f".{file.name}.lock"), shared]

    # --- fetching

    async def _get(self) -> None:
        where = await self._where()
        self._remove_parts()
        free = _free(where)
        if where is not None and free is not None and free < FLOOR_BYTES:
            raise RunError(
                f"image {self._order.reference}: {_size(free)} are free in {where}, and an image takes more than "
                f"{_size(FLOOR_BYTES)}",
                hint="make room there, or let the profile keep images elsewhere",
            )
        self._say("image_fetching", free_bytes=free, folder=str(where) if where else None)
        try:
            await self._fetch()
        except RunError as error:
            left = _free(where)
            room = f"\n{_size(left)} are free in {where}" if left is not None else ""
            raise type(error)(f"{error.message}{room}", hint=error.hint) from error
        finally:
            self._remove_parts()
        self._say("image_fetched")

    async def _where(self) -> Path | None:
        """The folder that the image will fill; None where nobody knows."""
        if self._order.file is not None:
            return Path(self._order.file).parent
        if not self._order.store:
            return None
        code, out = await self._command(self._order.store)
        return Path(out) if code == 0 and out.startswith("/") else None

    def _remove_parts(self) -> None:
        """Temporary files of this host, of fetches that were killed: whoever wrote them held the lock.

        But another user may hold another lock, where this one's file could not be opened: theirs stay.
        """
        if self._order.file is None or self._order.part is None:
            return
        part, file = Path(self._order.part), Path(self._order.file)
        mine = f".{file.name}.{environment.hostname()}."
        for path in file.parent.glob(".*.part"):
            if path == part or path.name.startswith(mine):
                with contextlib.suppress(OSError):
                    if path.lstat().st_uid == os.getuid():
                        path.unlink()
                        log.info("removed %s", path)

    async def _fetch(self) -> None:
        order = self._order
        spec = process.Spec(order.reference, order.fetch, order.env, self._log, self._log.parent)
        log.info("fetching image %s: %s", order.reference, " ".join(order.fetch))
        child = self._child = process.start(spec)
        self._started(child)
        try:
            await child.started()
            await self._watch(child)
        finally:
            if not child.gone.done():
                child.stop(_STOP_S)
                await asyncio.wait({child.gone}, timeout=2 * _STOP_S)
        code = child.exited.result()
        if code != 0:
            raise self._failure(f"was not fetched: {order.fetch[0]} ended with {code}")
        if order.file is not None and order.part is not None:
            try:
                await _in_thread(_settle, Path(order.part), Path(order.file))
            except OSError as error:
                raise self._failure(f"was fetched, but {order.part} cannot be renamed: {error.strerror}") from error
        if not await self._is_there():
            raise self._failure("was fetched, and is still not here")

    async def _watch(self, child: process.Child) -> None:
        """Until the command ends. Raises RunError when nothing grows or moves for the stall time, DeadlineError."""
        began = moved = time.monotonic()
        said, pause = began, _SAY_S
        seen: tuple[int, ...] = ()
        while True:
            done, _ = await asyncio.wait({child.exited}, timeout=_POLL_S)
            if done:
                return
            now, signs = time.monotonic(), await _in_thread(self._signs, child)
            if signs != seen:
                seen, moved = signs, now
            elif now - moved > self._order.stall:
                raise self._failure(f"shows no sign of life for {now - moved:.0f} s while it is fetched")
            if now > self._limit:
                raise DeadlineError(
                    self._failure(f"was not fetched within {self._order.deadline:g} s").message,
                    hint="raise deadlines.images if it was still coming",
                )
            if now - said > pause:
                said, pause = now, min(_SAY_MOST_S, pause * 1.5)
                last = logs.last_lines(child.tail(), 1)
                fields = {"seconds": round(now - began), "bytes": signs[0] or None, "last": last[0] if last else None}
                log.info("fetching image %s: %s", self._order.reference, fields)
                self._say("image_progress", **fields)

    def _signs(self, child: process.Child) -> tuple[int, ...]:
        moved = procfs.activity(child.pids(procfs.table()))
        return self._part_size(), child.log_size(), moved.ticks, moved.bytes

    def _part_size(self) -> int:
        try:
            return Path(self._order.part).stat().st_size if self._order.part else 0
        except OSError:
            return 0

    def _failure(self, what: str) -> RunError:
        text = self._child.tail() if self._child is not None else ""
        cause, lines = logs.cause(text), logs.last_lines(text)
        story = [f"image {self._order.reference} {what}" + (f": {cause}" if cause else ""), f"log: {self._shown}"]
        if lines:
            story += ["last lines:", *(f"  {line}" for line in lines)]
        return RunError("\n".join(story), hint=self._order.remedy or None)

    # --- what it is

    async def _identity(self) -> str | None:
        if self._order.identify:
            code, out = await self._command(self._order.identify)
            return out.splitlines()[0] if code == 0 and out else None
        if self._order.file is None:
            return None
        try:
            return await _in_thread(fingerprint, Path(self._order.file))
        except OSError as error:
            raise RunError(f"image {self._order.reference}: {self._order.file}: {error.strerror}") from error


def fingerprint(path: Path) -> str:
    """SHA-256 of a file's size, first and last MiB: a SquashFS has its time and tables there. Raises OSError.

    The whole of 20 GB would take a minute on every node.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(str(size).encode())
        for start in (0, max(0, size - _ENDS_BYTES)):
            file.seek(start)
            digest.update(file.read(_ENDS_BYTES))
    return f"ends-sha256:{digest.hexdigest()}"


def _is_file(path: Path) -> bool:
    # Reading the folder makes an NFS client forget that the file was not there a moment ago.
    with contextlib.suppress(OSError):
        os.listdir(path.parent)  # noqa: PTH208
    return path.is_file()


def _settle(part: Path, file: Path) -> None:
    """Give the file its name, once all of it is on the disk."""
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(file)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "unknown"


def _free(folder: Path | None) -> int | None:
    try:
        return shutil.disk_usage(folder).free if folder is not None else None
    except OSError:
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


async def _in_thread(function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
