"""The tables of the documents are those that the schemas and the code give."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = folder / "scripts" / "make-reference"
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)


def test_tables_are_fresh():
    done = make(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_an_old_table_is_found_and_made_anew(tmp_path):
    for name in ("scripts", "docs", "slurm"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    page = tmp_path / "docs" / "recipe.md"
    text = page.read_text()
    page.write_text(text.replace("| `name` | name |", "| `name` | word |", 1))
    done = make(tmp_path, "--check")
    assert done.returncode == 1
    assert "old: recipe.md" in done.stderr
    assert make(tmp_path).returncode == 0
    assert page.read_text() == text


def test_a_field_without_a_description_would_be_seen():
    for page in ("recipe.md", "profile.md"):
        rows = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")]
        assert [row for row in rows if row.split(" | ")[-1].strip(" |") == ""] == []


def test_the_table_of_recipes_is_fresh():
    script = ROOT / "scripts" / "make-recipe-table"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
