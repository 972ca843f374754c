"""Container images on the nodes: looked for, fetched once, identified, compared. Real agents, made-up runtimes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Image, Plan
from recipe_toolkit.plan.values import ImagePart, Python, Value
from recipe_toolkit.run import fetch, leftovers
from recipe_toolkit.run.environment import hostname
from recipe_toolkit.run.fetch import Fetcher, Order, fingerprint
from runkit import ASK, QUICK, Run, client, engine, plan

HOST = hostname()
# Writes its file in two halves, with time in between for others to look.
FETCH = """
import pathlib, sys, time
part, journal = map(pathlib.Path, sys.argv[1:])
with journal.open("a") as file: file.write("fetched\\n")
print("pulling", flush=True)
part.write_bytes(b"half ")
time.sleep(2)
with part.open("ab") as file: file.write(b"whole")
"""


def two_nodes(*images: Image, **deadlines: float) -> Plan:
    """An engine on each of two nodes, and one question."""
    engines = [engine("serve-0", 0), engine("serve-1", 1)]
    made = plan(engines, [client("p", "serve-0", 0, ASK)], nodes=2, entry="serve-0")
    return dataclasses.replace(made, images=images, deadlines=dataclasses.replace(QUICK, **deadlines))


def python(code: str, *words: Value) -> tuple[Value, ...]:
    return (Python(), "-c", code, *words)


def file_image(tmp_path: Path, code: str = FETCH, **fields: Any) -> Image:
    image = tmp_path / "cache" / "vllm.sqsh"
    command = python(code, ImagePart(), str(tmp_path / "journal"))
    return Image(**{"reference": "vllm:1", "nodes": (0, 1), "file": str(image), "fetch": command, **fields})


@pytest.fixture
def start(tmp_path: Path):
    runs: list[Run] = []

    def begin(what: Plan) -> Run:
        run = Run(tmp_path / f"2026-01-02T03-04-05-run-{len(runs):04}", what)
        runs.append(run)
        return run.start()

    yield begin
    for run in runs:
        run.kill()


def failure(run: Run) -> str:
    """The message of a run that failed in the phase."""
    assert any(run.wait().values())
    assert (run.state["state"], run.state["phase"]) == ("failed", "end")
    return str(run.state["message"])


def test_nodes_that_share_a_folder_fetch_once(tmp_path: Path, start) -> None:
    what = file_image(tmp_path)
    run = start(two_nodes(what))
    assert set(run.wait().values()) == {0}
    assert (tmp_path / "journal").read_text() == "fetched\n"
    file = tmp_path / "cache" / "vllm.sqsh"
    assert file.read_text() == "half whole"
    assert {path.name for path in file.parent.iterdir()} == {"vllm.sqsh", ".vllm.sqsh.lock"}
    assert [event["phase"] for event in run.events("phase")][:3] == ["bind", "images", "launch"]
    assert len(run.events("image_fetching")) == len(run.events("image_fetched")) == 1
    (waiting,) = run.events("image_waits")
    assert "pid" in waiting["holder"]
    identity = fingerprint(file)
    for node in (0, 1):
        facts = json.loads((run.dir.root / "attempts" / "0" / "nodes" / f"{node:02}" / "facts.json").read_text())
        assert facts["images"] == {"vllm:1": identity}
    assert json.loads(run.dir.results.read_text())["images"] == {"vllm:1": identity}
    # Once it is there nothing is fetched.
    again = start(two_nodes(what))
    assert set(again.wait().values()) == {0}
    assert (tmp_path / "journal").read_text() == "fetched\n"


def test_an_engine_s_own_store(tmp_path: Path, start) -> None:
    store = tmp_path / "store"
    store.mkdir()
    image = Image(
        reference="vllm:1",
        nodes=(1,),
        present=("test", "-e", str(store / "image")),
        fetch=("touch", str(store / "image")),
        identify=("echo", "sha256:abc"),
        store=("echo", str(store)),
    )
    run = start(two_nodes(image))
    assert set(run.wait().values()) == {0}
    (event,) = run.events("image_fetching")
    assert (event["node"], event["image"], event["folder"]) == (1, "vllm:1", str(store))
    assert event["free_bytes"] > 0
    assert [event["id"] for event in run.events("image")] == ["sha256:abc"]
    assert json.loads(run.dir.results.read_text())["images"] == {"vllm:1": "sha256:abc"}


def test_what_nobody_can_fetch_is_named_with_all_its_nodes(tmp_path: Path, start) -> None:
    here = tmp_path / "here.sqsh"
    here.write_text("x")
    first = Image("vllm:1", (0, 1), file=str(tmp_path / "none.sqsh"), remedy="copy it there")
    second = Image("aiperf:1", (1,), present=("false",), remedy="docker pull aiperf:1")
    text = failure(start(two_nodes(first, Image("good", (0,), file=str(here)), second)))
    assert text == (
        f"images: vllm:1 is not on node 0 ({HOST}), node 1 ({HOST})\nhint: copy it there\n"
        f"images: aiperf:1 is not on node 1 ({HOST})\nhint: docker pull aiperf:1"
    )


def test_a_fetch_that_fails_leaves_nothing_that_looks_whole(tmp_path: Path, start) -> None:
    code = FETCH + "\nsys.exit('manifest unknown: no such tag')"
    run = start(two_nodes(file_image(tmp_path, code, nodes=(1,), remedy="check the name")))
    text = failure(run)
    assert f"images: node 1 ({HOST}): image vllm:1 was not fetched: " in text
    assert "ended with 1" in text
    assert "attempts/0/nodes/01/image-0.log" in text
    assert "  manifest unknown: no such tag" in text
    assert f"GB are free in {tmp_path}/cache" in text
    assert "hint: check the name" in text
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".vllm.sqsh.lock"]


def test_a_fetch_that_stands_still(tmp_path: Path, start) -> None:
    code = "import sys, time; open(sys.argv[1], 'w').write('x'); time.sleep(100)"
    run = start(two_nodes(file_image(tmp_path, code, nodes=(0,)), stall=1.5))
    assert "shows no sign of life for" in failure(run)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".vllm.sqsh.lock"]
    assert run.survivors() == []


def test_a_fetch_that_takes_too_long(tmp_path: Path, start) -> None:
    code = "import time\nwhile True: print('layer', flush=True); time.sleep(0.1)"
    run = start(two_nodes(file_image(tmp_path, code, nodes=(0,)), images=2.0))
    text = failure(run)
    assert "image vllm:1 was not fetched within 2 s" in text or "was not fetched within 1." in text
    assert "hint: raise deadlines.images" in text


def test_a_run_that_is_cancelled_while_it_fetches(tmp_path: Path, start) -> None:
    code = FETCH.replace("time.sleep(2)", "time.sleep(100)")
    run = start(two_nodes(file_image(tmp_path, code)))
    run.until((tmp_path / "journal").exists)
    run.agents[0].terminate()
    assert any(run.wait().values())
    assert run.state["state"] == "cancelled"
    assert run.survivors() == []
    assert not (tmp_path / "cache" / "vllm.sqsh").exists()


def test_a_fetch_whose_agent_and_keeper_are_killed_is_begun_anew(tmp_path: Path, start) -> None:
    first = start(two_nodes(file_image(tmp_path, FETCH.replace("time.sleep(2)", "time.sleep(100)"))))
    cache = tmp_path / "cache"
    first.until(lambda: list(cache.glob(".*.part")))
    for line in first.survivors():  # agents, keepers, the fetch: nobody can clean up
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    first.wait()
    first.until(lambda: not first.survivors())
    assert len(list(cache.glob(".*.part"))) == 1
    second = start(two_nodes(file_image(tmp_path)))
    assert set(second.wait().values()) == {0}
    assert {path.name for path in cache.iterdir()} == {"vllm.sqsh", ".vllm.sqsh.lock"}
    assert (cache / "vllm.sqsh").read_text() == "half whole"


def test_nodes_that_hold_different_images_are_refused(tmp_path: Path, start) -> None:
    # Each agent has a folder of its own.
    image = Image("vllm:latest", (0, 1), present=("true",), identify=python("import os; print(os.getppid())"))
    text = failure(start(two_nodes(image)))
    assert text.startswith("images: the nodes disagree on vllm:latest: ")
    assert text.count(" on node ") == 2
    assert "hint: remove it where it is old" in text


# --- one node


def order(at: Path, **fields: Any) -> Order:
    part = at.with_name(f".{at.name}.{HOST}.run-00.part")
    command = (sys.executable, "-c", FETCH.replace("time.sleep(2)", ""), str(part), str(at.parent / "journal"))
    return Order(
        **{
            "reference": "vllm:1", "file": str(at), "part": str(part), "present": (), "fetch": command, "identify": (),
            "store": (), "remedy": "", "env": dict(os.environ), "deadline": 30.0, "stall": 30.0, **fields,
        }
    )  # fmt: skip


def run_order(wanted: Order, tmp_path: Path) -> tuple[bool, str | None]:
    fetcher = Fetcher(wanted, tmp_path / "image.log", lambda *_, **__: None, lambda _: None)
    return asyncio.run(fetcher.run())


def test_what_killed_fetches_have_left_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "vllm.sqsh"
    mine, theirs = (tmp_path / f".vllm.sqsh.{host}.old-00.part" for host in (HOST, "other"))
    another = tmp_path / f".other.sqsh.{HOST}.old-00.part"
    for path in (mine, theirs, another):
        path.write_text("half")
    assert run_order(order(file), tmp_path)[0]
    assert not mine.exists()
    # Another host's may be growing, and another image's has a lock of its own.
    assert theirs.exists()
    assert another.exists()


def test_what_another_user_fetches_at_the_same_time_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vllm.sqsh"
    growing = tmp_path / f".vllm.sqsh.{HOST}.run-of-another-00.part"
    growing.write_text("half")
    monkeypatch.setattr(fetch, "_lock", lambda _: True)
    monkeypatch.setattr(fetch.os, "getuid", lambda: growing.stat().st_uid + 1)
    assert run_order(order(file), tmp_path)[0]
    assert growing.exists()


def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: usage._replace(free=3_000_000_000))
    with pytest.raises(RunError) as refused:
        run_order(order(tmp_path / "vllm.sqsh"), tmp_path)
    assert refused.value.message == (
        f"image vllm:1: 3.0 GB are free in {tmp_path}, and an image takes more than 4.3 GB"
    )
    assert not (tmp_path / "journal").exists()


def test_a_folder_without_locks_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fetch.fcntl, "flock", refuse)
    assert run_order(order(tmp_path / "vllm.sqsh"), tmp_path)[0]


def test_a_fetch_that_ends_well_without_an_image(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"was fetched, but .*\.part cannot be renamed: No such file or directory"):
        run_order(order(tmp_path / "vllm.sqsh", fetch=("true",)), tmp_path)
    with pytest.raises(RunError, match="was fetched, and is still not here"):
        run_order(order(tmp_path / "x", file=None, part=None, present=("false",), fetch=("true",)), tmp_path)


def test_a_runtime_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="image vllm:1: cannot execute no-such-runtime: No such file or directory"):
        run_order(order(tmp_path / "x", file=None, present=("no-such-runtime", "inspect")), tmp_path)


def test_the_fingerprint_sees_both_ends_and_the_size(tmp_path: Path) -> None:
    path = tmp_path / "image"
    seen = set()
    for content in (b"", b"a", b"b" + bytes(3_000_000), bytes(3_000_000) + b"b", bytes(3_000_001), bytes(3_000_002)):
        path.write_bytes(content)
        seen.add(fingerprint(path))
    assert len(seen) == 6


# --- what an earlier attempt has left


def item(name: str, *cleanup: str, inspect: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "cleanup": list(cleanup), "inspect": list(inspect), "env": {}}


def test_left_overs_are_removed_and_named(tmp_path: Path) -> None:
    marker = tmp_path / "removed"
    running = ("echo", str(os.getpid()))
    found = [item("a", "echo", "container-a"), item("b", "true"), item("c", "touch", str(marker), inspect=running)]
    assert leftovers.sweep(found) == ["a", "c"]
    assert marker.exists()


def test_left_overs_that_cannot_be_removed_are_all_named() -> None:
    found = [item("a", "sh", "-c", "echo busy >&2; exit 3"), item("b", "true"), item("c", "no-such-runtime", "rm", "c")]
    with pytest.raises(RunError) as refused:
        leftovers.sweep(found)
    assert refused.value.message.splitlines() == [
        "a: sh -c echo busy >&2; exit 3 ended with 3: busy",
        "c: cannot execute no-such-runtime: No such file or directory",
    ]
