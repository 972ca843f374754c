"""The window without the first burst and the end, and figures made again from the requests' own records."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from recipe_toolkit.results.aiperf import read_aiperf
from recipe_toolkit.results.client_load import Sample, client_load
from recipe_toolkit.results.collect import point_result
from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.records import Request, stat
from recipe_toolkit.results.steady import steady
from recipe_toolkit.results.vllm_bench import read_vllm_bench
from results_support import DATA, make_plan, make_point

RECORDED = {
    "aiperf/ok": read_aiperf,
    "aiperf/vllm": read_aiperf,
    "aiperf/v0.12": read_aiperf,
    "vllm-bench/ok": read_vllm_bench,
    "vllm-bench/chat": read_vllm_bench,
    "vllm-bench/vllm": read_vllm_bench,
}


@pytest.mark.parametrize("case", RECORDED)
def test_the_clients_figures_are_those_of_its_records(case: str) -> None:
    """AIPerf's and vllm bench's own summaries, from real runs, against each request's times and tokens."""
    figures: Figures = RECORDED[case](DATA / case)
    assert len(figures.raw) == figures.requests.ok
    again = {
        "ttft_ms": [(item.first - item.sent) * 1000 for item in figures.raw],
        "e2e_ms": [(item.last - item.sent) * 1000 for item in figures.raw],
        "tpot_ms": [(item.last - item.first) * 1000 / (item.osl - 1) for item in figures.raw],
    }
    for name, values in again.items():
        said, made = getattr(figures, name), stat(values)
        assert made is not None
        # Times since 1970 hold a tenth of a microsecond.
        assert dataclasses.astuple(said) == pytest.approx(dataclasses.astuple(made), rel=1e-4), name
    # AIPerf's own window is some ms longer than its duration.
    output, prompts = (sum(getattr(item, key) for item in figures.raw) for key in ("osl", "isl"))
    assert figures.output_tps == pytest.approx(output / (figures.duration_s or 0), rel=0.03)
    assert figures.input_tps == pytest.approx(prompts / (figures.duration_s or 0), rel=0.03)
    speeds = [1000 / value for value in again["tpot_ms"]]
    assert figures.per_user_tps == pytest.approx(sum(speeds) / len(speeds), rel=1e-4)


def test_the_burst_and_the_end_are_left_out() -> None:
    """Two in flight: the first two wait 1 s for their prefill, the others 0.1 s; then 1 s for ten more tokens."""
    requests = [Request(0, 1.0, 2.0, 100, 11), Request(0, 1.0, 2.0, 100, 11)]
    for at in (2.0, 3.1, 4.2):
        requests += [Request(at, at + 0.1, at + 1.1, 100, 11)] * 2
    window = steady(requests, 2)
    assert window is not None
    assert (window.from_s, window.to_s, window.requests) == (1.0, 4.2, 6)
    assert window.ttft_ms is not None
    assert window.ttft_ms.p99 == pytest.approx(100)
    assert window.tpot_ms is not None
    assert window.tpot_ms.mean == pytest.approx(100)
    assert window.output_tps_per_user.from_median_tpot == pytest.approx(10)
    # Two firsts of the burst and their 20 others, then 2 x 22, in 3.2 s; prompts of the burst too.
    assert window.output_tps == pytest.approx((22 + 44) / 3.2)
    assert window.total_tps == pytest.approx((22 + 44 + 600) / 3.2)
    whole = stat([(item.first - item.sent) * 1000 for item in requests])
    assert whole is not None
    assert whole.mean == pytest.approx(325)


@pytest.mark.parametrize(
    ("count", "in_flight"), [(0, 1), (2, 1), (4, 4), (5, 4), (2, None)], ids=lambda value: str(value)
)
def test_too_little_is_left(count: int, in_flight: int | None) -> None:
    requests = [Request(0.1 * k, 1 + 0.1 * k, 2 + 0.1 * k, 8, 8) for k in range(count)]
    assert steady(requests, in_flight) is None


def test_at_a_rate_it_begins_with_the_first_answer() -> None:
    requests = [Request(0.5 * k, 0.5 * k + 0.1, 0.5 * k + 1.1, 8, 11) for k in range(20)]
    window = steady(requests, None)
    assert window is not None
    assert (window.from_s, window.to_s) == (1.1, 9.5)
    assert window.requests == 17
    assert window.output_tps == pytest.approx(22, rel=0.05)


def test_answers_of_one_token_have_no_tpot() -> None:
    window = steady([Request(k, k + 0.5, k + 0.5, 8, 1) for k in range(9)], 1)
    assert window is not None
    assert window.tpot_ms is None
    assert window.output_tps == pytest.approx(1, rel=0.1)
    assert window.output_tps_per_user.from_median_tpot is None


@pytest.mark.parametrize("case", ["aiperf/ok", "vllm-bench/ok"])
def test_a_recorded_point_has_its_window(case: str) -> None:
    point = make_point(client=case.partition("/")[0])
    result = point_result(make_plan(point), point, DATA / case, 0, 9.0, {})
    window = result.window
    assert window is not None
    assert result.ttft_ms
    assert window.ttft_ms
    assert 0 < window.from_s < window.to_s < (result.duration_s or 0)
    assert 2 <= window.requests <= 10
    assert window.output_tps == pytest.approx(result.output_tps, rel=0.25)


# --- the client's own load --------------------------------------------------------------------------------------------


def test_only_what_was_taken_while_requests_were_in_flight_counts() -> None:
    samples = [Sample(100 + k, 2.0, 1.0 if k < 10 else 0.25, 0.5 if k < 10 else 0.125) for k in range(20)]
    load = client_load(samples, 109.0, 118.0)
    assert load is not None
    assert (load.samples, load.cores, load.busiest_thread_ratio, load.waiting_ratio) == (9, 2.0, 0.25, 0.125)
    assert client_load(samples, None, 118.0) is None
    assert client_load(samples, 118.5, 119.0) is None
    blind = client_load([Sample(5.0, 1.0, 0.5)], 1.0, 9.0)
    assert blind is not None
    assert blind.waiting_ratio is None


@pytest.mark.parametrize(
    ("case", "name", "change"),
    [
        ("aiperf/ok", "profile_export_aiperf.json", {"benchmark_duration": {"unit": "sec", "avg": 60.0}}),
        ("vllm-bench/ok", "vllm_bench.json", {"duration": 60.0}),
    ],
)
def test_when_requests_were_in_flight(case: str, name: str, change: dict[str, object], tmp_path: Path) -> None:
    """AIPerf's records say it; of vllm bench, which writes its file and ends, it is the last part of its life."""
    shutil.copytree(DATA / case, tmp_path / "artifacts")
    path = tmp_path / "artifacts" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    point = make_point(client=case.partition("/")[0])
    began = RECORDED[case](DATA / case).began or 5000.0
    samples = [Sample(began - 1, 9.0, 1.0), *(Sample(began + k, 0.5, 0.25) for k in range(1, 61))]
    samples.append(Sample(began + 62, 9.0, 1.0))
    result = point_result(make_plan(point), point, tmp_path / "artifacts", 0, 90.0, {}, samples, began + 60.0)
    assert result.client_load is not None
    assert result.client_load.samples >= 59
    assert (result.client_load.cores, result.client_load.busiest_thread_ratio) == (0.5, 0.25)
