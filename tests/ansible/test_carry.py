"""How nodes hand a model on: real servers and fetches, each node a folder and an address of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_rig import ANSIBLE

PROGRAMS = ANSIBLE / "roles" / "model_weights" / "files"
FILES = {"a": b"a" * 300_000, "b c": b"b" * 200_000, "sub/empty": b""}
TEXT = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items())
PORT = 8739


class Node:
    """A node of the copy. ``number``: of its address."""

    def __init__(self, folder: Path, number: int) -> None:
        self.root, self.run, self.address = folder / f"m{number}", folder / f"run{number}", f"127.0.0.{number}"
        self.root.mkdir()
        self.run.mkdir()

    def start(self, do: str, **ask: object) -> subprocess.Popen[str]:
        common = {"path": str(self.root), "text": TEXT, "secret": "s3", "port": PORT, "timeout": 60, "stall": 5}
        asked = {**common, "do": do, "dry": False, "origin": "", "stale": True, **ask}
        script = f"import pathlib, sys\nsys.dont_write_bytecode = True\nsys.path.insert(0, {str(PROGRAMS)!r})\n"
        script += f"import carry\ncarry.RUN = pathlib.Path({str(self.run)!r})\ncarry.main({json.dumps(asked)!r})"
        pipe = subprocess.PIPE
        argv = [Path(sys.executable).with_name("python3"), "-"]
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        assert process.stdin
        process.stdin.write(script)
        process.stdin.close()
        process.stdin = None
        return process

    def call(self, do: str, **ask: object) -> tuple[int, str]:
        process = self.start(do, **ask)
        out, err = process.communicate(timeout=60)
        return process.returncode, out + err

    def serve(self, *have: str) -> None:
        for name in have:
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_bytes(FILES[name])
        code, told = self.call("serve", addresses=[self.address], have=have)
        assert code == 0, told

    def plan(self, *senders: Node) -> list:
        return [
            [[name, len(data), [[node.root.name, node.address] for node in senders]] for name, data in FILES.items()]
        ]

    def whole(self) -> bool:
        return all((self.root / name).read_bytes() == data for name, data in FILES.items())


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[list[Node]]:
    """Three nodes of which the first has the model."""
    nodes = [Node(tmp_path, number) for number in (11, 12, 13)]
    try:
        nodes[0].serve(*FILES)
        yield nodes
    finally:
        for node in nodes:
            assert node.call("stop")[0] == 0
            assert not node.run.exists()


def test_a_node_hands_on_what_it_is_still_receiving(chain):
    _, second, third = chain
    second.serve()
    (second.root / ".recipe-incoming").mkdir()
    part = second.root / ".recipe-incoming" / "a"
    part.write_bytes(FILES["a"][:250_000])
    waiting = third.start("fetch", plan=third.plan(second))
    came = third.root / ".recipe-incoming" / "a"
    deadline = time.monotonic() + 30
    while not (came.exists() and came.stat().st_size == 250_000):
        assert time.monotonic() < deadline, waiting.communicate()
        time.sleep(0.01)
    assert waiting.poll() is None
    code, told = second.call("fetch", plan=second.plan(chain[0]))
    assert code == 0, told
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    assert json.loads(out)["bytes"] == 500_000
    assert second.whole()
    assert third.whole()


def test_what_a_node_hands_on_broken_is_mended_by_each(chain):
    _, second, third = chain
    second.serve()
    (second.root / ".recipe-incoming").mkdir()
    (second.root / ".recipe-incoming" / "a").write_bytes(b"x" * 250_000)
    waiting = third.start("fetch", plan=third.plan(second, chain[0]))
    code, told = second.call("fetch", plan=second.plan(chain[0]))
    assert code == 0, told
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    assert second.whole()
    assert third.whole()


def test_a_file_that_is_not_as_it_should_be_is_not_served(chain):
    _, second, third = chain
    (second.root / "a").write_bytes(b"x" * 300_000)
    second.serve("b c", "sub/empty")
    code, told = third.call("fetch", plan=third.plan(second), stall=1)
    assert code == 1
    assert f"waited 1 s for a from m12 ({second.address}): it has nothing of it yet" in told


@pytest.mark.parametrize("end", ["dead", "failed"])
def test_the_first_of_a_chain_is_asked_where_the_node_before_is_gone(chain, end):
    _, second, third = chain
    if end == "failed":
        second.serve()
        plan = [[["a", 300_001, [["m11", chain[0].address]]]]]
        code, told = second.call("fetch", plan=plan, stall=1)
        assert code == 1, told
    code, told = third.call("fetch", plan=third.plan(second, chain[0]))
    assert code == 0, told
    assert third.whole()


def test_nobody_is_served_without_the_secret_nor_what_the_manifest_does_not_name(chain):
    first, second, third = chain
    (first.root / "other").write_text("private")
    code, told = second.call("fetch", plan=second.plan(first), secret="guess", stall=1)
    assert (code, "403 not yours" in told) == (1, True), told
    code, told = third.call("fetch", plan=[[["other", 7, [["m11", first.address]]]]], stall=1)
    assert (code, "403 not yours" in told) == (1, True), told


def test_a_copy_that_nobody_waits_for_any_more_is_ended_by_the_next_one(chain):
    first, second, third = chain
    second.serve()
    left = third.start("fetch", plan=third.plan(second), stall=60)  # the node before never begins
    deadline = time.monotonic() + 30
    while not (third.run / "fetch.pid").exists():
        assert time.monotonic() < deadline, left.communicate()
        time.sleep(0.01)
    third.serve()
    left.communicate(timeout=30)
    assert left.returncode == -signal.SIGTERM
    code, told = third.call("fetch", plan=third.plan(first))
    assert code == 0, told
    assert third.whole()


def test_a_server_that_nobody_asks_for_long_ends(chain):
    _, second, _ = chain
    code, told = second.call("serve", addresses=[second.address], have=[], stall=1)
    assert code == 0, told
    deadline = time.monotonic() + 30
    while second.run.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_copies_at_once_and_a_port_in_use_are_told(chain):
    first, second, _ = chain
    code, told = second.call("serve", addresses=[first.address], have=[])
    assert code == 1
    assert f"cannot listen on {first.address}:{PORT}: " in told
    with contextlib.closing((second.root / ".MANIFEST.sha256.lock").open("w")) as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        code, told = second.call("fetch", plan=second.plan(first))
    assert (code, "another copy is under way here" in told) == (1, True), told
