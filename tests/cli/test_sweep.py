"""A recipe with a sweep, as a user submits, resumes and reads it; Slurm replays recorded answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_toolkit.rundir import RunDir
from slurm_site import small_recipe
from submit_support import write_state

SWEEP = {
    "grid": {"roles.serve.args.max-num-seqs": [32, 64, 128]},
    "variants": {"plain": {}, "again": {"benchmarks.0.command": ["python3", "-c", "print('again')"]}},
}
RUNS = ["max-num-seqs-32", "max-num-seqs-64", "max-num-seqs-128"]


@pytest.fixture
def site(recipe, fake_slurm):
    """A recipe whose sweep makes three runs of two nodes and ten minutes; sbatch gives 101, 102, …"""
    profile = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "runs"}
    (recipe.folder / "site.yaml").write_text(json.dumps(profile))
    for call in range(1, 9):
        fake_slurm.says("sbatch", f"{100 + call}\n", call=call)
    recipe.slurm = fake_slurm
    write(recipe)
    return recipe


def write(site, **fields):
    (site.folder / "s.yaml").write_text(json.dumps(small_recipe(sweep=SWEEP, **fields)))


def submit(site, *words):
    return site("submit", "s.yaml", "-c", "./site.yaml", *words)


def folders(site) -> list[Path]:
    """Of the runs, in the order of submission."""
    found = (site.folder / "runs").iterdir() if (site.folder / "runs").exists() else []
    return sorted(found, key=lambda path: json.loads((path / "job.json").read_text())["submitted"])


def swept(folder: Path) -> dict:
    return json.loads((folder / "sweep.json").read_text())


def ends(folder: Path, state: str, **fields) -> None:
    write_state(RunDir(folder), state, **fields)


# --- plan and validate


def test_plan_lists_what_the_sweep_costs(site):
    done = site("plan", "s.yaml", "--sweep")
    assert done.returncode == 0, done.stderr
    head, *rows, last = done.stdout.splitlines()
    assert head.split()[:6] == ["VARIANT", "RUN", "NODES", "GPUS", "NODE-HOURS", "POINTS"]
    assert len(rows) == 6
    assert rows[0].split() == ["max-num-seqs-32_plain", "1", "2", "4", "0.33", "1", "max-num-seqs=32"]
    assert rows[1].split()[:3] == ["max-num-seqs-32_again", "1", "1"]
    assert 'benchmarks.0.command=["python3", "-c", "print(\'again\')"]' in rows[1]
    assert last == (
        "6 variants in 3 runs, 6 points: at most 1 node-hours, 2 nodes at a time with --at-once 1, 6 without"
    )
    data = json.loads(site("plan", "s.yaml", "--sweep", "--json").stdout)
    assert [run["id"] for run in data["runs"]] == RUNS
    assert (data["node_hours"], data["nodes_at_once"]) == (1.0, 6)
    assert data["runs"][0]["variants"][1]["points"] == ["c0_command-python3-c-print-again"]
    assert data["runs"][0]["points"] == ["c0", "c0_command-python3-c-print-again"]


def test_plan_without_the_flag_is_the_base(site):
    done = site("plan", "s.yaml")
    assert done.returncode == 0
    assert done.stdout.startswith("small: ")
    assert "max-num-seqs" not in done.stdout
    assert "without its sweep of 6 variants" in done.stderr
    assert "has no sweep" in site("plan", "s.yaml", "--sweep", "--set", "sweep=null").stderr


def test_validate_checks_every_variant(site):
    done = site("validate", "s.yaml")
    assert done.stdout == "s.yaml: ok (small, 2 nodes, 4 GPUs; sweep of 6 variants in 3 runs)\n"
    fields = ["--set", "sweep.grid={roles.serve.args.max-num-sqs: [1, 2], roles.serve.instances: [1, 2]}"]
    done = site("validate", "s.yaml", *fields)
    assert done.returncode == 1
    # Of --set no line is known that would tell the two values apart.
    assert done.stderr.count("has no flag --max-num-sqs") == 1
    assert "router.kind: 2 instances need a router (in max-num-sqs-1_instances-2_plain and 3 more)" in done.stderr
    assert site("validate", "s.yaml", *fields, "--json").returncode == 1


def test_a_set_that_the_sweep_would_lose_is_refused(site):
    lost = ("--set", "roles.serve.args.max-num-seqs=48")
    for words in (("plan", "s.yaml", "--sweep"), ("validate", "s.yaml"), ("submit", "s.yaml", "-c", "./site.yaml")):
        done = site(*words, *lost)
        assert done.returncode == 1
        assert (
            "--set roles.serve.args.max-num-seqs=48: roles.serve.args.max-num-seqs: the sweep sets this" in done.stderr
        )
    assert not folders(site)
    # Of this one some variants are left, and those without the sweep have all of it.
    some = site("plan", "s.yaml", "--sweep", "--set", 'benchmarks.0.command=["true"]')
    assert some.returncode == 0
    assert "warning: benchmarks.0.command: the sweep sets this field itself, and over it (in" in some.stderr
    assert site("plan", "s.yaml", *lost, "--set", "sweep=null").returncode == 0
    below = ("--set", "roles.serve.parallel.dp=2", "--set", "sweep={grid: {roles.serve.parallel: [{tp: 2}, {tp: 4}]}}")
    assert "roles.serve.parallel.dp: the sweep sets" in site("plan", "s.yaml", "--sweep", *below).stderr


# --- submit


def test_each_run_has_its_job_its_folder_and_its_part_of_the_sweep(site):
    done = submit(site)
    assert done.returncode == 0, done.stderr
    names = [path.name for path in folders(site)]
    assert done.stdout.splitlines() == names
    assert [name[20:-5] for name in names] == [f"small-{run}" for run in RUNS]
    records = [swept(path) for path in folders(site)]
    (sweep,) = {record["sweep"] for record in records}
    assert f"s.yaml: sweep {sweep}\n" in done.stderr
    assert [record["id"] for record in records] == RUNS
    plan = json.loads((folders(site)[1] / "plan.json").read_text())
    assert [point for item in records[1]["variants"] for point in item["points"]] == [
        point["id"] for point in plan["benchmarks"]
    ]
    lock = (folders(site)[1] / "recipe.lock.yaml").read_text()
    assert "max-num-seqs: 64" in lock
    assert "sweep" not in lock


def test_one_variant_that_is_refused_keeps_all_back(site):
    done = submit(site, "--set", "sweep.variants.bad={time_limit: never}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "time_limit" in done.stderr
    assert site.slurm.calls() == []
    assert not (site.folder / "runs").exists()


def test_a_throttle_chains_the_runs_and_a_dry_run_names_them(site):
    shown = submit(site, "--at-once", "1", "--dry-run")
    assert "s.yaml max-num-seqs-64:" in shown.stderr
    assert "#SBATCH --dependency='afterany:<job of s.yaml max-num-seqs-32>'\n" in shown.stdout
    assert submit(site, "--at-once", "1").returncode == 0
    scripts = [call["script"] for call in site.slurm.calls("sbatch")]
    assert ["afterany:101" in script for script in scripts] == [False, True, False]
    assert "afterany:102" in scripts[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-nodes", "5"], "3 runs could hold 6 nodes at a time, more than --max-nodes 5"),
        (["--max-nodes", "1", "--at-once", "1"], "3 runs could hold 2 nodes at a time, more than --max-nodes 1"),
        (["--max-node-hours", "0.9"], "3 runs could take 1 node-hours, more than --max-node-hours 0.9"),
        (["--only", "nothing"], "no variant matches 'nothing'"),
        (["--resume", "last"], "no run of a sweep in"),
    ],
)
def test_what_is_refused_before_it_overspends(site, words, said):
    done = submit(site, *words)
    assert done.returncode in (1, 102)
    assert said in done.stderr
    assert site.slurm.calls() == []


def test_what_fits_the_budget_is_submitted(site):
    assert submit(site, "--max-nodes", "2", "--at-once", "1", "--max-node-hours", "1").returncode == 0
    assert len(folders(site)) == 3


def test_only_some_variants(site):
    assert submit(site, "--only", "*64*").returncode == 0
    assert [swept(path)["id"] for path in folders(site)] == ["max-num-seqs-64"]
    done = site("submit", "s.yaml", "-c", "./site.yaml", "--set", "sweep=null", "--only", "*")
    assert "has no sweep, so --only chooses nothing" in done.stderr


# --- again


def test_a_sweep_goes_on_where_it_has_no_valid_results(site):
    assert submit(site).returncode == 0
    first, second, third = folders(site)
    ends(first, "done", valid=True)
    ends(second, "done", valid=False)
    site.slurm.holds("103|RUNNING|None|n1|0|0")
    done = submit(site, "--resume", "last", "--json")
    assert done.returncode == 0, done.stderr
    assert f"max-num-seqs-32_plain: done, {first.name}\n" in done.stderr
    assert f"max-num-seqs-128_again: pending, {third.name}\n" in done.stderr or "running" in done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["sweep"] == swept(first)["sweep"]
    assert [swept(path)["id"] for path in folders(site)[3:]] == ["max-num-seqs-64"]
    site.slurm.forgets()
    ends(third, "failed")
    ends(folders(site)[3], "done", valid=True)
    # Those of the third, which has failed in the meantime; chosen alone, one counts for what was measured together.
    assert submit(site, "--resume", "last", "--only", "*128_plain").returncode == 0
    last = folders(site)[4]
    assert [item["id"] for item in swept(last)["variants"]] == ["max-num-seqs-128_plain"]
    ends(last, "done", valid=True)
    assert submit(site, "--resume", swept(first)["sweep"]).returncode == 0
    assert [item["id"] for item in swept(folders(site)[5])["variants"]] == ["max-num-seqs-128_again"]
    ends(folders(site)[5], "done", valid=True)
    done = submit(site, "--resume", "last")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith("nothing is left to submit\n")


def test_what_the_recipe_has_changed_is_measured_again(site):
    assert submit(site).returncode == 0
    for path in folders(site):
        ends(path, "done", valid=True)
    write(site, time_limit="00:20:00")
    done = submit(site, "--resume", "last")
    assert done.stderr.count("its recipe has changed since") == 6
    assert len(folders(site)) == 6
    write(site, name="other")
    assert "is of small, not of other" in submit(site, "--resume", "last").stderr


def test_a_sweep_is_listed_waited_for_and_cancelled(site):
    assert submit(site).returncode == 0
    site.slurm.holds(*(f"{job}|RUNNING|None|n1|0|0" for job in (101, 102, 103)))
    (site.folder / "a.yaml").write_text(json.dumps(small_recipe()))
    assert site("submit", "a.yaml", "-c", "./site.yaml").returncode == 0
    names = [path.name for path in folders(site)[:3]]
    for word in ("last", swept(folders(site)[0])["sweep"], "small"):
        found = site("list", "--sweep", word, "--json")
        assert [json.loads(line)["id"] for line in found.stdout.splitlines()] == names
    done = site("list", "--sweep", "nope")
    assert "no sweep 'nope'" in done.stderr
    assert "known: 2" in done.stderr
    for path in folders(site)[:3]:
        ends(path, "done", valid=True)
    site.slurm.forgets()
    assert site("wait", "--sweep", "last").returncode == 0
    assert site("cancel", "--sweep", "last").stdout.count("it had ended already") == 3
    for verb in ("wait", "cancel", "report", "compare"):
        assert site(verb).returncode == 2
        assert site(verb, names[0], "--sweep", "last").returncode == 2


@pytest.mark.parametrize(
    "text", ["", "[]", '{"sweep": 1}', '{"sweep": "a", "id": "b", "recipe": "c", "variants": [1]}']
)
def test_a_damaged_record_is_of_no_sweep(site, text):
    assert submit(site).returncode == 0
    (folders(site)[0] / "sweep.json").write_text(text)
    done = site("list", "--sweep", "last", "--json")
    assert len(done.stdout.splitlines()) == 2
    assert "Traceback" not in done.stderr


# --- on this machine, to the table


def test_a_sweep_runs_here_and_one_table_has_its_points(recipe):
    report = (
        "import json, os; json.dump({'output_tps': %d}, open(os.environ['RECIPE_ARTIFACTS'] + '/result.json', 'w'))"
    )
    data = small_recipe(["python3", "-c", report % 1], nodes=1)
    data["sweep"] = {
        "grid": {"roles.serve.args.max-num-seqs": [32, 64]},
        "variants": {
            "one": {},
            "two": {"benchmarks.0.command": ["python3", "-c", report % 2]},
            "fails": {"roles.serve.sim.fault": {"kind": "exit", "code": 7}},
        },
        "where": "roles.serve.args['max-num-seqs'] == 32 or roles.serve.sim.fault == null",
    }
    (recipe.folder / "s.yaml").write_text(json.dumps(data))
    done = recipe("submit", "s.yaml", "-c", "local", "--wait", "--at-once", "2", timeout=180)
    assert done.returncode == 100, done.stderr
    table = recipe("report", "--sweep", "last")
    assert table.returncode == 0, table.stderr
    assert "5 variants in 3 runs: 2 done, 1 failed" in table.stdout
    assert "SIMULATED ENGINE" in table.stdout
    assert "max-num-seqs-32_fails: c0 not measured" in table.stdout
    rows = [
        line.split()[:2] for line in table.stdout.splitlines() if line.startswith("  32 ") or line.startswith("  64 ")
    ]
    assert sorted(rows) == [["32", "one"], ["32", "two"], ["64", "one"], ["64", "two"]]
    found = json.loads(recipe("report", "--sweep", "last", "--json").stdout)
    assert len(found["variants"]) == 5
    page = recipe.folder / "runs" / f"{found['sweep']}.html"
    assert table.stderr == f"page: {page}\n"
    said = page.read_text()
    assert said.count('<td class="word">max-num-seqs-') == 4
    assert "<strong>max-num-seqs-32_fails</strong>: c0 (" in said
    for run in {item["run"] for item in found["variants"]}:
        assert f'href="./{run}/report.html"' in said
    # By its name alone, where no run is called so.
    named = recipe("report", found["sweep"], "-o", "s.html")
    assert (named.returncode, named.stdout, named.stderr) == (0, table.stdout, "page: s.html\n")
    assert 'href="./runs/' in (recipe.folder / "s.html").read_text()
    assert {(item["id"], point["output_tps"]) for item in found["variants"] for point in item["points"]} == {
        (f"max-num-seqs-{size}_{name}", figure) for size in (32, 64) for name, figure in (("one", 1), ("two", 2))
    }
    beside = recipe("compare", "--sweep", "last", "--json")
    assert [run["recipe"] for run in json.loads(beside.stdout)["runs"]] == [
        "small-max-num-seqs-32",
        "small-max-num-seqs-32_fails",
        "small-max-num-seqs-64",
    ]
