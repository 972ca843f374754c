"""recipe export, and InferenceX's rows beside our runs."""

from __future__ import annotations

import json

import pytest
import yaml

from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.rundir import write_json
from results_support import DATA, make_folder

ROWS = DATA / "inferencex"


@pytest.fixture
def run(recipe, monkeypatch):
    made = make_folder(recipe.folder)
    monkeypatch.setenv("RECIPE_RUNS", str(made.root.parent))
    return made


def test_a_run_as_rows_and_back(recipe, run):
    done = recipe("export", run.id, "--to", "inferencex", "--set", "precision=fp8", "-o", "rows.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rows.json\n"
    assert done.stderr.startswith("left out: isl64-osl16-c32: invalid: 3 of 12 requests failed")
    rows = json.loads((recipe.folder / "rows.json").read_text())
    assert [(row["conc"], row["precision"]) for row in rows] == [(1, "fp8"), (2, "fp8"), (8, "fp8"), (128, "fp8")]
    done = recipe("export", "rows.json", "--to", "results")
    assert done.returncode == 0, done.stderr
    back = json.loads(done.stdout)
    ours = json.loads(run.results.read_text())
    assert back["points"][0]["total_tps"] == pytest.approx(ours["points"][0]["total_tps"])


def test_rows_of_others_as_published(recipe, run):
    done = recipe("export", ROWS / "glm-4.7-gaudi3.json", "--to", "published")
    assert done.returncode == 0, done.stderr
    block = yaml.safe_load(done.stdout)
    assert [item["concurrency"] for item in block["published"]] == [1, 16, 128]
    # What is printed may be pasted into a recipe as it is.
    base = {"extends": str(DATA / "recipes" / "tp2-one-node.yaml")}
    (recipe.folder / "mine.yaml").write_text(yaml.safe_dump({**base, **block}))
    assert len(load_recipe(recipe.folder / "mine.yaml").recipe.published) == 3


def test_rows_beside_a_run(recipe, run):
    results = json.loads(run.results.read_text())
    for point in results["points"]:
        point["client"] = {"name": "vllm-bench", "version": None}
    (recipe.folder / "ours.json").write_text(json.dumps(results))
    assert recipe("export", "ours.json", "--to", "inferencex", "-o", "rows.json").returncode == 0
    rows = json.loads((recipe.folder / "rows.json").read_text())
    rows[0]["mean_tpot"] *= 1.2
    (recipe.folder / "rows.json").write_text(json.dumps(rows))
    done = recipe("compare", "ours.json", "rows.json", "--json")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["points"][0]
    assert first["metrics"]["tpot_ms.mean"]["verdict"] == [None, "worse"]
    assert first["metrics"]["total_tps_per_gpu.working"]["verdict"] == [None, "same"]
    assert "rows.json" in recipe("compare", "ours.json", "rows.json").stdout


def test_rows_on_the_page_of_a_run(recipe, run):
    assert recipe("export", run.id, "--to", "inferencex", "-o", "rows.json").returncode == 0
    rows = json.loads((recipe.folder / "rows.json").read_text())
    (recipe.folder / "rows.json").write_text(json.dumps(rows[:1]))
    done = recipe("report", run.id, "--published", "rows.json", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    page = (recipe.folder / "page.html").read_text()
    section = page.split('id="published"')[1].split("</section>")[0]
    assert "ISL 64, OSL 16, concurrency 1" in section
    # Another client: said, and not judged.
    assert "published with vllm-bench, measured with aiperf" in section
    assert "reproduced" not in section
    assert 'id="published"' not in (
        recipe("report", run.id, "-o", "plain.html") and (recipe.folder / "plain.html").read_text()
    )
    assert recipe("report", run.id, "--published", "none.json").returncode == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "cannot be read"),
        ('[{"conc": 1, "framework": "vllm"}]', "row 0: hw is None, and a name is wanted"),
        ("{", "cannot be read"),
        ("[3]", "cannot be read"),
    ],
)
def test_what_is_no_document_of_rows(recipe, run, text, said):
    (recipe.folder / "bad.json").write_text(text)
    for words in (["export", "bad.json", "--to", "published"], ["compare", run.id, "bad.json"]):
        done = recipe(*words)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_rows_of_two_configurations(recipe, run):
    rows = [json.loads((ROWS / f"{name}.json").read_text()) for name in ("kimi-k2.5-mi300x", "dsr1-gb200-pd")]
    (recipe.folder / "two.json").write_text(json.dumps(rows))
    done = recipe("export", "two.json", "--to", "published")
    assert done.returncode == 1
    assert (
        "rows of 2 configurations: moonshotai/Kimi-K2.5 on 8 mi300x, deepseek-ai/DeepSeek-R1-0528 on 28" in done.stderr
    )


def test_what_is_not_exported(recipe, run):
    assert recipe("export", run.id).returncode == 2
    assert recipe("export", run.id, "--to", "inferencex", "--set", "precision").returncode == 2
    assert recipe("export", run.id, "--to", "published", "--set", "a=b").returncode == 2
    done = recipe("export", run.id, "--to", "inferencex", "-o", "no/where.json")
    assert (done.returncode, "cannot write no/where.json" in done.stderr) == (1, True)
    results = json.loads(run.results.read_text())
    write_json(run.root.parent / "sim.json", {**results, "simulated": True, "engine": "sim"})
    done = recipe("export", run.root.parent / "sim.json", "--to", "inferencex")
    assert (done.returncode, "simulated engine" in done.stderr) == (1, True)
    for point in results["points"]:
        point.update(valid=False, reasons=["it is bad"])
    (recipe.folder / "bad.json").write_text(json.dumps(results))
    done = recipe("export", "bad.json", "--to", "inferencex")
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (
        1,
        "[]\n",
        "nothing to export: no valid point",
    )
