from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipe_toolkit.results import vllm_bench
from recipe_toolkit.results.aiperf import read_aiperf
from recipe_toolkit.results.collect import build_results, point_result
from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.gate import remarks
from recipe_toolkit.results.vllm_bench import SUMMARY, read_vllm_bench, without_gaps
from results_support import DATA, check_schema, make_plan, make_point

RECORDED = DATA / "vllm-bench"


def recorded(case: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RECORDED / case / SUMMARY).read_text())
    return data


def change(folder: Path, case: str = "ok", **fields: Any) -> Figures:
    (folder / SUMMARY).write_text(json.dumps({**recorded(case), **fields}))
    return read_vllm_bench(folder)


def test_figures_are_its_own_under_the_usual_names() -> None:
    figures, said = read_vllm_bench(RECORDED / "ok"), recorded("ok")
    assert figures.faults == figures.notes == ()
    assert (figures.version, figures.endpoint) == (None, "completions")
    for ours, theirs in (
        (figures.ttft_ms, "ttft"),
        (figures.tpot_ms, "tpot"),
        (figures.itl_ms, "itl"),
        (figures.e2e_ms, "e2el"),
    ):
        assert ours is not None
        assert vars(ours) == {part: said[f"{part}_{theirs}_ms"] for part in ("mean", "p50", "p90", "p99")}
    assert (figures.requests.ok, figures.requests.failed) == (12, 0)
    assert (figures.isl.seen_mean_tokens, figures.isl.counted_by) == (64, "server")
    assert (figures.osl.seen_mean_tokens, figures.osl.counted_by) == (16, "server")
    assert figures.duration_s == said["duration"]
    assert figures.requests_per_s == said["request_throughput"]
    assert figures.output_tps == said["output_throughput"] == pytest.approx(12 * 16 / said["duration"])
    assert figures.input_tps == pytest.approx(12 * 64 / said["duration"])
    assert figures.total_tps == said["total_token_throughput"]
    assert figures.goodput_rps == said["request_goodput"]
    assert figures.good_request_ratio == 1.0
    speeds = [15 / (e2e - ttft) for e2e, ttft in zip(said["latencies"], said["ttfts"], strict=True)]
    assert figures.per_user_tps == pytest.approx(statistics.mean(speeds))


def test_both_clients_fill_the_same_fields() -> None:
    """Of the same load, but for the version, the warm-up and the time, which this client does not say."""
    one, other = read_aiperf(DATA / "aiperf" / "ok"), read_vllm_bench(RECORDED / "ok")
    assert [key for key in vars(one) if (vars(one)[key] is None) != (vars(other)[key] is None)] == [
        "version",
        "warmup",
        "began",
    ]


def test_a_point_of_it_is_valid_and_in_the_schema() -> None:
    point = make_point(client="vllm-bench")
    result = point_result(make_plan(point, slo={"ttft_mean_s": 1.0}), point, RECORDED / "ok", 0, 9.5, {})
    assert (result.valid, result.reasons) == (True, ())
    assert (result.client.name, result.client.version) == ("vllm-bench", None)
    assert result.slo["ttft_mean_s"].met is True
    assert result.tpot_ms is not None
    assert result.tpot_ms.mean is not None
    assert (result.output_tps_per_user.mean_of_inverse_tpot or 0) >= 1000 / result.tpot_ms.mean


def test_results_of_both_clients_are_one_document() -> None:
    points = [make_point("a"), make_point("b", client="vllm-bench")]
    plan = make_plan(*points)
    folders = (DATA / "aiperf" / "ok", RECORDED / "ok")
    measured = [point_result(plan, item, folder, 0, 9.5, {}) for item, folder in zip(points, folders, strict=True)]
    results = build_results(plan, "run", "done", measured)
    assert results.valid
    check_schema(results.to_json())


def test_a_real_vllm_counts_a_few_tokens_more_than_the_prompts_had() -> None:
    point = make_point(client="vllm-bench")
    result = point_result(make_plan(point), point, RECORDED / "vllm", 0, 9.5, {})
    assert result.isl.seen_mean_tokens == pytest.approx(64.58, abs=0.01)
    assert (result.valid, result.reasons) == (True, ())


def test_chat_is_told_by_its_backend_and_has_a_gap_more() -> None:
    figures, said = read_vllm_bench(RECORDED / "chat"), recorded("chat")
    assert figures.endpoint == "chat"
    assert figures.faults == ()
    assert {len(gaps) for gaps in said["itls"]} == {16}


