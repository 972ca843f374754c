"""Ports, /proc, HTTP, logs, environment and facts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.plan.values import Join, Json, Program
from recipe_toolkit.run import environment, facts, handle, http, launch, logs, procfs, tasks
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.environment import Place
from recipe_toolkit.run.journal import Journal
from recipe_toolkit.run.ports import PortBook, port_range
from recipe_toolkit.run.prove import choose_pairs, fresh_prompt
from recipe_toolkit.rundir import RunDir
from runkit import engine, plan

# --- ports


def test_two_books_never_overlap() -> None:
    limits = (15000, 15400)
    books = [PortBook("127.0.0.1", "same seed", limits) for _ in range(3)]
    seen: list[int] = []
    try:
        for book in books:
            found = book.reserve({"serve-0": {"http": 1, "nixl": 16}, "serve-1": {"http": 1, "master": 1}})
            sizes = {"http": 1, "nixl": 16, "master": 1}
            seen += [port + i for blocks in found.values() for name, port in blocks.items() for i in range(sizes[name])]
    finally:
        for book in books:
            book.release()
    assert len(seen) == len(set(seen)) == 3 * 19
    assert all(15000 <= port < 15400 for port in seen)


def test_a_book_of_another_process_is_respected() -> None:
    code = (
        "import sys; from recipe_toolkit.run.ports import PortBook; b = PortBook('127.0.0.1', 'x', (15500, 15510))\n"
        "print(b.reserve({'p': {'a': 8}}), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert "15" in other.stdout.readline()
        book = PortBook("127.0.0.1", "x", (15500, 15510))
        with pytest.raises(RunError, match="no 8 consecutive free ports between 15500 and 15509"):
            book.reserve({"p": {"a": 8}})
        other.kill()
        other.wait()
        # Free again the moment that process is gone.
        assert book.reserve({"p": {"a": 8}})
        book.release()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9", "0.0.0.0", "::"])
def test_a_port_that_somebody_listens_on_is_passed_over(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        book = PortBook("127.0.0.1", "x", (port, port + 1))
        with pytest.raises(RunError):
            book.reserve({"p": {"a": 1}})


@pytest.mark.parametrize(
    ("ephemeral", "expected"),
    [((32768, 60999), (15000, 32768)), ((20000, 65535), (15000, 20000)), ((10000, 60000), (60001, 65536)),
     ((1024, 65535), (15000, 32768))],
)  # fmt: skip
def test_port_range(ephemeral: tuple[int, int], expected: tuple[int, int]) -> None:
    assert port_range(ephemeral) == expected


# --- /proc


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_owns_a_port(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        inodes = procfs.listeners(port)
        assert list(inodes.values()) == [address]
        assert procfs.holds_socket(os.getpid(), inodes)
        assert not procfs.holds_socket(os.getppid(), inodes)
        assert procfs.owner(port) == os.getpid()
    assert procfs.listeners(port) == {}
    assert procfs.owner(port) is None


def test_the_processes_of_a_container(tmp_path: Path) -> None:
    """Their roots are told by a command, which is asked again when they are gone."""
    asked = tmp_path / "asked"
    tell = ["sh", "-c", 'echo asked >>"$ASKED"; cat "$0"; echo 0', str(tmp_path / "pids")]
    outside = handle.Outside(tell, {**os.environ, "ASKED": str(asked)})
    outside.refresh()
    assert outside.pids() == []
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        (tmp_path / "pids").write_text(f"{child.pid}\n")
        outside.refresh()
        limit = time.monotonic() + 10
        while len(outside.pids()) != 2:
            outside.refresh()
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert outside.pids()[0] == child.pid
        assert len(asked.read_text().splitlines()) == 2
        child.communicate(b"\n")
    assert outside.pids() == []
    outside.refresh()
    assert len(asked.read_text().splitlines()) == 3


@pytest.mark.parametrize("command", [[], ["/no/such/runtime", "inspect", "x"], ["sh", "-c", "echo $$; exit 1"]])
def test_no_processes_of_a_container(command: list[str]) -> None:
    outside = handle.Outside(command, os.environ)
    outside.refresh()
    assert outside.pids() == []


def test_descendants_and_activity() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        limit = time.monotonic() + 10
        while len(found := procfs.descendants([os.getpid()])) < 2 or "input" not in procfs.command(found[-1].pid):
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert [item.parent for item in found] == [os.getpid(), child.pid]
        assert procfs.activity([os.getpid()]).ticks > 0
        assert procfs.activity([os.getpid()]).bytes > 0
    assert procfs.stat(child.pid) is None
    assert procfs.activity([child.pid]) == procfs.Activity(0, 0)


# --- HTTP


@contextmanager
def server(*parts: bytes, pause: float = 0.0) -> Iterator[str]:
    """Answers one connection with these bytes, pausing after each part."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                for part in parts:
                    try:
                        connection.sendall(part)
                    except OSError:
                        return
                    stop.wait(pause)

        stop = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        stop.set()
        thread.join()


