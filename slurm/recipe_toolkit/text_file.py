"""A file that a person wrote: UTF-8 text of a bounded size, read without ever waiting for one."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path

from recipe_toolkit.errors import InputError, Problem

MAX_BYTES = 1 << 20

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
# UTF-32's begins with UTF-16's, so it comes first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def user_path(name: str | Path) -> Path:
    """The path with its ``~`` expanded; as it stands where there is no such user (`Path.expanduser` raises)."""
    return Path(os.path.expanduser(name))  # noqa: PTH111


def read_text(path: Path, file: str | None = None) -> str:
    """The text of a UTF-8 file of at most 1 MiB; ``file`` is how problems name it. Raises InputError."""
    name = file or str(path)
    try:
        raw = _bytes(path, name)
    except OSError as error:
        raise _refused(name, f"cannot be read: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:  # a NUL in the name
        raise _refused(name, f"not a file name: {error}") from error
    if len(raw) > MAX_BYTES:
        raise _refused(name, "larger than 1 MiB: not a recipe or profile")
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            raise InputError([Problem(name, 1, 1, "", f"is {encoding}, not UTF-8 text", "save it as UTF-8")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        place = (before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1)
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        raise InputError([Problem(name, *place, "", message, "save it as UTF-8")]) from error


def _bytes(path: Path, name: str) -> bytes:
    # Opening a pipe waits for its other end, and reading a terminal for a person.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        kind = next((kind for holds, kind in _KINDS if holds(mode)), None)
        if kind:
            raise _refused(name, f"is {kind}, not a file")
        with open(handle, "rb", closefd=False) as stream:  # of a folder: IsADirectoryError
            return stream.read(MAX_BYTES + 1)
    finally:
        os.close(handle)


def _refused(name: str, message: str) -> InputError:
    return InputError([Problem(name, 0, 0, "", message)])
