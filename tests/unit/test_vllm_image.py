"""An image's own help against the commands that are to run in it; the help is what vLLM 0.32.0 printed, shortened."""

from __future__ import annotations

import pytest

from plankit import ROOT
from recipe_toolkit.plan.any_site import any_site
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.values import show
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.vllm_args.image import against_help, read_help
from recipe_toolkit.vllm_args.lists import list_for

TEXT = (ROOT / "tests" / "data" / "vllm-help" / "serve-0.32.0.txt").read_text(encoding="utf-8")
HELP = read_help(TEXT)


def test_the_help_shows_what_the_list_of_the_version_has():
    known = {f"--{name}" for name in list_for("0.32.0").options}
    assert known - HELP.names == set()
    assert HELP.choices["--all2all-backend"][:2] == ["allgather_reducescatter", "deepep_high_throughput"]
    assert "-tp" in HELP.names
    assert "--tool-call-parser" not in HELP.choices  # a plugin registers more


@pytest.mark.parametrize(
    ("words", "name", "message", "hint"),
    [
        (["--max-num-sqes", "4"], "max-num-sqes", "has no flag --max-num-sqes", "did you mean `max-num-seqs`?"),
        (["--all2all-backend", "pplxx"], "all2all-backend", "'pplxx' is none of the values", "did you mean `pplx`?"),
        (["--all2all-backend=pplxx"], "all2all-backend", "'pplxx' is none of the values", "did you mean `pplx`?"),
        (["--no-max-num-seqs"], "no-max-num-seqs", "has no flag --no-max-num-seqs", None),
    ],
)
def test_what_the_image_lacks(words, name, message, hint):
    (problem,) = against_help(["serve", "/m", "--port", "8000", *words, "--headless"], HELP, "0.32.0")
    assert problem.key == name
    assert message in problem.message
    assert hint is None or problem.hint == hint


def test_what_is_hidden_is_taken():
    """vLLM 0.33 shows --disable-x and takes --no-enable-x."""
    text = TEXT.replace("--no-enable-chunked-prefill", "--disable-chunked-prefill")
    assert text != TEXT
    assert against_help(["--no-enable-chunked-prefill"], read_help(text), "0.33.0") == []
    assert len(against_help(["--no-enable-chunked-prefill"], read_help(text), "0.32.0")) == 1
    assert against_help(["--no-enable-prefix-caching", "--kv-cache-dtype", "FP8-E4M3"], HELP, "0.32.0") == []


def test_every_engine_of_a_plan_can_be_held_against_it():
    for file in sorted((ROOT / "recipes" / "tiny").glob("cpu-*.yaml")):
        recipe = load_recipe(file).recipe
        plan = build_plan(recipe, any_site(recipe))
        for process in plan.processes:
            if process.role != "router":
                assert against_help([show(word) for word in process.argv], HELP, recipe.engine.version) == []


@pytest.mark.parametrize("text", ["", "usage: sh [-c]\n  -c COMMAND\n", TEXT[:2000]])
def test_other_texts_are_no_help(text):
    with pytest.raises(ValueError, match="no help of vllm serve: it shows"):
        read_help(text)