def test_failed_requests_are_counted_and_named_by_the_last_line_of_their_traceback() -> None:
    figures = read_vllm_bench(RECORDED / "errors")
    assert (figures.requests.ok, figures.requests.failed) == (6, 6)
    assert figures.good_request_ratio == 0.5
    assert [fault.split(": ")[0] for fault in figures.faults] == ["error seen 4 times", "error seen 2 times"]
    assert "Cannot connect to host 127.0.0.1:8123" in figures.faults[0]
    assert "Traceback" not in " ".join(figures.faults)
    point = make_point(client="vllm-bench")
    reasons = point_result(make_plan(point), point, RECORDED / "errors", 0, 9.5, {}).reasons
    assert reasons[0].startswith("6 of 12 requests failed; ")


def test_when_all_failed_its_zeros_are_no_figures() -> None:
    figures = read_vllm_bench(RECORDED / "all-failed")
    assert (figures.requests.ok, figures.requests.failed) == (0, 12)
    assert figures.ttft_ms is figures.tpot_ms is figures.itl_ms is figures.e2e_ms is None
    assert figures.isl.seen_mean_tokens is figures.isl.counted_by is figures.per_user_tps is None
    assert figures.faults[0].startswith("error seen 12 times: ")


def test_one_token_of_output_has_no_tpot(tmp_path: Path) -> None:
    zero = {f"{part}_{name}_ms": 0.0 for part in ("mean", "p50", "p90", "p99") for name in ("tpot", "itl")}
    figures = change(tmp_path, output_lens=[1] * 12, itls=[[]] * 12, total_output_tokens=12, **zero)
    assert figures.tpot_ms is figures.itl_ms is figures.per_user_tps is None
    assert figures.faults == ()


def test_an_error_without_a_reason_is_a_failure_by_its_latency(tmp_path: Path) -> None:
    said = recorded("errors")
    figures = change(tmp_path, "errors", errors=[""] * len(said["errors"]))
    # Two of them had begun: their first token is known, and nothing else.
    assert figures.faults == ("error seen 6 times: no answer",)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"completed": 11}, "the summary counts 11 requests and the records 12"),
        ({"mean_ttft_ms": 1.0}, "mean ttft is 1.000 ms in the summary and "),
        ({"p99_e2el_ms": 9.0}, "p99 e2el is 9.000 ms in the summary and "),
        ({"p90_tpot_ms": 9000.0}, "p90 tpot is 9000.000 ms in the summary and "),
        ({"p50_itl_ms": 0.5}, "p50 itl is 0.500 ms in the summary and "),
        ({"ttfts": [0.1]}, "vllm_bench.json: the records of the requests are incomplete"),
        ({"errors": None}, "vllm_bench.json: the records of the requests are incomplete"),
        ({"output_lens": [16] * 11 + [None]}, "vllm_bench.json: 1 records are none"),
        ({"output_lens": [16] * 10 + [9, 9]}, "2 of 12 answers are shorter than the others (more than 5 %)"),
    ],
)
def test_figures_and_records_that_do_not_belong_together(tmp_path: Path, fields: dict[str, Any], fault: str) -> None:
    faults = change(tmp_path, **fields).faults
    assert any(item.startswith(fault) for item in faults), faults


def test_without_records_the_figures_stand(tmp_path: Path) -> None:
    columns = ("ttfts", "latencies", "output_lens", "errors", "itls", "input_lens", "generated_texts", "start_times")
    (tmp_path / SUMMARY).write_text(json.dumps({k: v for k, v in recorded("ok").items() if k not in columns}))
    figures = read_vllm_bench(tmp_path)
    assert figures.faults == ()
    assert figures.ttft_ms == read_vllm_bench(RECORDED / "ok").ttft_ms
    assert figures.per_user_tps is None


