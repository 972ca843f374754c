"""A user's speed is shown nowhere without the wait for the first token, and per-GPU rates name their GPUs."""

from __future__ import annotations

import re

import pytest

from recipe_toolkit.cli.compare import _metrics
from recipe_toolkit.report import compare_text, published
from recipe_toolkit.report.compare import compare, to_json
from recipe_toolkit.report.metrics import BY_NAME
from recipe_toolkit.report.page import render_page
from recipe_toolkit.report.table import WIDTH, render_table
from recipe_toolkit.report.text import number
from results_support import make_run

RESULTS = make_run()[1].to_json()
SPEEDS = ("output_tps_per_user.from_median_tpot", "output_tps_per_user.mean_of_inverse_tpot")


@pytest.mark.parametrize("width", [60, 80, WIDTH])
def test_the_table_however_narrow(width: int) -> None:
    text = render_table(RESULTS, width)
    assert "per user" in text
    assert "TTFT ms" in text


def test_the_page() -> None:
    page = render_page(RESULTS)
    assert page.count("1000 / median TPOT") >= 1
    assert "mean of 1 / TPOT" in page
    for found in re.finditer("per user", page):
        assert "TTFT" in page[max(0, found.start() - 1500) : found.end() + 1500]


@pytest.mark.parametrize("speed", SPEEDS)
def test_compare_adds_the_wait(speed: str) -> None:
    metrics = _metrics([speed])
    assert [metric.path for metric in metrics] == ["ttft_ms.mean", speed]
    text = compare_text.render(compare([RESULTS, RESULTS], metrics=metrics))
    assert text.index("TTFT mean") < text.index("output per user")
    assert [metric.path for metric in _metrics([speed, "ttft_ms.p90"])] == [speed, "ttft_ms.p90"]


def test_published_speeds_have_the_runs_wait_beside_them() -> None:
    point = RESULTS["points"][0]
    item = {"isl": 64, "osl": 16, "concurrency": 1, "metrics": {"tps_per_user": 300.0}}
    results = {**RESULTS, "published": [item]}
    speed, wait = published.against(results)
    assert speed.metric.path == SPEEDS[0]
    assert (wait.verdict, wait.published, wait.seen) == ("not published", None, point["ttft_ms"]["mean"])
    assert "TTFT mean ms" in published.render(results, [speed, wait])
    assert published.to_json(results, [speed, wait])["published"][1]["metric"] == "ttft_ms.mean"
    item["metrics"]["ttft_mean_ms"] = 44.0
    assert {found.verdict for found in published.against(results)} <= {"reproduced", "better", "worse"}


def test_all_denominators_are_in_the_json_of_compare() -> None:
    metrics = to_json(compare([RESULTS, RESULTS]))["points"][0]["metrics"]
    of_gpus = [name for name in metrics if "_per_gpu." in name]
    assert {name.split(".", 1)[1] for name in of_gpus} == {"working", "allocated", "by_role.prefill", "by_role.decode"}
    assert all(re.search("GPU", BY_NAME[name].title) for name in of_gpus)
    first = RESULTS["points"][0]
    assert metrics["output_tps_per_gpu.by_role.decode"]["values"][0] == first["output_tps_per_gpu"]["by_role"]["decode"]
    assert "/working GPU" in render_table(RESULTS)


def test_the_page_has_repeats_and_published_figures_with_the_wait() -> None:
    point = RESULTS["points"][0]
    made = {"mean": 80.0, "stdev": 2.0, "min": 78.0, "max": 82.0}
    metrics = {"ttft_ms.mean": made, "output_tps_per_user.from_median_tpot": made}
    spread = {"repeat_of": "c1", "points": ["c1-rep1", "c1-rep2"], "valid": 2, "metrics": metrics}
    item = {"isl": 64, "osl": 16, "concurrency": 1, "metrics": {"tps_per_user": 300.0}}
    page = render_page({**RESULTS, "spread": [spread], "published": [item]})
    repeats = page.split('id="repeats"')[1].split("</section>")[0]
    assert repeats.count("80.0 ± 2.00") == 2
    assert "TTFT" in repeats
    section = page.split('id="published"')[1].split("</section>")[0]
    assert "TTFT mean ms" in section
    assert "not published" in section
    assert f"<td>{point['id']}</td>" in section
    simulated = render_page({**RESULTS, "simulated": True, "published": [item]})
    assert "stand beside none of it" in simulated


def test_the_page_has_each_window_beside_the_whole_point() -> None:
    page = render_page(RESULTS)
    section = page.split('id="steady-window"')[1].split("</section>")[0]
    with_window = [point for point in RESULTS["points"] if point["valid"] and point.get("window")]
    assert with_window
    assert section.count("<tr>") == 1 + len(with_window)
    point = with_window[0]
    both = (point["window"]["output_tps"], point["output_tps"])
    assert f"{number(both[0])} ({number(both[1])})" in section
    bare = [{key: value for key, value in item.items() if key != "window"} for item in RESULTS["points"]]
    assert 'id="steady-window"' not in render_page({**RESULTS, "points": bare})
    metrics = to_json(compare([RESULTS, RESULTS]))["points"][0]["metrics"]
    assert metrics["window.output_tps"]["verdict"] == [None, "same"]
