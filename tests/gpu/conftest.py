"""Real GPUs: the shipped shapes, vLLM as it is, and the drivers' own word on memory.

RECIPE_GPU_BIN: folder with ``vllm``, ``vllm-router`` and ``aiperf`` (default: PATH). RECIPE_GPU_RESULTS: a file that
what is measured is added to, a JSON object a line. RECIPE_GPU_KEEP: a folder that each run is copied to. With
pytest-xdist each worker has the card of its number.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpukit import Cards, visible_cards

PROGRAMS = ("vllm", "vllm-router", "aiperf")


def _cards(count: int) -> Cards:
    found = visible_cards()
    if len(found) < count:
        pytest.skip(f"{len(found)} NVIDIA GPUs, and {count} are needed")
    for program in PROGRAMS:
        if program_path(program) is None:
            pytest.fail(f"there is a GPU, but no {program}: set RECIPE_GPU_BIN", pytrace=False)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    first = int(worker.removeprefix("gw")) % len(found) if count == 1 else 0
    return Cards(tuple(found[first : first + count]), {name: str(program_path(name)) for name in PROGRAMS})


def program_path(name: str) -> str | None:
    """Where a program is."""
    folder = os.environ.get("RECIPE_GPU_BIN")
    return shutil.which(name, path=folder) if folder else shutil.which(name)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shapes of models are."""
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture
def card(tmp_path: Path, shapes: Path) -> Iterator[Cards]:
    """One card, with nothing in its memory before and after."""
    yield from _clean(_cards(1), tmp_path, shapes)


@pytest.fixture
def pair(tmp_path: Path, shapes: Path) -> Iterator[Cards]:
    """Two cards of one host."""
    yield from _clean(_cards(2), tmp_path, shapes)


def _clean(cards: Cards, folder: Path, shapes: Path) -> Iterator[Cards]:
    cards.prepare(folder, shapes)
    yield cards
    cards.stop_all()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Adds a row to RECIPE_GPU_RESULTS, and prints it."""

    def add(what: str, **figures: Any) -> None:
        row = {"test": request.node.name, "what": what, **figures, "host": platform.node()}
        line = json.dumps(row)
        print(line)
        if path := os.environ.get("RECIPE_GPU_RESULTS"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    return add
