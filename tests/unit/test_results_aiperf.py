from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipe_toolkit.results.aiperf import RECORDS, SUMMARY, read_aiperf
from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.records import error_texts, percentile, read_records, stat
from results_support import DATA

AIPERF = DATA / "aiperf"


def test_figures_are_the_summarys_under_the_usual_names() -> None:
    figures = read_aiperf(AIPERF / "ok")
    summary = json.loads((AIPERF / "ok" / SUMMARY).read_text())

    def of(name: str) -> list[float]:
        return [summary[name][key] for key in ("avg", "p50", "p90", "p99")]

    assert figures.faults == figures.notes == ()
    assert (figures.version, figures.endpoint) == ("0.13.0", "completions")
    for ours, theirs in (
        (figures.ttft_ms, "time_to_first_token"),
        (figures.tpot_ms, "inter_token_latency"),
        (figures.itl_ms, "inter_chunk_latency"),
        (figures.e2e_ms, "request_latency"),
    ):
        assert ours is not None
        assert [ours.mean, ours.p50, ours.p90, ours.p99] == of(theirs)
    assert (figures.requests.ok, figures.requests.failed) == (12, 0)
    assert (figures.isl.seen_mean_tokens, figures.isl.counted_by) == (64, "server")
    assert (figures.osl.seen_mean_tokens, figures.osl.counted_by) == (16, "server")
    assert figures.output_tps == summary["output_token_throughput"]["avg"]
    assert figures.input_tps == summary["input_token_throughput"]["avg"]
    assert figures.total_tps == summary["total_token_throughput"]["avg"]
    assert figures.requests_per_s == summary["request_throughput"]["avg"]
    assert figures.per_user_tps == summary["output_token_throughput_per_user"]["avg"]
    assert figures.goodput_rps == summary["goodput"]["avg"]
    assert figures.good_request_ratio == 1.0
    assert figures.duration_s == summary["benchmark_duration"]["avg"]


def test_rates_agree_with_tokens_over_duration() -> None:
    figures = read_aiperf(AIPERF / "ok")
    assert figures.duration_s
    # AIPerf divides by its phase's window, a few ms longer than first request to last answer.
    assert figures.output_tps == pytest.approx(12 * 16 / figures.duration_s, rel=0.03)
    assert figures.total_tps == pytest.approx(12 * 80 / figures.duration_s, rel=0.03)
    assert figures.total_tps == pytest.approx((figures.input_tps or 0) + (figures.output_tps or 0))


@pytest.mark.parametrize("case", ["ok", "errors", "short", "v0.12", "vllm", "client-counted"])
def test_latencies_recomputed_from_the_records_are_the_summarys(case: str) -> None:
    figures, records = read_aiperf(AIPERF / case), read_records(AIPERF / case / RECORDS)
    assert records is not None
    for said, values in (
        (figures.ttft_ms, records.ttft_ms),
        (figures.tpot_ms, records.tpot_ms),
        (figures.e2e_ms, records.e2e_ms),
    ):
        ours = stat(values)
        assert said is not None
        assert ours is not None
        assert [ours.mean, ours.p50, ours.p90, ours.p99] == pytest.approx([said.mean, said.p50, said.p90, said.p99])


def test_an_older_aiperf_that_says_less_is_read_too() -> None:
    figures = read_aiperf(AIPERF / "v0.12")
    assert figures.version == "0.12.0"
    assert figures.faults == ()
    assert (figures.requests.ok, figures.requests.failed) == (12, 0)
    # Without the server's usage its lengths are the client's.
    assert (figures.isl.seen_mean_tokens, figures.isl.counted_by) == (64, "client")


def test_failed_requests_are_counted_and_named() -> None:
    figures = read_aiperf(AIPERF / "errors")
    assert (figures.requests.ok, figures.requests.failed) == (9, 3)
    (fault,) = figures.faults
    assert fault.startswith("error seen 3 times: 500 Internal Server Error: ")
    assert "engine is dead" in fault


def test_a_cancelled_run_is_known_by_the_summary_alone() -> None:
    assert "the client was cancelled before it had finished" in read_aiperf(AIPERF / "cancelled").faults


def test_an_incomplete_run_says_why(tmp_path: Path) -> None:
    change(tmp_path, "ok", is_complete=False, incomplete_reason="records stalled")
    assert "the client says that its results are incomplete: records stalled" in read_aiperf(tmp_path).faults


def test_no_summary_when_all_failed_but_the_records_say_why() -> None:
    figures = read_aiperf(AIPERF / "all-failed")
    assert (figures.requests.ok, figures.requests.failed) == (0, 12)
    assert figures.faults[0] == "the client wrote no profile_export_aiperf.json"
    assert figures.faults[1].startswith("error seen 12 times: InvalidInferenceResultError")


def test_answers_of_another_length_than_asked() -> None:
    assert "12 of 12 answers are not as long as asked (more than 5 % off)" in read_aiperf(AIPERF / "short").faults


