"""recipe submit --cluster local: a job of this machine, which outlives the command and the terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.cancel import cancel, who_kills
from slurm_site import LONG, QUICK, small_recipe
from submit_support import wait_until
from terminal import Terminal

RECIPE = Path(sys.executable).with_name("recipe")


@pytest.fixture
def local(recipe):
    """Submits recipes; what still runs in the end is killed by its session."""

    def submit(what, *words):
        (recipe.folder / "tiny.yaml").write_text(json.dumps(what))
        done = recipe("submit", "tiny.yaml", "-c", "local", "--json", *words, SLURM_JOB_ID="1", SLURM_NODEID="5")
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)["folder"])

    submit.recipe = recipe
    yield submit
    for path in recipe.folder.glob("runs/*/job.json"):
        for pid in session(json.loads(path.read_text())["pid"]):
            os.kill(pid, signal.SIGKILL)


def session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and fields[0] not in "ZX" and int(fields[3]) == leader:
            found.append(int(entry.name))
    return found


def state(run: Path) -> dict:
    path = run / "state.json"
    return json.loads(path.read_text()) if path.exists() else {}


def started(run: Path, process: str) -> bool:
    path = run / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return any(event["event"] == "process_started" and event["process"] == process for event in events)


def test_a_run_of_two_local_nodes(local):
    run = local(small_recipe(QUICK))
    done = local.recipe("wait", "last", "--json", "--timeout", "2m")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["points"] == {"c0": "done"}
    assert [node["address"] for node in state(run)["nodes"]] == ["127.0.0.1", "127.0.0.2"]
    job = json.loads((run / "job.json").read_text())
    assert set(job) >= {"scheduler", "job_id", "host", "pid", "start_ticks", "submitted"}
    wait_until(lambda: not session(job["pid"]), what="an end of the controller")


def test_the_terminals_ctrl_c_and_its_end_do_not_reach_the_run(local):
    (local.recipe.folder / "tiny.yaml").write_text(json.dumps(small_recipe(LONG)))
    process = subprocess.Popen(
        [RECIPE, "submit", "tiny.yaml", "-c", "local", "--follow"],
        cwd=local.recipe.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        run = local.recipe.folder / "runs" / process.stdout.readline().strip()
        wait_until(lambda: started(run, "bench-c0"), 60)
        # As a terminal does: to the whole foreground group, and then its hang-up.
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert f"recipe wait --follow {run.name}" in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, signal.SIGHUP)
    job = json.loads((run / "job.json").read_text())
    assert session(job["pid"])
    assert json.loads(local.recipe("status", "last", "--json").stdout)["state"] == "running"
    assert local.recipe("cancel", "last").returncode == 0
    assert local.recipe("wait", "last").returncode == 103
    assert "it had ended already" in local.recipe("cancel", "last").stdout
    wait_until(lambda: not session(job["pid"]), what="an end of the controller")


def test_a_run_cancelled_before_its_agents_are_up(local):
    local(small_recipe(LONG))
    cancelled = local.recipe("cancel", "last")
    assert (cancelled.returncode, ": cancelled\n" in cancelled.stdout) == (0, True), cancelled.stdout
    assert local.recipe("wait", "last").returncode == 103


def test_what_does_not_listen_to_cancel_is_named(local):
    """A lead that hangs, on a dead file system say: no Slurm kills it here."""
    run = local(small_recipe(LONG))
    wait_until(lambda: state(run).get("phase") == "bench", what="the first point")
    pids = session(json.loads((run / "job.json").read_text())["pid"])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    told = [now.final for now, _ in cancel([RunDir(run)], patience_s=1.0)]
    said = re.fullmatch(r"kill -9 ([\d ]+) ends what does not listen", who_kills(RunDir(run)))
    assert (told, said is not None) == ([False], True)
    assert sorted(map(int, said[1].split())) == sorted(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert local.recipe("wait", "last").returncode == 103


@pytest.mark.parametrize("verb", ["submit", "wait"])
@pytest.mark.parametrize("presses", [1, 2, 5])
def test_a_second_ctrl_c_cancels(local, verb, presses):
    (local.recipe.folder / "tiny.yaml").write_text(json.dumps(small_recipe(LONG)))
    if verb == "wait":
        local(small_recipe(LONG))
    words = ["submit", "tiny.yaml", "-c", "local", "--follow"] if verb == "submit" else ["wait", "last", "--follow"]
    terminal = Terminal([str(RECIPE), *words], cwd=local.recipe.folder, env=os.environ, deadline_s=60)
    terminal.expect("process started: process bench-c0")
    terminal.type("\x03")
    terminal.expect("Ctrl-C again within 3 s cancels it")
    terminal.expect("come back: recipe wait --follow")
    terminal.expect("end it: +recipe cancel .*\n")  # a further Ctrl-C throws away what is not read yet
    for _ in range(presses - 1):
        terminal.type("\x03")
    assert terminal.code() == 130
    text = terminal.text.replace("^C", "")  # the terminal's echo
    terminal.close()
    assert "Traceback" not in text
    assert ("cancelled: " in text) == (presses > 1)
    if presses > 1:
        assert local.recipe("wait", "last", "--timeout", "1m").returncode == 103
    else:
        assert json.loads(local.recipe("status", "last", "--json").stdout)["state"] == "running"
        assert local.recipe("cancel", "last").returncode == 0


def test_an_interrupted_wait_hands_a_script_the_state(local):
    run = local(small_recipe(LONG))
    process = subprocess.Popen(
        [RECIPE, "wait", "last", "--json"], cwd=local.recipe.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        wait_until(lambda: started(run, "bench-c0"), 60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out)["state"] == "running"
    assert local.recipe("cancel", "last").returncode == 0


def test_several_runs_one_at_a_time(local):
    for name in ("a", "b", "c"):
        (local.recipe.folder / f"{name}.yaml").write_text(json.dumps(small_recipe(QUICK, name=f"small-{name}")))
    done = local.recipe("submit", "a.yaml", "b.yaml", "c.yaml", "-c", "local", "--at-once", "1", "--wait", timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    folders = sorted((local.recipe.folder / "runs").iterdir())
    assert [folder.name.split("-")[-2] for folder in folders] == ["a", "b", "c"]
    times = []
    for folder in folders:
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        times += [event["t"] for event in events if event["event"] in ("run_started", "run_ended")]
    assert times == sorted(times)
    assert len(times) == 6


def test_the_submitting_command_holds_no_pipe_open(local):
    """A script that reads the output sees its end while the run goes on."""
    run = local(small_recipe(LONG))
    assert state(run).get("state") in (None, "running")
    assert local.recipe("cancel", "last").returncode == 0


def test_the_time_limit_warns_before_it_kills(local):
    run = local(small_recipe(QUICK, LONG, time_limit="00:00:20"))
    done = local.recipe("wait", "last", "--timeout", "60")
    assert done.returncode == 105, done.stdout + done.stderr
    assert state(run)["points"]["c0"] == "done"


def test_a_run_whose_controller_and_agents_are_killed_is_lost(local):
    run = local(small_recipe(LONG))
    wait_until(lambda: started(run, "bench-c0"), 60)
    job = json.loads((run / "job.json").read_text())
    agents = [pid for pid in session(job["pid"]) if pid != job["pid"]]
    os.kill(job["pid"], signal.SIGKILL)
    # The agents go on without it, and so does the run.
    assert json.loads(local.recipe("status", "last", "--json").stdout)["state"] == "running"
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    done = local.recipe("wait", "last")
    assert done.returncode == 102
    assert f"process {job['pid']} is gone" in done.stdout


def test_a_run_without_its_controller_can_be_cancelled(local):
    run = local(small_recipe(LONG))
    wait_until(lambda: started(run, "bench-c0"), 60)
    os.kill(json.loads((run / "job.json").read_text())["pid"], signal.SIGKILL)
    assert "cancelled" in local.recipe("cancel", "last").stdout
    assert local.recipe("wait", "last").returncode == 103


def test_a_dry_run_says_what_would_be_started(local):
    (local.recipe.folder / "tiny.yaml").write_text(json.dumps(small_recipe(nodes=3)))
    done = local.recipe("submit", "tiny.yaml", "-c", "local", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("submitit.core._submit") == 3
    assert not (local.recipe.folder / "runs").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_is_the_runs_own_message(local):
    """No file can be replaced any more, and the end is known all the same: its event is short."""
    disk = local.recipe.folder / "runs"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], check=True)
    try:
        fill = "print('x' * 3000000, flush=True); import time; time.sleep(3)"
        # The check of the nodes would want room before it begins.
        profile = {"schema": 1, "name": "here", "scheduler": "local", "runs": "runs", "check": {"bind": False}}
        (local.recipe.folder / "here.yaml").write_text(json.dumps(profile))
        run = local(small_recipe(["python3", "-c", fill]), "-c", "./here.yaml")
        done = local.recipe("wait", "last", "--timeout", "60")
        assert done.returncode == 100, done.stdout + done.stderr
        assert "bench: " in done.stdout
        assert "No space left on device" in done.stdout
        assert str(run) in done.stdout
        job = json.loads((run / "job.json").read_text())
        wait_until(lambda: not session(job["pid"]), what="an end of the controller")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
