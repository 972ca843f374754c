"""A run folder that a crash, a full disk or a hand left half written: every verb says what it can, and none stumbles.

A real run is copied, one file of the copy is damaged, and every verb is tried on it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.cli.group import run as run_verb
from recipe_toolkit.submit import wait
from slurm_site import QUICK, small_recipe

RECIPE = Path(sys.executable).with_name("recipe")
FILES = (
    "plan.json",
    "recipe.lock.yaml",
    "cluster.lock.yaml",
    "job.json",
    "state.json",
    "events.jsonl",
    "results.json",
    "manifest.json",
    "token",
    "attempts/0/bound.json",
    "attempts/0/lead.json",
    "attempts/0/nodes/00/facts.json",
    "attempts/0/nodes/00/agent.log",
    "attempts/0/nodes/00/serve-0.0.log",
    "metrics/serve-0.0.jsonl",
    "bench/c0/point.json",
)
FOLDERS = ("job", "attempts", "attempts/0", "attempts/0/nodes", "metrics", "bench", "bench/c0")
JSON = tuple(name for name in FILES if name.endswith((".json", ".jsonl")))

Damage = Callable[[Path], Any]


def _become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Damage] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "nul": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "folder": _become_folder,
    "dangling": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}
VALUES = (None, True, 0, -1, 10**30, 1e308, "", "x", "\x1b[31m", [], {}, [None], {"x": None})
VERBS = (
    ["status", "RUN"],
    ["status", "RUN", "--json"],
    ["list"],
    ["list", "--json"],
    ["logs", "RUN"],
    ["logs", "RUN", "serve-0.0"],
    ["logs", "RUN", "agent-0", "-n", "2"],
    ["logs", "RUN", "job"],
    ["logs", "RUN", "--all", "-n", "1"],
    ["list", "--model", "*", "--sort", "state", "--json"],
    ["wait", "RUN", "--timeout", "0.1"],
    ["wait", "RUN", "--timeout", "0.1", "--follow", "--json"],
    ["cancel", "RUN"],
    ["collect", "RUN", "-o", "OUT"],
    ["report", "RUN"],
    ["report", "RUN", "--json"],
    ["collect", "--verify", "OUT"],
    ["compare", "RUN", "RUN"],
    ["compare", "RUN", "RUN", "--json"],
    ["diff", "RUN", "RUN", "--json"],
    ["diff", "RUN", "RUN", "--plan"],
    ["rerun", "RUN", "--dry-run"],
)


RESULTS = ("collect", "report", "compare", "diff", "rerun")
READ_ONLY = [words for words in VERBS if words[0] not in RESULTS]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that went well."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.yaml").write_text(json.dumps(small_recipe(QUICK)))
    done = subprocess.run(
        [RECIPE, "submit", "tiny.yaml", "-c", "local", "--wait"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    assert [name for name in (*FILES, *FOLDERS) if not (run / name).exists()] == []
    return run


@pytest.fixture
def tried(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    """Tries verbs on a copy with damage."""
    monkeypatch.setattr(wait, "GRACE_S", 0.1)
    monkeypatch.setattr(wait, "STEP_S", 0.05)
    monkeypatch.delenv("RECIPE_RUNS", raising=False)
    monkeypatch.delenv("RECIPE_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    number = 0

    def each(name: str, damage: Damage, verbs: Sequence[list[str]] = VERBS) -> None:
        nonlocal number
        number += 1
        runs = tmp_path / f"runs{number}"
        copy = runs / whole.name
        shutil.copytree(whole, copy, symlinks=True)
        damage(copy / name)
        for words in verbs:
            given = [word.replace("RUN", whole.name).replace("OUT", f"out{number}") for word in words]
            code = run_verb([*given, "--runs", str(runs)])
            output = capfd.readouterr()
            where = f"{' '.join(words)} with {name} damaged: {code}\n{output.out}{output.err}"
            assert code in (0, 1, 100, 101, 102, 103, 104, 105, 2 if words[0] == "diff" else 0), where
            assert "Traceback" not in output.err, where
            assert code == 0 or output.err or output.out, where
            assert "\x1b" not in output.out + output.err or "logs" in words, where
            if "--json" in words:
                for line in [output.out] if words[0] == "status" else output.out.splitlines():
                    assert isinstance(json.loads(line), dict), where

    return each


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_damaged(tried: Any, name: str, damage: str) -> None:
    tried(name, DAMAGES[damage])


@pytest.mark.parametrize("damage", ["missing", "file"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_gone(tried: Any, name: str, damage: str) -> None:
    def act(path: Path) -> None:
        shutil.rmtree(path)
        if damage == "file":
            path.touch()

    tried(name, act)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: json.dumps(value)[:8])
@pytest.mark.parametrize("name", JSON)
def test_a_file_that_holds_another_value(tried: Any, name: str, value: Any) -> None:
    tried(name, lambda path: path.write_text(json.dumps(value) + "\n"))


def _places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something below ``data``; of a list, and of what a pool's names lead to, the first alone."""
    items: Any = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from _places(value, (*at, key))


# Who reads what: a verb that never opens a file cannot stumble over it.
READERS: dict[str, list[list[str]]] = {
    "job.json": READ_ONLY,
    "state.json": READ_ONLY,
    "plan.json": [["report", "RUN", "--json"], ["collect", "RUN", "-o", "OUT"], ["diff", "RUN", "RUN", "--plan"]],
    "results.json": [["report", "RUN"], ["compare", "RUN", "RUN", "--json"], ["collect", "RUN", "-o", "OUT"]],
    "manifest.json": [["collect", "RUN", "-o", "OUT"]],
    "bench/c0/point.json": [["collect", "RUN", "-o", "OUT"], ["report", "RUN", "--json"]],
}


@pytest.mark.parametrize("name", READERS)
def test_every_value_of_another_kind(tried: Any, whole: Path, name: str) -> None:
    places = list(_places(json.loads((whole / name).read_text())))
    for index, place in enumerate(places):
        # Each place gets one kind for each verb, and its neighbours the others; the short files get all.
        values = (None, -1, "x", [3], {"x": 1})
        few = values if name in ("job.json", "state.json") else (values[index % 5], values[(index + 2) % 5])
        for value in few:

            def act(path: Path, place: tuple[Any, ...] = place, value: Any = value) -> None:
                data = json.loads(path.read_text())
                holder = data
                for key in place[:-1]:
                    holder = holder[key]
                holder[place[-1]] = value
                path.write_text(json.dumps(data))

            tried(name, act, READERS[name])
