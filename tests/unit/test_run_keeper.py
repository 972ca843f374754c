"""Keepers: whatever is killed, no process of the program is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from recipe_toolkit.errors import RunError
from recipe_toolkit.run import process, procfs

# A program with a child, a grandchild in a session of its own whose parent is gone, and one that ignores TERM.
FAMILY = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
subprocess.Popen(sleep)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(300)
    os._exit(0)
print("ready", flush=True)
{then}
"""


def family(then: str = "time.sleep(300)") -> str:
    return FAMILY.format(then=then)


def marked(mark: str) -> list[int]:
    """Living processes with the variable KEEPER_TEST=mark."""
    found = []
    for item in procfs.table().values():
        try:
            environ = Path(f"/proc/{item.pid}/environ").read_bytes()
        except OSError:
            continue
        if f"KEEPER_TEST={mark}\0".encode() in environ and item.state not in "ZX":
            found.append(item.pid)
    return found


def eventually(condition: Callable[[], object], timeout: float = 15.0) -> None:
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, "condition does not hold"
        time.sleep(0.02)


def spec(folder: Path, code: str, *arguments: str) -> process.Spec:
    env = {**os.environ, "KEEPER_TEST": str(folder)}
    return process.Spec("p", [sys.executable, "-c", code, *arguments], env, folder / "p.log", folder)


def under_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 40.0)

    asyncio.run(main())


def running(folder: Path, child: process.Child) -> bool:
    return "ready" in child.tail() and (folder / "pid").exists() and (folder / "pid").read_text() != ""


def test_stop_ends_the_whole_tree(tmp_path: Path) -> None:
    async def work() -> None:
        child = process.start(spec(tmp_path, family(), str(tmp_path / "pid")))
        assert await child.started() == child.pid
        while not running(tmp_path, child):
            await asyncio.sleep(0.02)
        assert len(child.tree()) == 3
        child.stop(1.0)
        assert await child.exited == -signal.SIGTERM
        await child.gone
        assert child.left == []

    under_loop(work)
    assert marked(str(tmp_path)) == []


def test_left_overs_of_a_program_that_ends_by_itself(tmp_path: Path) -> None:
    async def work() -> None:
        code = family("while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nsys.exit(3)")
        child = process.start(spec(tmp_path, code, str(tmp_path / "pid")))
        assert await child.exited == 3
        child.stop(0)  # not the grace of an orphan
        await child.gone

    under_loop(work)
    assert marked(str(tmp_path)) == []


def test_an_order_to_a_keeper_that_has_just_ended(tmp_path: Path) -> None:
    """What could not be written to it stays in the pipe's buffer, and is in the way when that is closed."""

    async def work() -> None:
        child = process.start(spec(tmp_path, "pass"))
        assert await child.exited == 0
        # The loop does not run meanwhile, so that the agent has not seen the end.
        eventually(lambda: procfs.table()[child.keeper_pid].state in "ZX")
        child.stop(0)
        await asyncio.wait_for(child.gone, 10)

    under_loop(work)


def test_a_killed_keeper(tmp_path: Path) -> None:
    async def work() -> None:
        process.become_subreaper()
        child = process.start(spec(tmp_path, family(), str(tmp_path / "pid")))
        while not running(tmp_path, child):
            await asyncio.sleep(0.02)
        os.kill(child.keeper_pid, signal.SIGKILL)
        assert await child.exited == -signal.SIGKILL
        await child.gone
        assert child.left == []

    under_loop(work)
    assert marked(str(tmp_path)) == []


AGENT = """
import asyncio, os, sys
from pathlib import Path
from recipe_toolkit.run import process
async def main():
    folder = Path(sys.argv[1])
    child = process.start(process.Spec("p", [sys.executable, "-c", sys.argv[2], str(folder / "pid")],
                                       {**os.environ, "KEEPER_TEST": str(folder)}, folder / "p.log", folder))
    await child.started()
    await child.gone
asyncio.run(main())
"""


def test_a_killed_agent(tmp_path: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path), family()])
    try:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        eventually(lambda: len(marked(str(tmp_path))) == 4)  # with the keeper
        agent.kill()
        # One ignores TERM, so this takes the orphan's grace.
        eventually(lambda: marked(str(tmp_path)) == [], process.ORPHAN_GRACE_S + 10.0)
    finally:
        agent.kill()
        agent.wait()


