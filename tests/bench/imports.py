"""How fast recipes of other tools are imported, and what comes of them is validated, file by file.

    .venv/bin/python tests/bench/imports.py [FOLDER] [RUNS]

FOLDER holds foreign recipes at any depth (default: the made-up ones of the tests; any public collection
shows more). For each step, in one process: the median and the slowest file in ms, and the median's ratio to
PyYAML reading the same files with its C parser. Files that are refused are counted. Asserts nothing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from recipe_toolkit.document import read_document
from recipe_toolkit.errors import InputError
from recipe_toolkit.importers import output
from recipe_toolkit.importers.imported import import_file
from recipe_toolkit.plan.any_site import any_site
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import load_recipe

MADE_UP = Path(__file__).parents[1] / "data" / "foreign"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(path: Path) -> None:
    yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)


def validate(path: Path) -> None:
    recipe = load_recipe(path).recipe
    build_plan(recipe, any_site(recipe))


def timed(step: Callable[[Path], object], paths: list[Path], runs: int) -> list[float]:
    """The best of so many runs for each file, in ms, after one that fills the caches."""
    best = []
    for path in paths:
        step(path)
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            step(path)
            times.append(time.perf_counter() - start)
        best.append(min(times) * 1000)
    return best


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else MADE_UP
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as scratch:
        taken: list[Path] = []
        written: list[Path] = []
        refused = 0
        for number, path in enumerate(sorted(folder.rglob("*.yaml"))):
            try:
                paths = output.save([import_file(path)], Path(scratch) / str(number), None)
            except InputError:
                refused += 1
                continue
            taken.append(path)
            written += [Path(item) for items in paths.values() for item in items]
        rows = [
            ("PyYAML alone", timed(parse, taken, runs)),
            ("read with places", timed(read_document, taken, runs)),
            ("import (all variants)", timed(import_file, taken, runs)),
            ("validate what was written", timed(validate, written, runs)),
        ]
    print(f"{len(taken)} files, {len(written)} recipes, {refused} refused")
    base = statistics.median(rows[0][1])
    print(f"{'step':<28}{'median ms':>10}{'slowest':>10}{'× PyYAML':>10}")
    for name, values in rows:
        median = statistics.median(values)
        print(f"{name:<28}{median:>10.2f}{max(values):>10.1f}{median / base:>10.1f}")


if __name__ == "__main__":
    main()