def get(url: str, timeout: float = 5.0) -> http.Response:
    return asyncio.run(http.get(url, timeout))


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", b'{"a": ', b'"b"}\n'),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n", b'{"a": \r\n5\r\n"b"}\n\r\n0\r\n\r\n'),
        (b"HTTP/1.0 200 OK\r\n\r\n", b'{"a": "b"}\n'),
    ],
)
def test_http_bodies(parts: tuple[bytes, ...]) -> None:
    with server(*parts) as url:
        answer = get(url + "/x")
    assert (answer.status, answer.json()) == (200, {"a": "b"})


def test_http_deadline_is_for_the_whole_exchange() -> None:
    """A server that drips a byte now and then does not get more time for it."""
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", *[b"x"] * 100, pause=0.1) as url:
        started = time.monotonic()
        with pytest.raises(http.HttpError, match=r"no answer from .* within 0\.5 s"):
            get(url, 0.5)
        assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    ("parts", "text"),
    [((b"SSH-2.0-x\r\n",), "http://127"), ((b"junk\r\n\r\n",), "junk"),
     ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",), "http://127"),
     ((b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",), "more than")],
)  # fmt: skip
def test_http_garbage(parts: tuple[bytes, ...], text: str) -> None:
    with server(*parts) as url, pytest.raises(http.HttpError, match=text):
        get(url)


def test_http_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(http.HttpError, match="Connection refused"):
        get(f"http://127.0.0.1:{port}")
    with pytest.raises(http.HttpError, match="is not http"):
        get("https://127.0.0.1:1/")
    with pytest.raises(http.HttpError, match="not JSON"):
        http.Response(200, b"<html>").json()


# --- logs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INFO up\nINFO fine\n", None),
        ("Traceback (most recent call last):\n  File x\nValueError: no weights\nmore", "ValueError: no weights"),
        ("(EngineCore pid=7) ERROR 11-29 x\ntorch.OutOfMemoryError: CUDA out of memory\nRuntimeError: died",
         "torch.OutOfMemoryError: CUDA out of memory"),
        ("usage: vllm\nvllm serve: error: unrecognized arguments: --x\n",
         "vllm serve: error: unrecognized arguments: --x"),
        ("OSError: [Errno 98] Address already in use\nRuntimeError: Engine core failed",
         "OSError: [Errno 98] Address already in use"),
        ("ModuleNotFoundError: No module named 'vllm'", "ModuleNotFoundError: No module named 'vllm'"),
        ("RuntimeError: first\nKeyError: second", "RuntimeError: first"),
    ],
)  # fmt: skip
def test_the_cause_in_a_log(text: str, expected: str | None) -> None:
    assert logs.cause(text) == expected


def test_the_end_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert logs.tail(path) == ""
    path.write_bytes(b"x" * 300_000 + b"\n\xff end\n\n")
    assert len(logs.tail(path)) < 270_000
    assert logs.last_lines(logs.tail(path), 1) == ["\ufffd end"]
    assert logs.tail(path, since=300_001) == "\ufffd end\n\n"
    path.write_text("\x1b[2mnow\x1b[0m \x1b[31mERROR\x1b[0m no worker\n\x1b[32mINFO\x1b[0m bye\n")
    assert logs.cause(logs.tail(path)) == "now ERROR no worker"


# --- environment