@pytest.mark.parametrize("case", ["ok", "errors", "all-failed", "chat", "vllm"])
def test_a_large_file_is_read_without_its_gaps(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (RECORDED / case / SUMMARY).read_bytes()
    assert json.loads(without_gaps(raw)) == {**json.loads(raw), "itls": []}
    whole = read_vllm_bench(RECORDED / case)
    monkeypatch.setattr(vllm_bench, "_GAPS_BYTES", 100)
    assert read_vllm_bench(RECORDED / case) == whole


def test_gaps_that_end_nowhere_are_left(tmp_path: Path) -> None:
    assert without_gaps(b'{"itls": [[1.0') == b'{"itls": [[1.0'
    assert without_gaps(b"{}") == b"{}"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "the client wrote no vllm_bench.json"),
        (b"", "vllm_bench.json cannot be read: Expecting value"),
        (b'{"completed": 12, "itls": [[', "vllm_bench.json cannot be read: "),
        (b"\xff\xfe\x00", "vllm_bench.json cannot be read: "),
        (b"[" * 100_000, "vllm_bench.json cannot be read: "),
        (b"[1, 2]", "vllm_bench.json holds no JSON object"),
        (b"null", "vllm_bench.json holds no JSON object"),
    ],
)
def test_a_bad_file_is_a_fault_and_no_error(tmp_path: Path, content: bytes | None, fault: str) -> None:
    if content is not None:
        (tmp_path / SUMMARY).write_bytes(content)
    figures = read_vllm_bench(tmp_path)
    assert figures.faults[0].startswith(fault)
    assert figures.ttft_ms is None
    point = make_point(client="vllm-bench")
    assert not point_result(make_plan(point), point, tmp_path, 0, 9.5, {}).valid


def test_a_file_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_bench, "_SUMMARY_BYTES", 10)
    assert read_vllm_bench(RECORDED / "ok").faults == ("vllm_bench.json is larger than 10 bytes",)


def test_a_folder_in_its_place_and_no_folder_at_all(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).mkdir()
    assert read_vllm_bench(tmp_path).faults[0].startswith("vllm_bench.json cannot be read: ")
    assert read_vllm_bench(tmp_path / "nowhere").faults == ("the client wrote no vllm_bench.json",)


@pytest.mark.parametrize(("warmup", "hits", "noted"), [(2, 0.04, True), (2, 0.0, False), (0, 0.04, False)])
def test_its_warm_up_is_its_first_prompt(warmup: int, hits: float, noted: bool) -> None:
    point = make_point(client="vllm-bench", warmup=warmup)
    plan = make_plan(point)
    pools = {"serve": {"prefix_cache_hit_ratio": hits}}
    result = point_result(plan, point, RECORDED / "ok", 0, 9.5, pools)
    text = "the warm-up sends the first measured prompt, so that request may be a prefix-cache hit"
    assert (text in remarks(plan, point, result)) is noted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "nan", "x y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["mean", "x"]), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    *("completed", "failed", "backend", "duration", "request_goodput", "total_input_tokens", "total_output_tokens"),
    *("ttfts", "latencies", "output_lens", "errors", "itls", "mean_ttft_ms", "p99_tpot_ms", "output_throughput"),
]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON | st.lists(JSON, min_size=12, max_size=12), max_size=5))
def test_whatever_it_holds_is_read_without_an_error(tmp_path: Path, fields: dict[str, Any]) -> None:
    figures = change(tmp_path, **fields)
    assert isinstance(figures, Figures)
    for stats in (figures.ttft_ms, figures.tpot_ms):
        assert stats is None or all(value is None or math.isfinite(value) for value in vars(stats).values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, 6000))
def test_a_file_cut_anywhere_is_read_without_an_error(tmp_path: Path, cut: int) -> None:
    (tmp_path / SUMMARY).write_bytes((RECORDED / "ok" / SUMMARY).read_bytes()[:cut])
    assert len(read_vllm_bench(tmp_path).faults) == 1


@pytest.mark.parametrize("case", ["ok", "vllm", "chat"])
def test_older_versions_write_no_latencies(tmp_path: Path, case: str) -> None:
    """As 0.22's files: a request took its first token's time and the gaps after it."""
    whole = recorded(case)
    latencies = whole.pop("latencies")
    (tmp_path / SUMMARY).write_text(json.dumps(whole))
    figures, wanted = read_vllm_bench(tmp_path), read_vllm_bench(RECORDED / case)
    assert figures.faults == wanted.faults == ()
    assert figures.per_user_tps == pytest.approx(wanted.per_user_tps, rel=0.01)
    whole["itls"] = [*whole["itls"][:-1], [*whole["itls"][-1], 9.0]]
    (tmp_path / SUMMARY).write_text(json.dumps(whole))
    assert read_vllm_bench(tmp_path).faults != ()
    assert len(latencies) == len(whole["ttfts"])
