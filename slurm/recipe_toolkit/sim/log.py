"""Log lines in the shape of vLLM's, on stderr."""

from __future__ import annotations

import sys
import time

_who = ["APIServer"]


def say_who(name: str) -> None:
    """Set the name at the head of each line."""
    _who[0] = name


def log(text: str, level: str = "INFO") -> None:
    """Write one line."""
    print(f"({_who[0]}) {level} {time.strftime('%m-%d %H:%M:%S')} [sim] {text}", file=sys.stderr, flush=True)
