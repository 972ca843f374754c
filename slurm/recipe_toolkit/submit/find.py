"""Runs by id, by part of an id, by path, or the last one."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from recipe_toolkit.errors import RecipeError, UnknownRun
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.text_file import user_path

SHOWN = 8
_SECOND = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-")


def roots(runs: str | None, cluster: str | None) -> list[Path]:
    """The folders that hold runs: ``--runs`` alone, else the profile's, ``$RECIPE_RUNS`` and ``./runs``.

    Raises InputError if ``cluster`` names a profile that is refused.
    """
    if runs:
        return [user_path(runs).absolute()]
    found = []
    if os.environ.get("RECIPE_RUNS"):
        found.append(Path(os.environ["RECIPE_RUNS"]))
    profile = cluster or os.environ.get("RECIPE_CLUSTER")
    if profile:
        from recipe_toolkit.cluster_loader import load_cluster  # late: it reads YAML and schemas

        try:
            found.append(Path(load_cluster(profile).cluster.runs))
        except RecipeError:
            if cluster:  # only what was asked for by name must be right
                raise
    found.append(Path("runs"))
    return list(dict.fromkeys(user_path(path).absolute() for path in found))


def all_runs(folders: Sequence[Path]) -> list[RunDir]:
    """Every run in the folders, oldest first. Raises UnknownRun if a folder cannot be read."""
    found: dict[Path, RunDir] = {}
    for folder in folders:
        try:
            home = folder.resolve()
            with os.scandir(folder) as entries:
                links = {entry.name: entry.is_symlink() for entry in entries if not entry.name.startswith(".")}
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UnknownRun(f"cannot read the runs in {folder}: {error.strerror}") from error
        for name, link in links.items():
            path = folder / name
            if is_run(path):
                # Of a thousand runs, each would be resolved from the root on.
                found.setdefault(path.resolve() if link else home / name, RunDir(path))
    return _by_age(found.values())


def _by_age(runs: Iterable[RunDir]) -> list[RunDir]:
    """By id, which begins with the second of the submission; within one second by when the recipe was written."""

    def second(run: RunDir) -> str:
        match = _SECOND.match(run.id)
        return match[0] if match else run.id

    found: list[RunDir] = []
    for _, group in itertools.groupby(sorted(runs, key=lambda run: run.id), second):
        same = list(group)
        # Of a thousand runs, few are asked: a look at a file takes a network file system its time.
        found += sorted(same, key=_written) if len(same) > 1 else same
    return found


def _written(run: RunDir) -> int:
    try:
        return run.recipe_lock.stat().st_mtime_ns
    except OSError:
        return 0


def run_ids(folders: Sequence[Path]) -> list[str]:
    """The ids of the runs in the folders, the newest first; folders that cannot be read are left out."""
    found: set[str] = set()
    for folder in folders:
        try:
            found.update(path.name for path in folder.iterdir() if not path.name.startswith(".") and is_run(path))
        except OSError:
            continue
    return sorted(found, reverse=True)


def is_run(path: Path) -> bool:
    """Whether a folder holds a run."""
    # Not Path.is_file: it raises for a name that is too long, and where the folder may not be looked into.
    return any(os.path.isfile(path / name) for name in ("plan.json", "recipe.lock.yaml"))  # noqa: PTH113


def find_run(word: str, folders: Sequence[Path]) -> RunDir:
    """The run that ``word`` names: ``last``, a path, an id, or a part of exactly one id.

    A whole id is the run itself before it is a folder of that name here: `recipe collect` makes one.
    Raises UnknownRun, with the candidates where there are several.
    """
    if not word:
        raise UnknownRun("the name of the run is empty", hint="an id, a part of one, a path, or `last`")
    path = user_path(word)
    if "/" in word and is_run(path):
        return RunDir(path.absolute())
    if is_run(path):
        same = [run for run in all_runs(folders) if run.id == word]
        return same[0] if len(same) == 1 else RunDir(path.absolute())
    if "/" in word:
        raise UnknownRun(f"{word}: not a run folder", hint="a run folder holds plan.json and recipe.lock.yaml")
    runs = all_runs(folders)
    where = ", ".join(str(folder) for folder in folders)
    if not runs:
        raise UnknownRun(f"no runs in {where}", hint="name the folder: --runs DIR, or its profile: --cluster NAME")
    if word == "last":
        return runs[-1]
    for matches in (
        [run for run in runs if run.id == word],
        [run for run in runs if run.id.startswith(word)],
        [run for run in runs if word in run.id],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            shown = [run.id for run in matches[-SHOWN:]]
            more = f"\n  and {len(matches) - SHOWN} more" if len(matches) > SHOWN else ""
            raise UnknownRun(f"{word!r} names {len(matches)} runs:\n  " + "\n  ".join(shown) + more)
    raise UnknownRun(f"no run {word!r} in {where}", hint="`recipe list` shows the runs")


def find_runs(words: Sequence[str], folders: Sequence[Path]) -> list[RunDir]:
    """The runs that the words name, each once. Raises UnknownRun."""
    found = [find_run(word, folders) for word in words]
    return list({run.root: run for run in found}.values())
