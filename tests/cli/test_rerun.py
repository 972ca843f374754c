"""recipe rerun, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from recipe_toolkit.rundir import RunDir, write_json
from slurm_site import QUICK, small_recipe

RUN = "2026-11-29T12-00-00-a-ab12"


@pytest.fixture
def site(recipe, monkeypatch):
    """The profile ``plain`` as this site has it, by name."""
    monkeypatch.setenv("RECIPE_CLUSTERS", str(recipe.folder))
    monkeypatch.setenv("HOME", str(recipe.folder))
    path = recipe.folder / "plain.yaml"

    def write(**fields):
        path.write_text(json.dumps({"schema": 1, "name": "plain", "scheduler": "slurm", "runs": "runs", **fields}))
        return path

    return write


def asked(done) -> set[str]:
    return {line for line in done.stdout.splitlines() if line.startswith("#SBATCH")}


def test_the_runs_own_recipe_on_its_own_profile(recipe, locked, site):
    run = locked(RUN)
    site(slurm={"partition": "another"})
    done = recipe("rerun", "last", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not any("--partition=another" in line for line in asked(done))
    # What the lint says of the recipe comes first.
    lines = done.stderr.splitlines()
    lines = lines[lines.index(f"again: {run.id}") :]
    assert "the profile plain has changed since:" in lines
    assert "  slurm.partition: – → another" in lines
    assert "  it is used as it was: --cluster plain takes it as it is" in lines
    assert not any("plan" in line for line in lines if not line.startswith(" ") and "profile" not in line)


def test_another_profile_and_other_values(recipe, locked, site):
    run = locked(RUN)
    site(slurm={"partition": "another"}, models=yaml.safe_load(run.cluster_lock.read_text())["models"])
    done = recipe("rerun", "last", "-c", "plain", "--dry-run", "--set", "roles.decode.args.max-num-seqs=17")
    assert done.returncode == 0, done.stderr
    assert any("--partition=another" in line for line in asked(done))
    assert "  slurm.partition: – → another" in done.stderr
    assert "the plan differs:\n" in done.stderr
    assert "  decode-0.args.max-num-seqs: " in done.stderr


@pytest.mark.parametrize(
    ("was", "words", "rehearsal"),
    [(True, (), True), (False, (), False), (True, ("--no-rehearse",), False), (False, ("--rehearse",), True)],
)
def test_a_rehearsal_is_rehearsed_again_unless_told(recipe, locked, was, words, rehearsal):
    run = locked(RUN, rehearse=was)
    write_json(run.job, {**json.loads(run.job.read_text()), "rehearsal": was})
    done = recipe("rerun", "last", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("#SBATCH --job-name=") and "-rehearsal-" in line for line in asked(done)) == rehearsal
    assert any("gres" in line for line in asked(done)) != rehearsal
    assert ("\nrehearsal: the simulated engine in place of vLLM" in done.stderr) == rehearsal
    assert ("the plan differs" in done.stderr) == (was != rehearsal)


def test_what_another_version_planned_otherwise_is_told(recipe, locked):
    run = locked(RUN)
    write_json(run.job, {**json.loads(run.job.read_text()), "toolkit": "0.0.1"})
    plan = json.loads(run.plan.read_text())
    plan["time_limit_s"] += 60
    write_json(run.plan, plan)
    done = recipe("rerun", "last", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "recipe-toolkit was 0.0.1, and is " in done.stderr
    assert "the plan differs:\n  time_limit_s: " in done.stderr


def test_what_is_missing_is_named(recipe, locked):
    run = locked(RUN)
    run.cluster_lock.unlink()
    done = recipe("rerun", "last", "--dry-run")
    assert done.returncode == 1
    assert "holds no cluster.lock.yaml" in done.stderr
    assert "hint: name a profile" in done.stderr
    run.recipe_lock.unlink()
    assert "holds no recipe.lock.yaml" in recipe("rerun", "last", "--dry-run").stderr
    run.recipe_lock.write_text("schema: 1\nname: [\n")
    broken = recipe("rerun", "last", "--dry-run", "-c", "local")
    assert broken.returncode == 1
    assert "recipe.lock.yaml:" in broken.stderr


def test_a_plan_that_cannot_be_read_does_not_keep_a_run_from_running_again(recipe, locked):
    run = locked(RUN)
    run.plan.write_text("{")
    done = recipe("rerun", "last", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "the plan cannot be compared: " in done.stderr


def test_from_an_archive_on_this_machine(recipe):
    """A run, its archive, and from that alone the same run again."""
    (recipe.folder / "tiny.yaml").write_text(json.dumps(small_recipe(QUICK)))
    first = recipe("submit", "tiny.yaml", "-c", "local", "--wait", "--json", timeout=120)
    assert first.returncode == 0, first.stdout + first.stderr
    assert recipe("collect", "last", "-o", "it.tar.gz").returncode == 0
    second = recipe("rerun", "it.tar.gz", "--wait", "--json", timeout=120)
    assert second.returncode == 0, second.stdout + second.stderr
    one, two = (json.loads(done.stdout) for done in (first, second))
    assert (two["state"], two["points"]) == ("done", one["points"])
    assert two["id"] != one["id"]
    assert second.stderr.splitlines()[0] == f"again: {one['id']}"
    assert "differs" not in second.stderr
    runs = [RunDir(Path(state["folder"])) for state in (one, two)]
    assert runs[0].recipe_lock.read_bytes() == runs[1].recipe_lock.read_bytes()
    assert runs[0].plan.read_bytes() == runs[1].plan.read_bytes()
    assert recipe("diff", one["id"], two["id"]).returncode == 0
