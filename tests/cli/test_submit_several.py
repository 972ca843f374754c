"""recipe submit with several recipes and with what waits in the queue, on a Slurm that replays recorded answers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_site import small_recipe
from submit_support import make_run, wait_until

RECIPE = Path(sys.executable).with_name("recipe")
ALL = ["a.yaml", "b.yaml", "c.yaml"]


@pytest.fixture
def site(recipe, fake_slurm):
    """Three recipes and a profile; sbatch gives 101, 102, 103."""
    for name in ALL:
        (recipe.folder / name).write_text(json.dumps(small_recipe(name=f"small-{name[0]}")))
    profile = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "runs"}
    (recipe.folder / "site.yaml").write_text(json.dumps(profile))
    for call in (1, 2, 3):
        fake_slurm.says("sbatch", f"{100 + call}\n", call=call)
    recipe.slurm = fake_slurm
    return recipe


def submit(site, *words):
    return site("submit", *words, "-c", "./site.yaml")


def options(site, name: str) -> list[str | None]:
    """The value of an option of sbatch in each script so far, None where it is not there."""
    scripts = [call["script"] for call in site.slurm.calls("sbatch")]
    found = [re.search(rf"^#SBATCH --{name}(?:=(.*))?$", script, re.MULTILINE) for script in scripts]
    # Quoted as a shell would, and read so by sbatch.
    return ["".join(shlex.split(match[1] or "")) if match else None for match in found]


def test_an_id_a_line_in_the_order_given(site):
    done = submit(site, *ALL)
    assert done.returncode == 0, done.stderr
    assert [line.split("-")[-2] for line in done.stdout.splitlines()] == ["a", "b", "c"]
    assert options(site, "dependency") == [None, None, None]
    lines = [json.loads(line) for line in submit(site, "a.yaml", "a.yaml", "--json", "--dry-run").stdout.splitlines()]
    assert [line["file"] for line in lines] == ["a.yaml", "a.yaml"]
    assert lines[0]["script"].startswith("#!/bin/bash\n")


def test_json_is_an_object_a_line(site):
    lines = [json.loads(line) for line in submit(site, *ALL, "--json").stdout.splitlines()]
    assert [line["job_id"] for line in lines] == ["101", "102", "103"]


def test_one_that_is_refused_keeps_all_back_and_every_problem_is_told(site):
    for name in ("b.yaml", "c.yaml"):
        (site.folder / name).write_text(json.dumps({**small_recipe(), f"nonsense-{name[0]}": 1}))
    done = submit(site, *ALL)
    assert (done.returncode, done.stdout) == (1, "")
    assert "b.yaml:1:" in done.stderr
    assert "nonsense-c" in done.stderr
    assert site.slurm.calls() == []
    assert not (site.folder / "runs").exists()


def test_at_most_two_at_once_by_dependencies(site):
    site.slurm.says("sbatch", "104\n")
    assert submit(site, *ALL, "a.yaml", "--at-once", "2").returncode == 0
    assert options(site, "dependency") == [None, None, "afterany:101", "afterany:102"]
    shown = submit(site, *ALL, "--at-once", "2", "--dry-run").stdout
    assert "#SBATCH --dependency='afterany:<job of a.yaml>'\n" in shown


def test_at_once_is_refused_where_any_of_several_jobs_would_do(site):
    """Slurm reads `1?2,3` as any of the three: the third would no longer be waited for."""
    spec = ["-d", "afterok:1?afterok:2"]
    done = submit(site, *ALL, "--at-once", "2", *spec)
    assert done.returncode == 2
    assert "join the dependencies with `,`" in done.stderr
    assert site.slurm.calls("sbatch") == []
    assert submit(site, *ALL, "--at-once", "3", *spec).returncode == 0
    assert options(site, "dependency") == ["afterok:1?afterok:2"] * 3


def test_secrets_that_the_shell_does_not_have_are_told(site, monkeypatch):
    profile = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "runs", "secrets": ["TOKEN_A", "TOKEN_B"]}
    (site.folder / "site.yaml").write_text(json.dumps(profile))
    monkeypatch.setenv("TOKEN_A", "hush-hush")
    monkeypatch.delenv("TOKEN_B", raising=False)
    done = submit(site, "a.yaml")
    assert done.returncode == 0
    assert "where TOKEN_B is not set: programs will not find it" in done.stderr
    assert "TOKEN_A" not in done.stderr
    assert "hush-hush" not in done.stdout + done.stderr
    assert "TOKEN_B" not in submit(site, "a.yaml", "--rehearse").stderr
    monkeypatch.setenv("TOKEN_B", "too")
    assert "warning" not in submit(site, "a.yaml").stderr


def test_a_refusal_in_the_middle_says_what_was_submitted(site):
    site.slurm.says("sbatch", err="sbatch: error: Batch job submission failed: Job violates limit\n", code=1, call=2)
    done = submit(site, *ALL)
    assert done.returncode == 1
    (first,) = done.stdout.splitlines()
    assert f"submitted before it: {first}\n" in done.stderr
    assert "not submitted either: c.yaml" in done.stderr
    assert len(site.slurm.calls("sbatch")) == 2


def test_waiting_for_several_exits_with_the_first_that_is_not_well(site):
    site.slurm.holds("101|COMPLETED|None|n1|0|0", "102|TIMEOUT|None|n1|0|0", "103|NODE_FAIL|None|n1|0|0")
    done = submit(site, *ALL, "--wait", "--json")
    states = {state["job_id"]: state["state"] for state in map(json.loads, done.stdout.splitlines())}
    # The first says that it is complete, and wrote nothing.
    assert states == {"101": "failed", "102": "timeout", "103": "failed"}
    assert done.returncode == 100
    ids = [path.name for path in sorted((site.folder / "runs").iterdir())]
    assert site("wait", ids[1], ids[2]).returncode == 105
    assert site("wait", ids[2], ids[1], ids[2]).returncode == 100


def test_several_are_cancelled_and_one_that_is_refused_is_told(site):
    assert submit(site, *ALL).returncode == 0
    site.slurm.holds(*(f"{job}|RUNNING|None|n1|0|0" for job in (101, 102, 103)))
    site.slurm.says("scancel", err="scancel: error: Access/permission denied\n", code=1, call=1)
    site.slurm.says("scancel")
    ids = [path.name for path in sorted((site.folder / "runs").iterdir())]
    process = subprocess.Popen(
        [RECIPE, "cancel", *ids], cwd=site.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        wait_until(lambda: len(site.slurm.calls("scancel")) == 3)
        site.slurm.holds(*(f"{job}|CANCELLED|None|n1|0|0" for job in (102, 103)))
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out.count(": cancelled") == 2
    assert "permission denied" in err


# --- what a job waits for


@pytest.mark.parametrize(
    "spec",
    [
        "afterok:7",
        "afterany:7:8_1,afternotok:9+1",
        "after:7+10",
        "singleton",
        "afterok:7?afterany:8",
        "aftercorr:7",
        "afterburstbuffer:7,singleton",
    ],
)
def test_what_sbatch_takes_is_handed_on(site, spec):
    assert submit(site, "a.yaml", "-d", spec).returncode == 0
    assert options(site, "dependency") == [spec]
    assert options(site, "kill-on-invalid-dep") == ["yes"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("7", "'7' is none of sbatch's dependencies"),
        ("afterok", "'afterok' names no job"),
        ("afterok:", "'afterok:' names no job"),
        ("afterokay:7", "is none of sbatch's"),
        ("afterok:7,afterany:8?singleton", "both `,`"),
        ("", "is none of sbatch's"),
        ("singleton:7", "is none of sbatch's"),
    ],
)
def test_what_sbatch_would_not_take_is_a_usage_error(site, spec, why):
    done = submit(site, "a.yaml", f"--dependency={spec}")
    assert done.returncode == 2
    assert "--dependency" in done.stderr
    assert why in done.stderr
    assert site.slurm.calls() == []


def test_runs_stand_for_their_jobs(site):
    runs = site.folder / "runs"
    make_run(runs, "2026-11-29T12-00-00-one-ab12", job={"scheduler": "slurm", "job_id": "55"}, state="running")
    make_run(runs, "2026-11-29T13-00-00-two-cd34", job={"scheduler": "slurm", "job_id": "56"}, state="running")
    site.slurm.holds("55|RUNNING|None|n1|0|0", "56|PENDING|Priority||0|0")
    assert submit(site, "a.yaml", "-d", "afterok:one-ab12:9,afterany:last").returncode == 0
    # `last` is the last run, not one of those that are submitted now; MINUTES follow a run as they follow a job
    assert submit(site, "b.yaml", "c.yaml", "-d", "after:two-cd34+5", "--at-once", "1").returncode == 0
    assert options(site, "dependency") == ["afterok:55:9,afterany:56", "after:56+5", "after:56+5,afterany:102"]


@pytest.mark.parametrize(
    ("kind", "state", "dependency"),
    [
        ("afterok", "done", None),
        ("afterany", "failed", None),
        ("afternotok", "failed", None),
        ("after", "cancelled", None),
        ("afterok", "failed", "never"),
        ("afternotok", "done", "never"),
    ],
)
def test_a_run_that_has_ended_is_judged_here(site, kind, state, dependency):
    """Slurm forgets its job after minutes, and would take the dependency for fulfilled, whichever it is."""
    make_run(site.folder / "runs", "2026-11-29T12-00-00-one-ab12", state=state, valid=True)
    site.slurm.forgets()
    done = submit(site, "a.yaml", "-d", f"{kind}:one-ab12")
    if dependency is None:
        assert done.returncode == 0, done.stderr
        assert options(site, "dependency") == [None]
        return
    assert done.returncode == 1
    assert f"has ended as {state}, so this one would never start" in done.stderr
    assert site.slurm.calls("sbatch") == []
    # any of several: the other is left
    assert submit(site, "a.yaml", "-d", f"{kind}:one-ab12?afterok:9").returncode == 0
    assert options(site, "dependency") == ["afterok:9"]


def test_a_run_that_is_not_there_or_not_slurms(site):
    me = os.getpid()
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    job = {"scheduler": "local", "job_id": str(me), "pid": me, "start_ticks": ticks, "host": os.uname().nodename}
    make_run(site.folder / "runs", "2026-11-29T12-00-00-one-ab12", job=job, state="running")
    assert "no run 'nope'" in submit(site, "a.yaml", "-d", "afterok:nope").stderr
    done = submit(site, "a.yaml", "-d", "afterok:last")
    assert done.returncode == 1
    assert "runs outside Slurm" in done.stderr
    assert site.slurm.calls("sbatch") == []


def test_singleton_goes_by_the_recipes_name(site):
    submit(site, "a.yaml", "-d", "singleton")
    submit(site, "a.yaml")
    names = options(site, "job-name")
    assert names[0] == "small-a"
    assert re.fullmatch(r"small-a-[0-9a-f]{4}", names[1])


def test_a_held_job_is_told_with_what_releases_it(site):
    done = submit(site, "a.yaml", "--hold")
    assert options(site, "hold") == [""]
    assert "held until you say: scontrol release 101" in done.stderr


@pytest.mark.parametrize("words", [["--hold"], ["-d", "afterok:7"]])
def test_where_there_is_no_queue_nothing_can_wait_in_it(site, words):
    done = site("submit", "a.yaml", "-c", "local", *words)
    assert done.returncode == 1
    assert "profile local submits to no queue" in done.stderr
    assert not (site.folder / "runs").exists()


def test_at_once_without_a_queue_needs_somebody_who_waits(site):
    done = site("submit", *ALL, "-c", "local", "--at-once", "1")
    assert done.returncode == 2
    assert "needs --wait or --follow" in done.stderr
    assert not (site.folder / "runs").exists()


@pytest.mark.parametrize("option", ["hold", "dependency"])
def test_a_profile_does_not_decide_what_each_submission_does(site, option):
    profile = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "runs"}
    profile["slurm"] = {"directives": {option: "x"}}
    (site.folder / "site.yaml").write_text(json.dumps(profile))
    assert f"is set by recipe submit --{option}" in submit(site, "a.yaml").stderr


# --- Ctrl-C


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_during_the_second_submission(site, presses):
    """It is not cut in two, and the third recipe is not submitted; twice, and both runs are cancelled."""
    site.slurm.says("sbatch", "102\n", sleep=1.5, call=2)
    site.slurm.says("scancel")
    process = subprocess.Popen(
        [RECIPE, "submit", *ALL, "-c", "./site.yaml"],
        cwd=site.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        wait_until(lambda: len(site.slurm.calls("sbatch")) == 2)
        os.killpg(process.pid, signal.SIGINT)
        if presses == 2:
            line = ""
            while "Ctrl-C again" not in line:
                line = process.stderr.readline()
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert len(out.splitlines()) == 2
    assert len(site.slurm.calls("sbatch")) == 2
    cancelled = [call["argv"] for call in site.slurm.calls("scancel")]
    assert cancelled == ([["101"], ["102"]] if presses == 2 else [])
    assert ("is told to end" in err) == (presses == 2)
    assert "Traceback" not in err
