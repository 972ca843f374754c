"""What tests of every kind share. Import it as ``from support import require``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

PARTS = ("slurm", "vllm", "aiperf", "podman", "docker", "ansible", "shells", "editor", "lm-eval", "browser")


def short_folder(name: str) -> Path:
    """A folder for sockets, whose path may have 107 bytes (podman's runroot: 50): pytest's own are longer."""
    return Path(tempfile.mkdtemp(prefix=f"{name[:8]}-", dir="/tmp"))


def required() -> frozenset[str]:
    """The parts that RECIPE_REQUIRE (such as ``slurm,vllm``) says must be here."""
    named = frozenset(part.strip() for part in os.environ.get("RECIPE_REQUIRE", "").split(",") if part.strip())
    if unknown := named - set(PARTS):
        raise pytest.UsageError(f"RECIPE_REQUIRE names {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return named


def require(part: str, present: bool, why: str) -> None:
    """Skip the test where ``part`` is not ``present``, or fail it where RECIPE_REQUIRE names the part."""
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; known: {', '.join(PARTS)}")
    if present:
        return
    if part in required():
        pytest.fail(f"RECIPE_REQUIRE names {part}, but {why}", pytrace=False)
    pytest.skip(why)
