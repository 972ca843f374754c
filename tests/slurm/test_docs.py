"""What the documents say is what happens: their commands are run, their recipes and profiles are loaded.

A page's ``sh`` blocks are run from top to bottom in a folder of its own that holds the shipped recipes, beside
the private Slurm's controller, with the profile ``mysite``; what stands twice after a submit is run once.
``# exits N`` ends a command that is to fail.
A ``yaml`` block that begins with ``# PATH`` is that file (``# PATH: refused``: one that must not load).
A block ``text output`` is part of what the command before it prints, ``…`` standing for anything.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from recipe_toolkit.cli import VERBS
from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import load_recipe
from support import require

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"sh", "text", "text output", "yaml", "json"}
BIN = Path(sys.executable).parent
TIMEOUT_S = 240

EXCLUDED = {
    "scripts/quickstart": "its set-up takes minutes; its own commands are run by a test of their own",
    "scripts/test": "it is what runs this test",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. ``line``: where it begins."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def path(self) -> str | None:
        """The file that a ``yaml`` block is."""
        match = re.match(r"# (\S+\.yaml)(: refused)?\n", self.text)
        return match[1] if match else None

    @property
    def refused(self) -> bool:
        return self.text.partition("\n")[0].endswith(": refused")

    @property
    def label(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One line of a ``sh`` block, as the shell gets it."""

    text: str
    code: int
    label: str

    @property
    def program(self) -> str:
        return shlex.split(self.text, comments=True)[0]


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    language: str | None = None
    start, lines = 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif language is None:
            language, start, lines = line[3:].strip(), number, []
        else:
            found.append(Block(page, start, language, "\n".join(lines) + "\n"))
            language = None
    assert language is None, f"{page.name}:{start}: a block without end"
    return found


def commands(block: Block) -> Iterator[Command]:
    for offset, line in enumerate(block.text.splitlines(), 1):
        if not line.strip():
            continue
        match = re.search(r"\s+# exits (\d+)$", line)
        text = line[: match.start()] if match else line
        yield Command(text, int(match[1]) if match else 0, f"{block.page.name}:{block.line + offset}")


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if any(block.language == language for block in blocks(page))]


def scratch(folder: Path, page: Path) -> None:
    """The shipped recipes, the scripts, and the files that the page shows."""
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    (folder / "scripts").symlink_to(ROOT / "scripts")
    for block in blocks(page):
        if block.language == "yaml" and block.path:
            path = folder / block.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


@pytest.fixture
def site(slurm_rig, tmp_path, monkeypatch):
    """``mysite`` and the programs of this environment, as a user of the private Slurm has them."""
    for program in ("aiperf", "vllm-router"):
        there = (BIN / program).exists() or shutil.which(program) is not None
        require("aiperf", there, f"no {program} beside {sys.executable} or on PATH: scripts/setup")
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    mysite = {"schema": 1, "name": "mysite", "scheduler": "slurm", "runs": str(tmp_path / "mysite-runs")}
    (profiles / "mysite.yaml").write_text(json.dumps({**mysite, "slurm": {"signal_lead": 20}}))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("RECIPE_CLUSTERS", str(profiles))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    for name in ("RECIPE_CLUSTER", "RECIPE_RUNS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slurm
@pytest.mark.aiperf
@pytest.mark.parametrize("page", pages_with("sh"), ids=lambda page: page.name)
def test_commands_do_what_the_page_says(page, site, slurm_rig):
    scratch(site, page)
    seen: set[str] = set()
    printed = ""
    for block in blocks(page):
        if block.language == "text output":
            missing = first_missing(block.text, printed)
            assert missing is None, f"{block.label}: not in the output: {missing!r}\n{printed}"
        if block.language != "sh":
            continue
        for command in commands(block):
            if command.program in EXCLUDED or command.text in seen:
                continue
            if command.text.startswith("recipe submit "):
                seen.clear()  # what `last` means is another run from here on
            seen.add(command.text)
            done = slurm_rig.exec("sh", "-c", command.text, timeout=TIMEOUT_S)
            printed = done.stdout + done.stderr
            assert done.returncode == command.code, f"{command.label}: {command.text}\n{done.returncode}: {printed}"


def first_missing(wanted: str, printed: str) -> str | None:
    """The first part of ``wanted`` that does not follow, in ``printed``, those before it."""
    position = 0
    for part in (piece.strip() for piece in re.split("[…\n]", wanted)):
        found = printed.find(part, position)
        if found < 0:
            return part
        position = found + len(part)
    return None


def test_parts_of_an_output_are_looked_for_in_order():
    assert first_missing("a b\n… d\n", "x a b c\nd") is None
    assert first_missing("d\na\n", "a d") == "a"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.label}: {block.language!r} is none of {sorted(LANGUAGES)}"
        for command in commands(block) if block.language == "sh" else ():
            known = command.program == "recipe" or command.program.startswith("scripts/")
            assert known, f"{command.label}: only `recipe` and `scripts/` are run: make the block `text`"
            if command.program.startswith("scripts/"):
                assert (ROOT / command.program).exists(), f"{command.label}: there is no {command.program}"


