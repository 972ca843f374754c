"""What a host without a scheduler runs: the end of whoever started it is the end of the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from recipe_toolkit.run import seat


@pytest.fixture
def stdin(monkeypatch):
    """A pipe in place of stdin; its writing end."""
    kept, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    yield writing
    os.dup2(kept, 0)
    os.close(kept)


def agent(code):
    process = subprocess.Popen([sys.executable, "-uc", f"{code}\nprint('up')\ntime.sleep(60)"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.stdout.close()
    return process


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def test_words_are_signals(stdin):
    process = agent("import signal, sys, time; signal.signal(signal.SIGUSR2, lambda *_: sys.exit(7))")
    os.write(stdin, b"\nNONSENSE\nUSR2\n")
    assert seat._serve(process) == 7
    os.close(stdin)


def test_an_end_of_stdin_ends_the_agent_and_kills_one_that_does_not(stdin, monkeypatch):
    os.close(stdin)
    assert seat._serve(agent("import time")) == 128 + signal.SIGTERM
    monkeypatch.setenv("RECIPE_KILL_WAIT", "0.2")
    monkeypatch.setattr(seat, "_SPARE_S", 0.0)
    assert seat._serve(agent(STUBBORN)) == 128 + signal.SIGKILL


def test_silence_is_an_end_too(stdin, monkeypatch):
    """A connection that is cut somewhere tells nobody."""
    monkeypatch.setattr(seat, "SILENCE_S", 1.0)
    process = agent("import time")
    began = time.monotonic()
    os.write(stdin, b"\n")
    assert seat._serve(process) == 128 + signal.SIGTERM
    assert time.monotonic() - began > 1.0
    os.close(stdin)
