"""The live view: how far a point is, and a run on as many lines as a terminal has."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_toolkit.rundir import RunDir, write_json
from recipe_toolkit.submit import progress
from recipe_toolkit.submit.progress import Progress, ProgressReader
from recipe_toolkit.submit.record import Record
from recipe_toolkit.submit.state import RunState
from recipe_toolkit.submit.view import View, Viewer, draw
from submit_support import make_run

PLAN = {
    "processes": [
        {"name": "prefill-0", "role": "prefill", "api": True},
        {"name": "decode-0", "role": "decode", "api": True},
        {"name": "decode-1", "role": "decode", "api": True},
        {"name": "decode-1.1", "role": "decode", "api": False},
    ],
    "benchmarks": [{"id": "c1", "requests": 40, "warmup": 8}, {"id": "c8", "requests": None, "warmup": None}],
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = make_run(tmp_path)
    write_json(run.plan, PLAN)
    run.metrics.mkdir()
    return run


def add(run: RunDir, process: str, t: float, point: str, requests: float, tokens: float) -> None:
    values = {
        'vllm:request_success_total{engine="0",finished_reason="length"}': requests,
        'vllm:request_success_total{engine="1",finished_reason="stop"}': 0.0,
        'vllm:generation_tokens_total{engine="0"}': tokens,
        'vllm:prompt_tokens_total{engine="0"}': 1e9,
    }
    with (run.metrics / f"{process}.jsonl").open("a") as file:
        file.write(json.dumps({"t": t, "point": point, "values": values}) + "\n")


def test_progress_counts_from_the_points_first_sample(run: RunDir) -> None:
    reader = ProgressReader(run)
    assert reader.of("c1") is None
    add(run, "decode-0", 100, "c1", 1000, 5000)
    add(run, "prefill-0", 100, "c1", 0, 0)
    assert reader.of("c1") is None
    add(run, "decode-0", 105, "c1", 1010, 5500)
    add(run, "prefill-0", 105, "c1", 900, 900)
    assert reader.of("c1") == Progress(10, 48, 100.0)
    add(run, "decode-1", 105, "c1", 0, 0)
    add(run, "decode-1", 110, "c1", 7, 50)
    add(run, "decode-0", 110, "c1", 1020, 6500)
    assert reader.of("c1") == Progress(27, 48, 210.0)
    assert str(Progress(27, 48, 210.0)) == "27 of 48 requests, 210 tok/s"
    # The next point begins anew; one of unknown length has no goal.
    for t, requests in ((111, 1020), (116, 1021)):
        add(run, "decode-0", t, "c8", requests, 6500)
    assert reader.of("c8") == Progress(1, None, 0.0)


def test_half_written_and_broken_lines_wait_or_are_left_out(run: RunDir) -> None:
    reader = ProgressReader(run)
    add(run, "decode-0", 100, "c1", 0, 0)
    path = run.metrics / "decode-0.jsonl"
    with path.open("a") as file:
        file.write('"c1"\n{"point": "c1"}\n{"t": "x", "point": "c1", "values": []}\n')
        file.write('{"t": 105, "point": "c1", "values": {"vllm:request_success_total": 3')
    assert reader.of("c1") is None
    with path.open("a") as file:
        file.write(', "vllm:generation_tokens_total": 10}}\n')
    assert reader.of("c1") == Progress(3, 48, 2.0)
    run.plan.write_text("{")
    assert ProgressReader(run).of("c1") is None


def test_of_a_long_file_the_end_is_read(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for t in range(100):
        add(run, "decode-0", t, "c1", t, t)
    monkeypatch.setattr(progress, "_TAIL", 2000)
    found = ProgressReader(run).of("c1")
    assert found is not None
    assert 0 < found.done < 10
    assert found.output_tps == 1.0


def view(**given: Any) -> View:
    state = RunState("2026-11-29T12-00-00-tiny-ab12", "/runs/x", "running", scheduler="slurm", job_id="7")
    began = (("bind", 0.0), ("launch", 2.0), ("ready", 3.0), ("launch", 60.0), ("ready", 61.0), ("bench", 100.0))
    return View(**{"state": state, "record": Record("x"), "now": 160.0, "began": began, **given})


def test_what_is_drawn() -> None:
    record = Record(
        "x",
        processes={
            "decode-0": {"state": "ready", "node": 1, "exit_code": None},
            "bench-c1": {"state": "exited", "node": 0, "exit_code": 3},
        },
        points={"c1": "done", "c8": "running", "c64": "failed"},
    )
    drawn = draw(view(record=record, point="c8", progress=Progress(3, 48, 99.6), log="bench-c8", line="50 %"), 80, 24)
    assert drawn == [
        "2026-11-29T12-00-00-tiny-ab12: running",
        "slurm job 7",
        "bind 2 s, launch 2 s, ready 1 min 36 s, bench 1 min 00 s …",
        "  decode-0  ready, node 1",
        "  bench-c1  exited with 3, node 0",
        "points: 1 of 3 done; c8: 3 of 48 requests, 100 tok/s; failed: c64",
        "bench-c8 | 50 %",
    ]


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line)


@given(
    st.integers(20, 120),
    st.integers(4, 40),
    st.integers(0, 90),
    st.text(max_size=200),
    st.text("x世界\t\x1b", max_size=200),
)
def test_it_fits_any_terminal(width: int, height: int, processes: int, line: str, event: str) -> None:
    states = {f"decode-{n}": {"state": "ready" if n % 7 else "exited", "node": n} for n in range(processes)}
    drawn = draw(
        view(record=Record("x", processes=states, points={"c1": "running"}), point="c1", line=line, event=event),
        width,
        height,
    )
    assert len(drawn) <= height
    assert max(map(columns, drawn)) <= width
    assert all(row.isprintable() for row in drawn)


def test_of_many_processes_those_that_differ_are_shown() -> None:
    states = {f"decode-{n}": {"state": "exited" if n == 55 else "ready", "node": n} for n in range(72)}
    drawn = draw(view(record=Record("x", processes=states)), 80, 10)
    assert "  decode-55  exited, node 55" in drawn
    assert drawn[-1] == "  … and 66 ready"


def test_a_viewer_takes_up_what_is_new(run: RunDir) -> None:
    state = RunState(run.id, str(run.root), "running")
    viewer = Viewer(run)
    assert viewer.look(state).line == ""
    run.events.write_text('{"t": 1, "event": "phase", "phase": "bind"}\n{"t": 3, "event": "phase", "phase": "bench"}\n')
    log = run.attempt(0).process_log(0, "bench-c1")
    log.parent.mkdir(parents=True)
    log.write_text("begin\n\x1b[32mINFO\x1b[0m 10 %\r20 %\n\n")
    write_json(run.state, {"schema": 1, "state": "running", "points": {"c1": "running"}})
    found = viewer.look(state)
    assert (found.began, found.point, found.log, found.line) == (
        (("bind", 1.0), ("bench", 3.0)),
        "c1",
        "bench-c1",
        "20 %",
    )
    assert len(viewer.new) == 2
    assert viewer.look(state).began == found.began
    assert viewer.new == []