@pytest.mark.parametrize("page", pages_with("yaml"), ids=lambda page: page.name)
def test_whole_recipes_and_profiles_load(page, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    scratch(tmp_path, page)
    for block in blocks(page):
        data = yaml.safe_load(block.text) if block.language == "yaml" else None
        if not isinstance(data, dict) or data.get("schema") != 1:
            continue
        path = tmp_path / (block.path or "recipes/mine/shown.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        said = refusal(path, tmp_path, profile="scheduler" in data)
        assert (said is not None) == block.refused, f"{block.label}: {said or 'is not refused'}"


def refusal(path: Path, folder: Path, *, profile: bool) -> str | None:
    """Why a profile, or a recipe at a site that has the models that the pages name, is refused."""
    try:
        if profile:
            load_profile(path)
        else:
            plan(path, folder)
    except InputError as error:
        return error.render()
    return None


def plan(path: Path, folder: Path) -> None:
    site = folder / "any.yaml"
    models = {name: f"/models/{name}" for name in ("tiny", "glm", "moe")}
    site.write_text(json.dumps({"schema": 1, "name": "any", "scheduler": "slurm", "runs": "/runs", "models": models}))
    build_plan(load_recipe(path).recipe, load_profile(site).cluster)


def test_the_readme_counts_dependencies_right():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1].strip().splitlines()
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"]
    assert f"{words[len(listed)]} small dependencies" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_verb_is_explained():
    said = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [verb for verb in VERBS if f"recipe {verb}" not in said] == []


def test_every_option_is_explained():
    import importlib

    said = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
    missing = []
    for verb, (module, _) in VERBS.items():
        command = getattr(importlib.import_module(f"recipe_toolkit.cli.{module}"), f"{verb}_command")
        for param in command.params:
            names = [name for name in param.opts if name.startswith("--")]
            missing += [f"{verb} {name}" for name in names if name not in said]
    assert missing == []


def test_every_field_of_the_results_is_explained():
    said = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "slurm" / "recipe_toolkit" / "schemas" / "results.json").read_text())
    objects = [schema, *schema["$defs"].values()]
    names = {name for item in objects for name in item.get("properties", {})}
    assert sorted(name for name in names if f"`{name}`" not in said) == []


@pytest.mark.slurm
@pytest.mark.aiperf
def test_quickstart_without_its_set_up(site, tmp_path):
    (site / "recipes").symlink_to(ROOT / "recipes")
    text = (ROOT / "scripts" / "quickstart").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith(".venv/bin/recipe ")]
    assert [shlex.split(line)[1] for line in lines] == ["submit", "report"]
    for line in lines:
        words = [str(BIN / "recipe"), *shlex.split(line)[1:]]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "tiny-sim-2p1d: done, valid" in done.stdout
