"""What a client takes of its node, from /proc of real processes."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from recipe_toolkit.run import procfs
from recipe_toolkit.run.client_meter import Meter
from recipe_toolkit.run.client_watch import SENDERS

BUSY = "import sys; print('on', flush=True)\nwhile True: pass"
IDLE = "import sys, time; print('on', flush=True); time.sleep(60)"


@pytest.mark.parametrize(("program", "busy"), [(BUSY, True), (IDLE, False)])
def test_a_busy_thread_is_told_from_an_idle_one(program: str, busy: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            meter = Meter()
            assert meter.sample(lambda: [child.pid])["taken"] is None
            limit = time.monotonic() + 20
            while True:
                before = time.monotonic()
                while time.monotonic() - before < 0.5:
                    time.sleep(0.05)
                taken = meter.sample(lambda: [child.pid])["taken"]
                # On a machine with other work it runs or waits; both are all of its time.
                if not busy or taken["busiest"] + taken["waiting"] > 0.8 or time.monotonic() > limit:
                    break
        finally:
            child.kill()
    assert (taken["busiest"] + taken["waiting"] > 0.8) is busy
    assert taken["cores"] == taken["busiest"]
    assert procfs.threads([child.pid]) == {}


def test_the_busiest_thread_is_one_of_all() -> None:
    meter = Meter()
    assert meter.read(10.0, {(1, 1): (0, 0), (1, 2): (5, 5)}) is None
    taken = meter.read(12.0, {(1, 1): (500_000_000, 0), (1, 2): (1_000_000_005, 200_000_005), (3, 3): (100_000_000, 0)})
    assert taken == {"cores": 0.8, "busiest": 0.5, "waiting": 0.1}
    assert meter.read(13.0, {}) is None


def test_of_a_client_of_many_processes_those_that_send_count() -> None:
    """As AIPerf's titles are: its timing manager spins, whatever the load."""
    titles = ("aiperf worker_140c8dc8", "aiperf worker_manager", "aiperf timing_manager")
    ours = [title for title in titles if re.fullmatch(SENDERS["aiperf"], title)]
    assert ours == ["aiperf worker_140c8dc8"]
    with subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            for only, found in ((".*time.sleep.*", True), ("aiperf", False)):
                meter = Meter(only)
                meter.sample(lambda: [child.pid])
                assert (meter.sample(lambda: [child.pid])["taken"] is not None) is found
        finally:
            child.kill()
