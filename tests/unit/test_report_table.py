from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from recipe_toolkit.report import text
from recipe_toolkit.report.table import WIDTH, render_table
from recipe_toolkit.results.collect import build_results, point_result
from results_support import DATA, make_plan, make_point, make_run

Golden = Callable[[str, str], None]


def data(engine: str = "vllm", **options: Any) -> dict[str, Any]:
    return make_run(engine, **options)[1].to_json()


@pytest.mark.parametrize("engine", ["vllm", "sim"])
def test_the_whole_table(golden: Golden, engine: str) -> None:
    golden(f"report/table-{engine}.txt", render_table(data(engine)))


@pytest.mark.parametrize("width", [60, 80, 100, WIDTH, 200])
def test_it_fits_its_width(width: int) -> None:
    # At 60 columns what must be there is wider than that.
    least = 90 if width < 80 else width
    assert max(map(len, render_table(data(), width).splitlines())) <= least


@pytest.mark.parametrize("width", [60, 80, WIDTH])
def test_ttft_is_always_beside_a_users_speed(width: int) -> None:
    head = next(line for line in render_table(data(), width).splitlines() if "TTFT ms" in line)
    assert "tok/s" in head
    assert head.index("TTFT") < head.index("tok/s")


def test_an_invalid_point_is_marked_and_says_why_and_meets_no_slo() -> None:
    lines = render_table(data()).splitlines()
    (row,) = [line for line in lines if line.startswith("! isl64-osl16-c32 ")]
    assert row.endswith("invalid")
    assert any(line.startswith("! isl64-osl16-c32: 3 of 12 requests failed; none may fail: ") for line in lines)
    assert next(line for line in lines if line.startswith("  isl64-osl16-c1 ")).endswith("met")


def test_the_simulated_engine_is_named_in_the_head() -> None:
    head = render_table(data("sim")).splitlines()[:5]
    assert "SIMULATED ENGINE: NO FIGURE HERE IS A MEASUREMENT OF A REAL MODEL" in head
    assert any(line.startswith("simulated engine (flags of vLLM 0.32.0) serves") for line in head)
    assert "simulated" not in render_table(data()).lower()


def test_a_rehearsal_is_named_in_the_head() -> None:
    head = render_table(data("sim", rehearsal=True)).splitlines()[:5]
    assert head[0] == "tiny-2p1d: rehearsal done, invalid"
    assert head[1].startswith("REHEARSAL ON THE SIMULATED ENGINE: NO FIGURE HERE IS A MEASUREMENT")
    assert head[3].startswith("simulated engine in place of vLLM 0.32.0 serves tiny-model on the places of 4 of 8 H200")
    assert "rehearsal" not in render_table(data("sim")).lower()


def test_a_run_without_points() -> None:
    plan = make_plan()
    state = {"state": "failed", "message": "ready: prefill-0 ended with exit code 3"}
    shown = render_table(build_results(plan, "run-1", state, []).to_json())
    assert "no point was measured" in shown
    assert "invalid: the run is failed: ready: prefill-0 ended with exit code 3" in shown


def test_points_of_a_command_without_figures() -> None:
    point = make_point("own", client="command")
    plan = make_plan(point)
    result = point_result(plan, point, DATA / "nowhere", 0, 1.0, {})
    lines = render_table(build_results(plan, "run-1", "done", [result]).to_json()).splitlines()
    assert "  point  total tok/s" not in lines
    assert any(line.strip() == "own" or line.startswith("  own") for line in lines)
    assert "  own: the command wrote no result.json, so there are no figures" in lines


def test_reasons_of_several_lines_keep_them() -> None:
    changed = data()
    changed["points"][3]["reasons"] = ["first\nsecond"]
    lines = render_table(changed).splitlines()
    assert lines[lines.index("! isl64-osl16-c32: first") + 1] == "    second"


def test_different_lengths_get_columns() -> None:
    changed = data()
    changed["points"][0]["isl"]["wanted_tokens"] = 8192
    lines = render_table(changed).splitlines()
    assert any("ISL" in line and "OSL" in line and "load" in line for line in lines)
    assert any(line.startswith("  isl64-osl16-c1 ") and " 8,192 " in line for line in lines)


def test_control_characters_do_not_reach_the_terminal() -> None:
    changed = copy.deepcopy(data())
    changed["recipe"] = "evil\x1b[2Jname"
    changed["points"][3]["reasons"] = ["bell \x07 and\nnewline \x1b]0;title\x07"]
    changed["points"][0]["id"] = "p\x1b[31m"
    shown = render_table(changed)
    assert "\x1b" not in shown
    assert "\x07" not in shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (True, "–"),
        ("x", "–"),
        (0, "0"),
        (0.0, "0"),
        (0.00012, "0.00012"),
        (0.25, "0.250"),
        (0.9996, "1.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (999.6, "1,000"),
        (12345.6, "12,346"),
        (-3.14159, "-3.14"),
    ],
)
def test_numbers_have_three_digits(value: Any, shown: str) -> None:
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("name", "device", "allocated", "shown"),
    [
        ("H200", "gpu", 8, "8 H200 GPUs"),
        ("H200", "gpu", 16, "8 of 16 H200 GPUs"),
        ("cpu", "cpu", 8, "8 CPU worker slots"),
        ("EPYC", "cpu", 8, "8 worker slots on EPYC"),
    ],
)
def test_what_the_engines_use(name: str, device: str, allocated: int, shown: str) -> None:
    gpus = {"name": name, "device": device, "allocated": allocated, "working": 8}
    assert text.gpus({"gpus": gpus, "rehearsal": False}) == shown
    assert text.gpus({"gpus": gpus, "rehearsal": True}) == f"the places of {shown}"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0034, "3 ms"), (12.34, "12.3 s"), (99.97, "1 min 40 s"), (245, "4 min 05 s"), (7380, "2 h 03 min")],
)
def test_time_spans(seconds: float, shown: str) -> None:
    assert text.span(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(None, "–"), (999, "999 B"), (163840, "164 kB"), (1.07e9, "1.07 GB")])
def test_sizes(count: Any, shown: str) -> None:
    assert text.size(count) == shown