def test_the_place_is_read_from_the_scheduler() -> None:
    local = {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_GLOBALID": "2", "SUBMITIT_LOCAL_NTASKS": "3"}
    # A local run inside an allocation is local.
    assert environment.place({**local, "SLURM_JOB_ID": "5"}) == Place("local", 2, 3, 0, "")
    slurm = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "5", "SLURM_NODEID": "1", "SLURM_NNODES": "4"}
    assert environment.place(slurm) == Place("slurm", 1, 4, 0, "5")
    assert environment.place({**slurm, "SLURM_RESTART_COUNT": "2"}).attempt == 2
    with pytest.raises(RunError, match="does not know its node"):
        environment.place({})


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.node_address(Place("local", 4, 5, 0, ""), None) == ("127.0.0.5", "lo")
    assert environment.node_address(Place("slurm", 0, 2, 0, ""), "lo") == ("127.0.0.1", "lo")
    with pytest.raises(RunError, match=r"interface 'nope0' of .* has no IPv4 address"):
        environment.node_address(Place("slurm", 0, 2, 0, ""), "nope0")
    monkeypatch.setattr(environment, "_host_address", lambda: None)
    monkeypatch.setattr(environment, "_routed_address", lambda: "127.0.0.1")
    assert environment.node_address(Place("slurm", 0, 1, 0, ""), None) == ("127.0.0.1", "lo")
    with pytest.raises(RunError, match="has no address but loopback"):
        environment.node_address(Place("slurm", 0, 2, 0, ""), None)
    with pytest.raises(RunError, match=r"no interface of .* holds 203\.0\.113\.9"):
        environment.interface_of("203.0.113.9")


def test_interfaces_by_address() -> None:
    held = environment.addresses()
    assert ("lo", "127.0.0.1") in held
    assert all(environment.interface_of(address) == name for name, address in held if not address.startswith("127."))


def test_what_programs_inherit() -> None:
    base = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "1",
        "PMI_RANK": "0",
        "SUBMITIT_X": "1",
        "TOKEN": "t",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert environment.child_environment(base, {"A": "b"}, ["TOKEN"]) == {"PATH": "/bin", "A": "b"}
    given = environment.child_environment({"HF_HUB_OFFLINE": "1", "X": "1"}, {"X": "2"}, ["HF_HUB_OFFLINE"])
    assert given == {"X": "2"}
    given = environment.child_environment({"NO_PROXY": "site"}, {"NO_PROXY": "10.0.0.1", "no_proxy": "10.0.0.1"}, [])
    assert given == {"NO_PROXY": "site,10.0.0.1", "no_proxy": "10.0.0.1"}


# --- facts


def gpu_plan(engine_kind: str = "vllm") -> Plan:
    return dataclasses.replace(plan([engine("serve-0", 0)], nodes=2), device="gpu", engine=engine_kind)