def test_a_real_vllms_answers_counted_by_the_server_are_as_long_as_asked() -> None:
    figures = read_aiperf(AIPERF / "vllm")
    assert figures.faults == figures.notes == ()
    assert (figures.isl.seen_mean_tokens, figures.osl.seen_mean_tokens) == (128, 16)


def test_a_client_that_splits_the_answers_text_gets_their_lengths_wrong() -> None:
    figures = read_aiperf(AIPERF / "client-counted")
    assert (figures.osl.seen_mean_tokens, figures.osl.counted_by) == (16, "server")
    assert figures.faults == (
        "the client counted 19.20 output tokens a request where the server says 16.00: "
        "TPOT and rates rest on the client's count (AIPerf: --use-server-token-count)",
        "9 of 10 answers are not as long as asked (more than 5 % off)",
    )


def test_an_input_that_the_server_counts_otherwise_is_noted(tmp_path: Path) -> None:
    change(tmp_path, "ok", usage_prompt_tokens={"unit": "tokens", "avg": 81.0})
    figures = read_aiperf(tmp_path)
    assert figures.faults == ()
    assert figures.notes == (
        "input rates rest on the client's count, 64.00 prompt tokens a request; the server says 81.00",
    )


def test_summary_and_records_that_do_not_belong_together(tmp_path: Path) -> None:
    shutil.copytree(AIPERF / "ok", tmp_path, dirs_exist_ok=True)
    shutil.copy(AIPERF / "short" / RECORDS, tmp_path / RECORDS)
    assert any("request_latency" in fault and "in the records" in fault for fault in read_aiperf(tmp_path).faults)

    lines = (AIPERF / "ok" / RECORDS).read_text().splitlines(keepends=True)
    (tmp_path / RECORDS).write_text("".join(lines[:-2]))
    assert "the summary counts 12 requests and the records 10" in read_aiperf(tmp_path).faults

    (tmp_path / RECORDS).write_text("".join(lines)[:-40] + "\n[]\n\n")
    faults = read_aiperf(tmp_path).faults
    assert "profile_export.jsonl: 2 lines are no records" in faults


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "the client wrote no profile_export_aiperf.json"),
        (b"", "profile_export_aiperf.json cannot be read: Expecting value"),
        (b'{"request_count": {"unit"', "profile_export_aiperf.json cannot be read: "),
        (b"\xff\xfe\x00", "profile_export_aiperf.json cannot be read: "),
        (b"[" * 100_000, "profile_export_aiperf.json cannot be read: "),
        (b"[1, 2]", "profile_export_aiperf.json holds no JSON object"),
        (b"null", "profile_export_aiperf.json holds no JSON object"),
    ],
)
def test_a_bad_summary_is_a_fault_and_no_error(tmp_path: Path, content: bytes | None, fault: str) -> None:
    if content is not None:
        (tmp_path / SUMMARY).write_bytes(content)
    figures = read_aiperf(tmp_path)
    assert figures.faults[0].startswith(fault)
    assert figures.ttft_ms is None


def test_folders_in_the_place_of_files(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).mkdir()
    (tmp_path / RECORDS).mkdir()
    assert "cannot be read" in read_aiperf(tmp_path).faults[0]


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert read_aiperf(tmp_path / "nowhere").faults == ("the client wrote no profile_export_aiperf.json",)


def change(folder: Path, case: str, **fields: Any) -> None:
    summary = json.loads((AIPERF / case / SUMMARY).read_text())
    (folder / SUMMARY).write_text(json.dumps({**summary, **fields}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "nan", "x y"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["avg", "p50", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = [
    *("request_count", "error_request_count", "error_summary", "input_config", "aiperf_version", "is_complete"),
    *("time_to_first_token", "output_sequence_length", "usage_completion_tokens", "osl_mismatch_count", "goodput"),
]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_whatever_the_summary_holds_is_read_without_an_error(tmp_path: Path, fields: dict[str, Any]) -> None:
    change(tmp_path, "ok", **fields)
    figures = read_aiperf(tmp_path)
    assert isinstance(figures, Figures)
    for stats in (figures.ttft_ms, figures.tpot_ms):
        assert stats is None or all(value is None or math.isfinite(value) for value in vars(stats).values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, 10_000))
def test_records_cut_anywhere_are_read_without_an_error(tmp_path: Path, cut: int) -> None:
    (tmp_path / RECORDS).write_bytes((AIPERF / "errors" / RECORDS).read_bytes()[:cut])
    records = read_records(tmp_path / RECORDS)
    assert records is not None
    assert records.bad_lines <= 1


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_percentiles_lie_between_the_values(values: list[float], q: float) -> None:
    assert min(values) <= percentile(values, q) <= max(values)
    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)


def test_percentiles_are_interpolated_as_numpys() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([10, 0], 90) == 9
    with pytest.raises(ValueError):
        percentile([], 50)


def test_many_different_errors_are_not_all_told() -> None:
    texts = error_texts({f"request {number}": 1 for number in range(50)} | {"refused": 7})
    assert texts[0] == "error seen 7 times: refused"
    assert len(texts) == 4
    assert texts[-1] == "other errors: 48"
