"""The project's own shape: what a newcomer or a packager would trip over."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import recipe_toolkit

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "slurm" / "recipe_toolkit"
MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("folder", ["slurm", "ansible", "recipes", "scripts"])
def test_source_roots_are_not_packages(folder):
    """`ansible/__init__.py` would shadow the real ansible under `python -m pytest`."""
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("module", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small(module):
    text = module.read_text()
    assert len(text.splitlines()) <= 420
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno <= 65, f"{node.name} is {node.end_lineno - node.lineno} lines"


def test_slurms_commands_have_few_callers():
    """Submission; for pyxis the plan, which names them to what ends a step; and who looks whether Slurm is here."""
    commands = {"sbatch", "squeue", "scontrol", "scancel", "sacct"}
    callers = {
        str(module.relative_to(PACKAGE))
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and node.value in commands
    }
    allowed = {"plan/container/pyxis.py", "cli/new.py"}
    assert {name for name in callers if not name.startswith("submit/")} <= allowed


def test_every_dependency_says_why():
    text = (ROOT / "pyproject.toml").read_text()
    block = text.split("dependencies = [", 1)[1].split("]", 1)[0]
    lines = [line for line in block.splitlines() if line.strip()]
    assert lines
    for line in lines:
        assert re.search(r'",\s+# \w', line), line


def test_changelog_speaks_of_this_version():
    assert f"## {recipe_toolkit.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_shell_scripts_are_short():
    for script in (ROOT / "scripts").iterdir():
        text = script.read_text()
        if text.startswith("#!/bin/sh") or text.startswith("#!/bin/bash"):
            assert len(text.splitlines()) <= 30, script.name


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
