"""How errors are told: prose on stderr, with --json an object on stdout too; and Ctrl-C at any time."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_toolkit.cli import VERBS
from slurm_site import small_recipe
from submit_support import wait_until

RECIPE = Path(sys.executable).with_name("recipe")
KEYS = ["message", "hint", "file", "line", "column", "field", "exit_code", "problems"]


def command(verb: str):
    return getattr(importlib.import_module(f"recipe_toolkit.cli.{VERBS[verb][0]}"), f"{verb}_command")


def params(verb: str, kind: str) -> list:
    return [param for param in command(verb).params if param.param_type_name == kind]


WITH_JSON = [verb for verb in VERBS if any("--json" in param.opts for param in params(verb, "option"))]


def error(done: subprocess.CompletedProcess[str]) -> dict:
    """The one object on stdout, which says what stderr and the exit code say."""
    (line,) = done.stdout.splitlines()
    (found,) = json.loads(line).values()
    assert list(json.loads(line)) == ["error"]
    assert list(found) == KEYS
    assert found["exit_code"] == done.returncode
    assert found["message"] in done.stderr
    return found


@pytest.mark.parametrize("verb", WITH_JSON)
def test_a_usage_error_is_an_object(recipe, verb):
    found = error(recipe(verb, "--json", "--no-such-option"))
    assert found["exit_code"] == 2
    assert "--no-such-option" in found["message"]
    assert found["hint"] == f"recipe {verb} --help"
    assert recipe(verb, "--no-such-option").stdout == ""


@pytest.mark.parametrize("verb", [verb for verb in WITH_JSON if params(verb, "argument")])
def test_what_is_not_there_is_an_object(recipe, verb):
    words = ["nope"] * max(1, sum(param.required for param in params(verb, "argument")))
    done = recipe(verb, *words, "--json")
    assert done.returncode != 0
    if verb in ("validate", "import"):  # the object of a file that is refused
        (problem,) = json.loads(done.stdout)["problems"]
        assert (problem["file"], problem["severity"]) == ("nope", "error")
        return
    assert error(done)["hint"] is None or error(done)["hint"] in done.stderr


@pytest.mark.parametrize("verb", ["plan", "submit"])
def test_the_first_problem_of_an_input_and_all_of_them(recipe, verb):
    text = json.dumps({**small_recipe(), "nonsense": 1, "router": {"kind": "nope"}}, indent=1)
    (recipe.folder / "bad.yaml").write_text(text)
    found = error(recipe(verb, "bad.yaml", "-c", "local", "--json"))
    places = [(problem["file"], problem["line"], problem["field"]) for problem in found["problems"]]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "nope" in line or "nonsense" in line]
    assert places == [("bad.yaml", lines[0], "router.kind"), ("bad.yaml", lines[1], "nonsense")]
    assert (found["file"], found["line"], found["field"]) == places[0]


def test_a_profile_that_is_not_there(recipe):
    found = error(recipe("list", "-c", "nope", "--json"))
    assert "or give its path, as in ./nope.yaml" in found["hint"]
    assert found["file"] == "--cluster"


@pytest.mark.parametrize("module", ["click", "submitit"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(recipe, module):
    """A module that does not come to its end stands for one on a slow file system."""
    slow = recipe.folder / "slow"
    (slow / module).mkdir(parents=True)
    here = recipe.folder / "here"
    (slow / module / "__init__.py").write_text(f"open({str(here)!r}, 'w')\nimport time\ntime.sleep(60)\n")
    (recipe.folder / "tiny.yaml").write_text(json.dumps(small_recipe()))
    process = subprocess.Popen(
        [RECIPE, "submit", "tiny.yaml", "-c", "local"],
        cwd=recipe.folder,
        env={**os.environ, "PYTHONPATH": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        wait_until(here.exists)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    # A shell says 130 of both.
    assert process.returncode in (130, -signal.SIGINT)
    assert out == ""
    assert err.strip() in ("", "interrupted")