def test_signals_to_the_keeper_do_nothing(tmp_path: Path) -> None:
    """Slurm may signal every process of a step; only the agent decides what that means."""

    async def work() -> None:
        child = process.start(spec(tmp_path, "import time; print('up', flush=True); time.sleep(300)"))
        pid = await child.started()
        while "up" not in child.tail():
            await asyncio.sleep(0.02)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(child.keeper_pid, number)
        os.kill(pid, signal.SIGUSR2)  # the time limit's warning, which would end a program that does not know it
        await asyncio.sleep(0.3)
        assert not child.exited.done()
        child.stop(5.0)
        assert await child.exited == -signal.SIGTERM
        await child.gone

    under_loop(work)


@pytest.mark.parametrize("killed", ["nothing", "keeper", "agent"])
def test_the_clean_up_is_run_whoever_ends_it(tmp_path: Path, killed: str) -> None:
    """As for a container, which a daemon keeps running when the program that asked for it is killed."""
    mark = tmp_path / "cleaned"
    code = f"""
import asyncio, os, signal, sys
from pathlib import Path
from recipe_toolkit.run import process
async def main():
    process.become_subreaper()
    sleep = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"]
    folder = Path({str(tmp_path)!r})
    spec = process.Spec("p", sleep, dict(os.environ), folder / "p.log", folder, ["touch", {str(mark)!r}])
    child = process.start(spec)
    await child.started()
    while "up" not in child.tail():
        await asyncio.sleep(0.01)
    if {killed!r} == "agent":
        os.kill(os.getpid(), signal.SIGKILL)
    elif {killed!r} == "keeper":
        os.kill(child.keeper_pid, signal.SIGKILL)
    else:
        child.stop(5.0)
    await child.gone
    assert child.unclean is None
    assert os.path.exists({str(mark)!r})
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    assert done.returncode == (-signal.SIGKILL if killed == "agent" else 0)
    eventually(mark.exists)


def test_a_daemon_may_make_a_container_after_its_client_is_killed(tmp_path: Path) -> None:
    """So its removal is repeated: the first one may have come too soon."""
    removals = tmp_path / "removals"
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho removed >>{removals}\n")
    docker.chmod(0o755)

    async def work() -> None:
        spec = process.Spec("p", ["sleep", "300"], dict(os.environ), tmp_path / "p.log", tmp_path, [str(docker)])
        child = process.start(spec)
        await child.started()
        child.stop(1.0)
        await child.gone
        assert child.unclean is None

    under_loop(work)
    assert len(removals.read_text().split()) > 3


@pytest.mark.parametrize(
    ("cleanup", "text"), [(["false"], "false ended with 1"), (["/no/x"], "/no/x ended with 127 No")]
)
def test_a_clean_up_that_fails_is_told(tmp_path: Path, cleanup: list[str], text: str) -> None:
    async def work() -> None:
        child = process.start(process.Spec("p", ["true"], dict(os.environ), tmp_path / "p.log", tmp_path, cleanup))
        assert await child.exited == 0
        await child.gone
        assert text in str(child.unclean)

    under_loop(work)


@pytest.mark.parametrize("code", [0, 1])
def test_a_clean_up_speaks_only_if_it_fails(tmp_path: Path, code: int) -> None:
    async def work() -> None:
        cleanup = ["sh", "-c", f"echo found nothing >&2; echo at all; exit {code}"]
        command = ["echo", "measured"]
        child = process.start(process.Spec("p", command, dict(os.environ), tmp_path / "p.log", tmp_path, cleanup))
        await child.gone

    under_loop(work)
    said = "found nothing\nat all\n" if code else ""
    assert (tmp_path / "p.log").read_text() == f"measured\n{said}"


@pytest.mark.parametrize(("argv", "text"), [("/no/such/file", "No such file"), ("/etc/passwd", "Permission")])
def test_what_cannot_be_executed(tmp_path: Path, argv: str, text: str) -> None:
    async def work() -> None:
        child = process.start(process.Spec("p", [argv], dict(os.environ), tmp_path / "p.log", tmp_path))
        with pytest.raises(RunError, match=f"cannot execute {argv}: {text}"):
            await child.started()
        await child.gone

    under_loop(work)


@pytest.mark.parametrize(
    ("code", "exit_code"), [("raise SystemExit(9)", 9), ("import os; os.kill(os.getpid(), 11)", -11)]
)
def test_exit_codes(tmp_path: Path, code: str, exit_code: int) -> None:
    async def work() -> None:
        child = process.start(spec(tmp_path, code))
        assert await child.exited == exit_code
        await child.gone

    under_loop(work)


def test_a_second_start_reads_its_own_part_of_the_log(tmp_path: Path) -> None:
    async def work() -> None:
        for word in ("first", "second"):
            child = process.start(spec(tmp_path, f"print({word!r})"))
            await child.gone
            assert child.tail() == f"{word}\n"

    under_loop(work)
    assert (tmp_path / "p.log").read_text() == "first\nsecond\n"
