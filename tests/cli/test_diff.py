"""recipe diff, as a user types it."""

from __future__ import annotations

import json

import pytest

from plankit import RECIPES, plan_of

BASE = RECIPES / "pd-4p-dp4-1d-dp8.yaml"


SETS = ("roles.decode.args.max-num-seqs=17", "engine.env.A=x", "benchmarks.0.concurrency=[1]")


def lines(done):
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_two_recipes(recipe):
    (recipe.folder / "mine.yaml").write_text(
        f"extends: {BASE}\nname: mine\nroles: {{decode: {{args: {{max-num-seqs: 17}}}}}}\n"
    )
    done = recipe("diff", BASE, "mine.yaml")
    assert done.returncode == 1, done.stderr
    found = lines(done)
    assert found["name"].endswith(" → mine")
    assert found["roles.decode.args.max-num-seqs"].endswith(" → 17")
    assert len(found) == 2


def test_the_same_is_silent(recipe, locked):
    locked("2026-11-29T12-00-00-a-ab12")
    for words in ((BASE, BASE), ("last", "last"), (BASE, "last"), ("last", BASE, "--plan")):
        done = recipe("diff", *words)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_two_runs_with_their_nodes(recipe, locked):
    locked("2026-11-29T12-00-00-a-ab12")
    locked("2026-11-29T13-00-00-a-cd34", *SETS, driver="580.2")
    done = recipe("diff", "ab12", "last")
    assert done.returncode == 1, done.stderr
    found = lines(done)
    assert found["engine.env.A"] == "– → x"
    assert found["node.driver"] == "570.1 → 580.2"
    assert "node.hosts" not in found
    data = json.loads(recipe("diff", "ab12", "last", "--json").stdout)
    assert {"field": "engine.env.A", "values": [None, "x"], "absent": [0]} in data["differences"]
    assert [item["field"] for item in data["differences"]] == list(found)


def test_plans_are_compared_process_by_process(recipe, locked):
    locked("2026-11-29T12-00-00-a-ab12")
    locked("2026-11-29T13-00-00-a-cd34", *SETS)
    done = recipe("diff", "ab12", "last", "--plan")
    assert done.returncode == 1, done.stderr
    found = lines(done)
    decodes = [p.name for p in plan_of("pd-4p-dp4-1d-dp8").processes if p.role == "decode"]
    name = decodes[0] if len(decodes) == 1 else f"({', '.join(decodes)})"
    assert found[f"{name}.args.max-num-seqs"].endswith(" → 17")
    (env,) = [field for field in found if field.endswith(".env.A")]
    assert env.startswith("(prefill-0, prefill-1, prefill-2, prefill-3, decode-0).")
    # A recipe against a run: planned on the run's own profile.
    assert lines(recipe("diff", BASE, "cd34", "--plan")) == found


def test_a_recipe_against_a_rehearsal_is_planned_as_one(recipe, locked):
    locked("2026-11-29T12-00-00-a-ab12", rehearse=True)
    done = recipe("diff", BASE, "last", "--plan")
    assert (done.returncode, done.stdout) == (0, "")
    assert "planned as a rehearsal" in done.stderr


def test_a_lock_that_is_refused_now_is_compared_as_written(recipe, locked):
    run = locked("2026-11-29T12-00-00-a-ab12")
    run.recipe_lock.write_text(run.recipe_lock.read_text() + "from_another_version: 1\n")
    done = recipe("diff", BASE, "last")
    assert (done.returncode, done.stdout) == (1, "from_another_version: – → 1\n")
    assert "is refused by this version" in done.stderr


@pytest.mark.parametrize("words", [("nope", "last"), ("no.yaml", "last"), ("last",), ("bad.yaml", "last")])
def test_trouble_is_2(recipe, locked, words):
    locked("2026-11-29T12-00-00-a-ab12")
    (recipe.folder / "bad.yaml").write_text("schema: 1\n")
    done = recipe("diff", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
    assert "Traceback" not in done.stderr
