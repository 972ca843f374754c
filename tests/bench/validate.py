"""How long `recipe validate` takes for each of hundreds of recipes, once it has started.

    .venv/bin/python tests/bench/validate.py [--count 680] [--runs 3] [--srtctl DIR]

The recipes are the shipped ones with their `extends` written out, under other names. A recipe's time is
(all files - one file) / (files - 1), of whole processes in turn; the median of the runs is printed, and the same for a
pass that parses the YAML and does no more. It is processor time, user's and system's, so that it says the same on a
busy machine. Asserts nothing.

`--srtctl DIR`: beside srtctl's `load_config` (its schema alone: no placement, no flags, no memory) on the recipes of a
checkout of NVIDIA/srt-slurm, which PyPI does not have; its Python is DIR/.venv's where there is one. Its sweeps, which
`load_config` does not take, are counted as refused.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from recipe_toolkit.document import dump_yaml
from recipe_toolkit.recipe_loader import load_recipe

ROOT = Path(__file__).parents[2]
PARSE = "import sys, yaml; [yaml.load(open(file), yaml.CSafeLoader) for file in sys.argv[1:]]"
SRTCTL = """
import sys
from srtctl.core.config import load_config
for file in sys.argv[1:]:
    try:
        load_config(file)
    except Exception as error:
        print(file, type(error).__name__)
"""


def variants(folder: Path, count: int) -> list[Path]:
    """``count`` recipes, no two alike."""
    bases: list[dict[str, Any]] = []
    for file in sorted((ROOT / "recipes").rglob("*.yaml")):
        if file.parent.name != "clusters":
            data = load_recipe(file).data
            bases.append({**data, "name": file.stem})
    files = []
    for index in range(count):
        data = dict(bases[index % len(bases)])
        data["name"] = f"{data['name'][:40]}-{index}"
        data["time_limit"] = f"{4 + index % 7:02}:00:00"
        data["description"] = f"Variant {index}"
        files.append(folder / f"{index:04}.yaml")
        files[-1].write_text(dump_yaml(data), encoding="utf-8")
    return files


def used() -> float:
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of_children.ru_utime + of_children.ru_stime


def seconds(argv: Sequence[str | Path], environment: dict[str, str]) -> tuple[float, str]:
    before = used()
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    return used() - before, done.stdout + done.stderr


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=680)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--srtctl", type=Path, metavar="DIR")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "recipes")
        folder.mkdir()
        files = variants(folder, given.count)
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(scratch, "bytecode"))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        recipe = Path(sys.executable).parent / "recipe"
        commands: dict[str, tuple[list[str | Path], list[Path]]] = {
            "recipe validate": ([recipe, "validate"], files),
            "parsing the YAML alone": ([sys.executable, "-c", PARSE], files),
        }
        if given.srtctl:
            python = given.srtctl / ".venv" / "bin" / "python"
            environment["PYTHONPATH"] = str(given.srtctl / "src")
            theirs = [
                file
                for name in ("recipes", "examples")
                for file in sorted((given.srtctl / name).rglob("*.yaml"))
                if isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)
            ]
            commands["srtctl load_config"] = (
                [python if python.exists() else sys.executable, "-c", SRTCTL],
                theirs[: given.count],
            )
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        said: dict[str, str] = {}
        for number in range(given.runs + 1):  # the first fills the caches
            for name, (head, over) in commands.items():
                alone, _ = seconds([*head, over[0]], environment)
                whole, said[name] = seconds([*head, *over], environment)
                if number:
                    times[name].append((alone, whole))
        print(f"{'':<26}{'files':>6}{'start-up s':>12}{'all s':>8}{'ms a file':>11}")
        for name, (_, over) in commands.items():
            each = statistics.median((whole - alone) / (len(over) - 1) for alone, whole in times[name])
            alone, whole = (statistics.median(pair[place] for pair in times[name]) for place in (0, 1))
            print(f"{name:<26}{len(over):>6}{alone:>12.3f}{whole:>8.2f}{1000 * each:>11.2f}")
        good = sum(": ok (" in line for line in said["recipe validate"].splitlines())
        print(f"recipe validate: {good} good of {len(files)}")
        if "srtctl load_config" in said:
            print(f"srtctl load_config: {len(said['srtctl load_config'].splitlines())} refused")


if __name__ == "__main__":
    main()
