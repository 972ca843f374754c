"""Goldens that are missing or differ fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import require

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester, monkeypatch):
    """A project with this one's conftest and a test that holds the text of a variable against a golden."""
    here = pytester.path / "tests"
    here.mkdir()
    root = Path(__file__).parents[1]
    for name in ("conftest.py", "support.py"):
        (here / name).write_text((root / name).read_text())
    (here / "test_it.py").write_text("import os\ndef test_it(golden):\n    golden('a/b.txt', os.environ['TEXT'])\n")
    monkeypatch.delenv("RECIPE_REQUIRE", raising=False)

    def run(text, *words):
        monkeypatch.setenv("TEXT", text)
        return pytester.runpytest_subprocess("-o", "pythonpath=tests", "-p", "no:cacheprovider", *words, str(here))

    run.golden = here / "data" / "golden" / "a" / "b.txt"
    return run


def test_missing_golden_fails(project):
    result = project("one\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no golden*--update-golden*"])
    assert not project.golden.exists()


def test_written_on_demand_then_compared_whole(project):
    project("one\ntwo\n", "--update-golden").assert_outcomes(passed=1)
    assert project.golden.read_text() == "one\ntwo\n"
    project("one\ntwo\n").assert_outcomes(passed=1)
    result = project("one\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["-two"])
    project("one\ntwo").assert_outcomes(failed=1)
    assert project.golden.read_text() == "one\ntwo\n"


def test_missing_part_is_skipped(monkeypatch):
    monkeypatch.setenv("RECIPE_REQUIRE", "slurm")
    with pytest.raises(pytest.skip.Exception, match="no engine here"):
        require("vllm", False, "no engine here")


def test_missing_part_fails_where_it_is_required(monkeypatch):
    monkeypatch.setenv("RECIPE_REQUIRE", "slurm,vllm")
    with pytest.raises(pytest.fail.Exception, match="RECIPE_REQUIRE names vllm, but no engine here"):
        require("vllm", False, "no engine here")
    require("vllm", True, "not said")


def test_misspelt_part_is_refused(monkeypatch):
    monkeypatch.setenv("RECIPE_REQUIRE", "vlm")
    with pytest.raises(pytest.UsageError, match="vlm"):
        require("slurm", False, "none")
