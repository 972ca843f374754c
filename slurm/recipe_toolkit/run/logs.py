"""The end of a log, and the line in it that says what went wrong."""

from __future__ import annotations

import re
from pathlib import Path

_TAIL_BYTES = 256 * 1024
_LINES = 15
_WIDTH = 400

# The first pattern that any line matches wins; of several lines, the first: what follows is
# mostly its consequence (vLLM prints its own traceback after the one of the engine core).
_CAUSES = tuple(
    re.compile(text, re.IGNORECASE)
    for text in (
        r"^setup: \S+ failed with exit code",  # a step of the recipe: submit/setup.sh
        r"address already in use",
        r"out ?of ?memory|cannot allocate memory",
        r"no space left on device",
        r"cuda error|nccl error|ncclsystemerror|xid",
        r"illegal instruction|segmentation fault|core dumped",
        r"modulenotfounderror|no module named|importerror",
        r"unrecognized arguments|: error: |invalid choice",
        r"permission denied|no such file or directory|file ?not ?found|command not found",
        r"^\W*(\(\S.*?\)\s*)?(\S+\s+)*?[\w.]*(error|exception): ",
        r"\b(error|fatal|critical)\b",
    )
)
# vllm-router colours its log wherever that goes, vLLM where VLLM_LOGGING_COLOR asks for it.
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ADDRESS_IN_USE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)


def tail(path: Path, since: int = 0) -> str:
    """The end of the log as text without colours, of what came after byte ``since``; empty if there is no such file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(since, end - _TAIL_BYTES))
            return _COLOUR.sub("", file.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def last_lines(text: str, count: int = _LINES) -> list[str]:
    """The last lines that say anything, each cut to 400 characters."""
    lines = [line.rstrip()[:_WIDTH] for line in text.splitlines()]
    return [line for line in lines if line.strip()][-count:]


def cause(text: str) -> str | None:
    """The line that most likely names the root cause, or None if no line looks like one."""
    lines = [line.strip()[:_WIDTH] for line in text.splitlines()]
    for pattern in _CAUSES:
        for line in lines:
            if pattern.search(line):
                return line
    return None


def port_taken(text: str) -> bool:
    """Whether the log says that a port was in use."""
    return _ADDRESS_IN_USE.search(text) is not None
