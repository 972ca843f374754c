"""recipe compare, as a user types it."""

from __future__ import annotations

import json

import pytest
import yaml

from recipe_toolkit.rundir import RunDir, write_json
from results_support import make_folder


@pytest.fixture
def pair(recipe, monkeypatch):
    """Two runs, the second 10 % slower from token to token, with other flags on other nodes."""
    one = make_folder(recipe.folder)
    two = RunDir(one.root.with_name("2026-11-30-120000-tiny-2p1d-cd34"))
    monkeypatch.setenv("RECIPE_RUNS", str(one.root.parent))
    for run, flag, driver in ((one, 64, "570.1"), (two, 128, "580.2")):
        if run is two:
            make_folder(recipe.folder / "second").root.rename(two.root)
        lock = {"schema": 1, "name": "tiny", "roles": {"decode": {"args": {"max-num-seqs": flag}}}}
        run.recipe_lock.write_text(yaml.safe_dump(lock))
        run.cluster_lock.write_text(yaml.safe_dump({"schema": 1, "name": "site", "env": {"NCCL_DEBUG": str(flag)}}))
        write_json(run.attempt(0).facts(0), {"host": f"n-{flag}", "driver": driver, "gpus": "broken"})
    results = json.loads(two.results.read_text())
    for point in results["points"]:
        point["tpot_ms"]["mean"] *= 1.1
    write_json(two.results, {**results, "run": two.id})
    return one, two


def test_compare_says_what_differs_and_then_how_much(recipe, pair):
    one, two = pair
    done = recipe("compare", one.id, "last")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"A  {one.id}: done, invalid: 1 of 5 points invalid")
    assert lines[1].startswith(f"B  {two.id}: done, invalid")
    assert "  roles.decode.args.max-num-seqs: 64 → 128" in lines
    assert "  node.driver: 570.1 → 580.2" in lines
    assert "  node.hosts: n-64 → n-128" in lines
    assert "  profile.env.NCCL_DEBUG: 64 → 128" in lines
    table = lines[lines.index("TPOT mean, ms (lower is better)") :]
    assert table[2].split()[-3:] == ["+10.0", "%", "worse"]
    assert lines[-1].startswith("B to A: 4 worse, ")


def test_compare_for_ci(recipe, pair):
    done = recipe("compare", pair[0].id, pair[1].id, "--fail-if-worse", "12")
    assert (done.returncode, done.stderr) == (0, "")
    done = recipe("compare", pair[0].id, pair[1].id, "--fail-if-worse", "5", "--json")
    assert done.returncode == 1
    assert "worse: B: isl64-osl16-c1: TPOT mean +10.0 %" in done.stderr
    data = json.loads(done.stdout)
    assert data["points"][0]["metrics"]["tpot_ms.mean"]["verdict"] == [None, "worse"]
    only = recipe("compare", pair[0].id, pair[1].id, "--fail-if-worse", "5", "--metric", "ttft_ms.mean")
    assert (only.returncode, only.stdout.count("is better)")) == (0, 1)
    assert recipe("compare", pair[0].id, pair[1].id, "--fail-if-worse", "-1").returncode == 2


def test_archives_and_results_alone(recipe, pair):
    one, two = pair
    assert recipe("collect", one.id, "-o", "one.tar.gz").returncode == 1  # files were changed above
    wanted = recipe("compare", one.id, two.id).stdout
    assert recipe("compare", "one.tar.gz", two.id).stdout == wanted
    done = recipe("compare", "one.tar.gz", two.results)
    assert done.returncode == 0, done.stderr
    assert "not compared: B: no recipe.lock.yaml, so flags and environment are not compared" in done.stdout
    assert "max-num-seqs" not in done.stdout
    assert done.stdout.splitlines()[-1] == wanted.splitlines()[-1]


def test_compare_writes_a_page(recipe, pair):
    done = recipe("compare", pair[0].id, pair[1].id, "--html", "page.html")
    assert done.stderr == "page: page.html\n"
    assert "<td>+10.0 % worse</td>" in (recipe.folder / "page.html").read_text()
    assert recipe("compare", pair[0].id, pair[1].id, "--html", "no/where.html").returncode == 1


def test_a_rehearsal_is_not_compared_with_a_measurement(recipe, pair):
    one, two = pair
    for path in (two.results, two.plan):
        write_json(path, {**json.loads(path.read_text()), "rehearsal": True, "engine": "sim"})
    done = recipe("compare", one.id, two.id)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"B {two.id} is a rehearsal" in done.stderr
    twice = recipe("compare", two.id, two.id)
    assert twice.returncode == 0
    assert "\nREHEARSAL ON THE SIMULATED ENGINE: NO FIGURE HERE" in twice.stdout


def test_runs_that_have_nothing_in_common(recipe, pair):
    one, two = pair
    results = json.loads(two.results.read_text())
    for point in results["points"]:
        point["isl"]["wanted_tokens"], point["id"] = 4096, f"long-{point['id']}"
    write_json(two.results, results)
    done = recipe("compare", one.id, two.id)
    assert done.returncode == 1
    assert "nothing could be compared" in done.stderr
    assert "isl64-osl16-c1: only in A" in done.stdout


def test_compare_refuses_what_it_does_not_know(recipe, pair):
    assert "2 to 26 runs can be compared, not 1" in recipe("compare", "last").stderr
    assert "not 27" in recipe("compare", *["last"] * 27).stderr
    done = recipe("compare", "last", "last", "--metric", "ttft_ms.maen")
    assert done.returncode == 2
    assert "did you mean `ttft_ms.mean`?" in done.stderr
    (recipe.folder / "broken.json").write_text("{}")
    broken = recipe("compare", "last", "broken.json")
    assert broken.returncode == 1
    assert "broken.json: cannot be read" in broken.stderr
    assert recipe("compare", "last", "no-such-run").returncode == 1


def test_against_what_was_published(recipe, pair):
    run = pair[0]
    results = json.loads(run.results.read_text())
    point = results["points"][0]
    load = {"isl": 64, "osl": 16, "concurrency": point["concurrency"]}
    reported = {**load, "metrics": {"tpot_mean_ms": point["tpot_ms"]["mean"] / 2}}
    done = recipe("compare", run.id, "--published")
    assert done.returncode == 1
    assert "has nothing published" in done.stderr
    plan = json.loads(run.plan.read_text())
    write_json(run.plan, {**plan, "published": [reported, {"accuracy": {"gsm8k": 95}}]})
    done = recipe("compare", run.id, "--published")
    assert done.returncode == 0, done.stderr
    assert "+100.0 %  worse" in done.stdout
    assert recipe("compare", run.id, "--published", "--fail-if-worse", "99").returncode == 1
    assert recipe("compare", run.id, "--published", "--fail-if-worse", "101").returncode == 0
    data = json.loads(recipe("compare", run.id, "--published", "--json").stdout)
    assert [row["verdict"] for row in data["published"]] == ["worse", "not comparable"]
    assert recipe("compare", run.id, pair[1].id, "--published").returncode == 2