@pytest.mark.parametrize(
    ("where", "environ", "expected"),
    [
        (Place("slurm", 1, 2, 0, "1"), {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, "01234567"),
        (Place("slurm", 1, 2, 0, "1"), {"SLURM_JOB_GPUS": "0-7"}, "01234567"),
        (Place("local", 1, 2, 0, "1"), {"CUDA_VISIBLE_DEVICES": "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p"}, "ijklmnop"),
    ],
)
def test_devices(where: Place, environ: dict[str, str], expected: str) -> None:
    assert facts.devices(gpu_plan(), where, environ) == tuple(expected)


def test_devices_that_are_not_needed() -> None:
    assert facts.devices(gpu_plan("sim"), Place("slurm", 0, 2, 0, "1"), {}) == tuple("01234567")


def test_programs_are_found_anywhere_in_a_command() -> None:
    argv = (Program("sh"), Join(("x=", Program("no-such-a"))), Json({"deep": [Program("no-such-b")]}))
    found = facts.programs(plan([dataclasses.replace(engine("serve-0", 0), argv=argv)]), 0)
    assert list(found) == ["no-such-a", "no-such-b", "sh"]
    assert found["sh"] is not None
    assert found["no-such-a"] is None


def test_facts_that_disagree(tmp_path: Path) -> None:
    what = plan([engine("serve-0", 0), engine("serve-1", 1)], nodes=2)
    same: dict[str, Any] = {"toolkit": "1", "driver": None, "model": None}
    a, b = {**same, "host": "n1"}, {**same, "host": "n2"}
    assert facts.disagreements(what, {0: a, 1: b}) == []
    problems = facts.disagreements(what, {0: a, 1: {**b, "toolkit": "2", "driver": "9"}})
    assert [text for text, _ in problems] == ["the nodes disagree on toolkit: 1 on node 0 (n1); 2 on node 1 (n2)"]


# --- the journal


def test_the_journal_goes_on_when_a_file_cannot_be_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.events.mkdir()  # nothing can be appended to it
    journal = Journal(run, 0)
    journal.event("x")
    journal.update(phase="ready")
    journal.update(phase="prove")
    with pytest.raises(IsADirectoryError):
        journal.close()
    state = json.loads(run.state.read_text())
    assert (state["phase"], state["state"], state["schema"]) == ("prove", "running", 1)


# --- what the phases decide


def context(what: Plan) -> Context:
    return Context(None, None, what, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lb", "expected"),
    [("internal", [("serve-0.0", rank, rank) for rank in range(4)]),
     ("hybrid", [("serve-0.0", 0, 0), ("serve-0.0", 1, 1), ("serve-0.1", 2, 0), ("serve-0.1", 3, 1)])],
)  # fmt: skip
def test_dp_ranks_are_addressed_as_vllm_wants(lb: str, expected: list[tuple[str, int, int]]) -> None:
    """The header is the global rank with the internal balancer, the node's own index with the hybrid one."""
    parts = [dataclasses.replace(engine(f"serve-0.{r}", r), dp_ranks=(2 * r, 2 * r + 1)) for r in range(2)]
    if lb == "internal":
        parts[1] = dataclasses.replace(parts[1], api=False)
    what = plan(parts, nodes=2, lb=lb)
    found = context(what).targets(what.instances[0])
    assert [(target.process, target.rank, target.header) for target in found] == expected
    assert found[-1].headers == {"X-data-parallel-rank": str(expected[-1][2])}
    assert [target.engine for target in found] == ["0", "1", "2", "3"]


def test_one_rank_needs_no_header() -> None:
    what = plan([engine("serve-0", 0)])
    (target,) = context(what).targets(what.instances[0])
    assert (target.headers, str(target)) == ({}, "serve-0")


def test_pairs() -> None:
    what = plan([engine("prefill-0", 0, dp=4), engine("decode-0", 0, dp=2)])
    prefill, decode = (context(what).targets(item) for item in what.instances)
    assert len(choose_pairs(prefill, decode)) == 8
    many = choose_pairs(prefill * 5, decode * 8)
    assert len(many) == 20
    assert {pair[0] for pair in many} == set(prefill)
    assert {pair[1] for pair in many} == set(decode)


def test_prompts_are_fresh() -> None:
    first, second = fresh_prompt(50), fresh_prompt(50)
    assert len(first.split()) == 52
    assert first[:12] != second[:12]


def test_waves() -> None:
    engines = [engine("prefill-0", 0), engine("decode-0", 0)]
    router = dataclasses.replace(engine("router-0", 0), name="router", role="router", after=("engines",))
    last = dataclasses.replace(router, name="last", after=("router", "decode-0"))
    what = plan([last, router, *engines])
    assert [[process.name for process in wave] for wave in launch.waves(context(what))] == [
        ["prefill-0", "decode-0"], ["router"], ["last"],
    ]  # fmt: skip
    circle = plan([*engines, dataclasses.replace(router, after=("router",))])
    with pytest.raises(RunError, match="nothing can start first of router"):
        launch.waves(context(circle))


# --- tasks


def test_a_task_that_loses_a_cancellation_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As asyncio.wait_for loses one before Python 3.12; without it the cancelling would wait for ever."""
    monkeypatch.setattr(tasks, "_AGAIN_S", 0.01)
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                lost += 1
                if lost == 2:
                    raise

    async def body() -> None:
        task = asyncio.ensure_future(deaf())
        await asyncio.sleep(0)
        await asyncio.wait_for(tasks.cancel(task), 20)
        assert task.cancelled()

    asyncio.run(body())
    assert lost == 2
