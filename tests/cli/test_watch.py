"""recipe watch, on a terminal and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from submit_support import make_run, write_state
from terminal import Terminal

RECIPE = Path(sys.executable).with_name("recipe")
ONE = "2026-11-29T12-00-00-tiny-ab12"


@pytest.fixture
def running(recipe, fake_slurm):
    run = make_run(recipe.folder / "runs", ONE, state="running", phase="ready")
    run.events.write_text('{"t": 1, "event": "phase", "phase": "ready"}\n')
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    return run


def add(run, **event):
    with run.events.open("a") as file:
        file.write(json.dumps({"t": 2, **event}) + "\n")


def test_without_a_terminal_what_happens_is_printed_line_by_line(recipe, running, fake_slurm):
    process = subprocess.Popen([RECIPE, "watch", "last"], cwd=recipe.folder, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline().endswith(" phase ready\n")
        add(running, event="phase", phase="bench")
        assert process.stdout.readline().endswith(" phase bench\n")
        write_state(running, "failed", message="bench: c1 exited with 3")
        fake_slurm.forgets()
        rest = process.stdout.read()
        assert process.wait(timeout=30) == 100
    assert rest == f"{ONE}: failed\n  bench: c1 exited with 3\n"


@pytest.mark.parametrize(
    ("state", "code"), [({"state": "done", "valid": True}, 0), ({"state": "done", "valid": False}, 104)]
)
def test_a_run_that_is_over_is_shown_once(recipe, state, code):
    make_run(recipe.folder / "runs", ONE, **state)
    done = recipe("watch", "last")
    assert (done.returncode, done.stdout.count(ONE)) == (code, 1)


def test_an_unknown_run_is_102_as_for_wait(recipe):
    assert recipe("watch", "nope").returncode == 102


def test_on_a_terminal_it_is_drawn_over_and_over(recipe, running, fake_slurm):
    write_state(running, "running", processes={"serve-0": {"state": "starting", "node": 0}}, points={"c1": "pending"})
    terminal = Terminal([str(RECIPE), "watch", "last"], cwd=recipe.folder, env={**os.environ, "TERM": "xterm"})
    try:
        terminal.expect("serve-0  starting, node 0")
        write_state(running, "running", processes={"serve-0": {"state": "ready", "node": 0}}, points={"c1": "done"})
        terminal.expect("serve-0  ready, node 0")
        terminal.expect("points: 1 of 1 done")
        write_state(running, "done", valid=True)
        fake_slurm.forgets()
        terminal.expect(f"{ONE}: done")
        assert terminal.code() == 0
        assert terminal.text.count("starting") < terminal.text.count(ONE)
    finally:
        terminal.close()


def test_ctrl_c_leaves_the_run_alone(recipe, running, fake_slurm):
    process = subprocess.Popen(
        [RECIPE, "watch", "last"], cwd=recipe.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline().endswith(" phase ready\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert f"recipe cancel {ONE}" in process.stderr.read()
    assert fake_slurm.calls("scancel") == []
