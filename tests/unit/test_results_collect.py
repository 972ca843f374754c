from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_toolkit.plan.model import Image, SetupStep
from recipe_toolkit.report.page import render_page
from recipe_toolkit.report.table import render_table
from recipe_toolkit.results.collect import build_results, point_result
from recipe_toolkit.results.model import PointResult, Stat, number, point_from_json, results_from_json, scrub
from recipe_toolkit.results.pools import pool_metrics
from results_support import DATA, SCHEMA, check_schema, make_plan, make_point, recorded_metrics

OK = DATA / "aiperf" / "ok"


def good(**changes: Any) -> PointResult:
    point = make_point()
    return dataclasses.replace(point_result(make_plan(point), point, OK, 0, 9.5, {}), **changes)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_point_puts_what_was_seen_beside_what_was_wanted() -> None:
    point = make_point()
    result = point_result(make_plan(point), point, OK, 0, 9.5, {})
    assert (result.isl.wanted_tokens, result.isl.seen_mean_tokens) == (64, 64)
    assert (result.osl.wanted_tokens, result.osl.seen_mean_tokens) == (16, 16)
    assert (result.requests.wanted, result.requests.ok, result.requests.failed) == (12, 12, 0)
    assert (result.client.name, result.client.version) == ("aiperf", "0.13.0")
    assert result.client_s == 9.5
    assert result.artifacts == "bench/c2"
    assert (result.valid, result.reasons) == (True, ())


def test_three_denominators_and_two_speeds_of_a_user() -> None:
    point = make_point()
    result = point_result(make_plan(point, pd=True), point, OK, 0, 9.5, {})
    assert result.total_tps
    assert result.output_tps
    assert result.input_tps
    assert result.total_tps_per_gpu.allocated == result.total_tps / 8
    assert result.total_tps_per_gpu.working == result.total_tps / 4
    assert result.output_tps_per_gpu.by_role == {"prefill": result.output_tps / 2, "decode": result.output_tps / 2}
    assert result.input_tps_per_gpu.by_role["prefill"] == result.input_tps / 2
    assert result.tpot_ms
    assert result.tpot_ms.p50
    assert result.output_tps_per_user.from_median_tpot == 1000 / result.tpot_ms.p50
    mean_of_inverse = result.output_tps_per_user.mean_of_inverse_tpot
    assert mean_of_inverse
    assert result.tpot_ms.mean
    assert mean_of_inverse >= 1000 / result.tpot_ms.mean


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        ({"ttft_mean_s": 0.05, "tpot_mean_ms": 20.0}, {"ttft_mean_s": True, "tpot_mean_ms": True}),
        ({"ttft_mean_s": 0.04}, {"ttft_mean_s": False}),
        ({"ttft_s": 1.0, "e2e_s": 2.0}, {}),
    ],
)
def test_bounds_on_means_are_met_or_not(slo: dict[str, float], met: dict[str, bool]) -> None:
    point = make_point()
    result = point_result(make_plan(point, slo=slo), point, OK, 0, 9.5, {})
    assert {name: bound.met for name, bound in result.slo.items()} == met
    assert result.valid


def test_a_bound_on_what_was_not_measured_is_neither() -> None:
    point = make_point()
    result = point_result(make_plan(point, slo={"ttft_mean_s": 1.0}), point, DATA / "nowhere", 0, 9.5, {})
    assert result.slo["ttft_mean_s"].met is None
    assert result.slo["ttft_mean_s"].seen is None


@pytest.mark.parametrize(
    ("case", "exit_code", "valid", "reason"),
    [
        ("ok", 0, True, ""),
        ("vllm", 0, False, "input length: 64 tokens a request were wanted and 128.00 seen"),
        ("errors", 0, False, "3 of 12 requests failed"),
        ("short", 0, False, "output length: 16 tokens a request were wanted and 8.00 seen"),
        ("cancelled", 0, False, "12 requests were wanted and 4 were made"),
        ("all-failed", 1, False, "the client ended with exit code 1"),
        ("nowhere", -15, False, "the client was ended by signal 15"),
    ],
)
@pytest.mark.parametrize("pd", [False, True])
def test_points_of_recorded_artifacts(case: str, exit_code: int, valid: bool, reason: str, pd: bool) -> None:
    point = make_point()
    plan = make_plan(point, pd=pd)
    pools = pool_metrics(recorded_metrics("before"), recorded_metrics("after")) if pd else {}
    result = point_result(plan, point, DATA / "aiperf" / case, exit_code, 9.5, pools)
    assert result.valid is valid
    assert valid or any(text.startswith(reason) for text in result.reasons)
    document = build_results(plan, "run-1", "running", [result]).to_json()
    check_schema(document)
    assert results_from_json(json.loads(json.dumps(document))).to_json() == document
    assert point_from_json(document["points"][0]) == result


def test_silent_local_prefill_makes_a_recorded_point_invalid() -> None:
    point = make_point()
    pools = pool_metrics(recorded_metrics("after"), recorded_metrics("silent"))
    result = point_result(make_plan(point, pd=True), point, OK, 0, 9.5, pools)
    (reason,) = result.reasons
    assert result.rules == ("local-prefill",)
    assert reason == (
        "the decode pool computed 536 of its 536 prompt tokens itself (100.0%; up to 1 a request is normal): "
        "KV did not arrive for all requests; the figures are of another deployment than the recipe's: see the KV "
        "connector's lines in its logs"
    )


def test_an_unknown_client_is_a_reason() -> None:
    point = make_point(client="other")
    result = point_result(make_plan(point), point, OK, 0, 1.0, {})
    assert any(reason.startswith("no reader for the client other; ") for reason in result.reasons)


# --- a command -------------------------------------------------------------------------------------------------------


def command(folder: Path, content: str | None, exit_code: int = 0) -> PointResult:
    if content is not None:
        (folder / "result.json").write_text(content)
    point = make_point("own", client="command")
    plan = make_plan(point)
    result = point_result(plan, point, folder, exit_code, 3.0, {})
    check_schema(build_results(plan, "run-1", "done", [result]).to_json())
    return result


def test_a_command_without_figures_is_judged_by_its_exit_code(tmp_path: Path) -> None:
    result = command(tmp_path, None)
    assert result.valid
    assert result.client_s == 3.0
    assert result.notes == ("the command wrote no result.json, so there are no figures",)
    failed = command(tmp_path, None, 7)
    assert failed.reasons == ("the client ended with exit code 7; see its log beside its artifacts",)


def test_a_commands_own_figures_are_taken(tmp_path: Path) -> None:
    figures = {
        "version": "2.1",
        "requests": {"ok": 100, "failed": 0},
        "duration_s": 12.5,
        "isl": {"seen_mean_tokens": 1024},
        "ttft_ms": {"mean": 80.1, "p50": 78, "p90": 95, "p99": 120},
        "tpot_ms": {"p50": 10},
        "output_tps": 850.0,
        "output_tps_per_user": {"mean_of_inverse_tpot": 102.0},
    }
    result = command(tmp_path, json.dumps(figures))
    assert result.valid
    assert result.notes == ()
    assert result.ttft_ms == Stat(80.1, 78, 95, 120)
    assert result.tpot_ms == Stat(None, 10, None, None)
    assert result.output_tps_per_user.from_median_tpot == 100
    assert result.output_tps_per_user.mean_of_inverse_tpot == 102
    assert result.output_tps_per_gpu.working == 850 / 4
    assert (result.client.version, result.duration_s) == ("2.1", 12.5)


def test_a_commands_failed_requests_count(tmp_path: Path) -> None:
    failed = command(tmp_path, '{"requests": {"ok": 9, "failed": 1}}')
    assert failed.rules == ("requests-failed",)
    assert failed.reasons[0].startswith("1 of 10 requests failed; none may fail: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "result.json cannot be read: "),
        ('{"output_tps": 1', "result.json cannot be read: "),
        ("[]", "result.json holds no JSON object"),
        ('{"output_tps": "fast"}', "result.json: output_tps is 'fast', which is no number"),
        ('{"output_tps": NaN}', "result.json: output_tps is nan, which is no number"),
        ('{"output_tps": true}', "result.json: output_tps is True, which is no number"),
        ('{"ttft_ms": 5}', "result.json: ttft_ms is no object"),
    ],
)
def test_a_commands_bad_file_makes_the_point_invalid(tmp_path: Path, content: str, reason: str) -> None:
    result = command(tmp_path, content)
    assert result.reasons[0].startswith(reason)


def test_a_commands_unknown_fields_are_named(tmp_path: Path) -> None:
    result = command(tmp_path, '{"otuput_tps": 3, "a": 1}')
    assert result.notes == ("result.json: fields that are not known and not used: a, otuput_tps",)


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "points", "valid", "reasons"),
    [
        ("done", ["a", "b"], True, []),
        ("running", ["a"], None, []),
        ("done", ["a"], False, ["1 of 2 points not measured: b"]),
        (
            {"state": "timeout", "message": "the time limit came"},
            ["a"],
            False,
            ["1 of 2 points not measured: b", "the run is timeout: the time limit came"],
        ),
        (
            {"state": "failed", "message": "bench: it died\nlast lines:\n  x"},
            ["a", "b"],
            False,
            ["the run is failed: bench: it died"],
        ),
        ("cancelled", [], False, ["2 of 2 points not measured: a, b", "the run is cancelled"]),
        ("running", ["a", "b!"], False, ["1 of 2 points invalid: b"]),
        ({}, ["a", "b"], False, ["the run is lost"]),
    ],
)
def test_a_runs_verdict(state: str | dict[str, Any], points: list[str], valid: bool | None, reasons: list[str]) -> None:
    plan = make_plan(make_point("a"), make_point("b"))
    measured = [
        good(id=name[0], valid="!" not in name, reasons=("it is bad",) if "!" in name else ()) for name in points
    ]
    results = build_results(plan, "run-1", state, measured)
    assert results.valid is valid
    assert list(results.reasons) == reasons
    check_schema(results.to_json())


def test_a_run_says_what_ran_where() -> None:
    plan = make_plan(pd=True, engine="sim", slo={"ttft_mean_s": 1.0})
    state = {
        "state": "running",
        "nodes": [{"index": 0, "name": "n1", "address": "10.0.0.1", "state": "joined"}, "odd"],
        "message": None,
    }
    document = build_results(plan, "run-1", state, [good()], {"python": "3.11"}).to_json()
    check_schema(document)
    assert (document["simulated"], document["rehearsal"]) == (True, False)
    again = build_results(dataclasses.replace(plan, rehearsal=True), "run-1", state, [good()])
    assert again.to_json()["rehearsal"] is True
    assert document["layout"] == {
        "prefill": {"instances": 2, "tp": 1, "pp": 1, "dp": 1, "dcp": 1, "ep": False},
        "decode": {"instances": 1, "tp": 1, "pp": 1, "dp": 2, "dcp": 1, "ep": False},
    }
    assert document["nodes"] == [
        {"index": 0, "name": "n1", "address": "10.0.0.1"},
        {"index": 1, "name": None, "address": None},
    ]
    assert document["versions"]["aiperf"] == "0.13.0"
    assert document["versions"]["python"] == "3.11"
    assert document["gpus"] == {
        "name": "H200",
        "device": "gpu",
        "allocated": 8,
        "working": 4,
        "by_role": {"prefill": 2, "decode": 2},
    }
    assert next(iter(document)) == "schema"


def test_images_and_setup_steps_are_named_with_their_hashes() -> None:
    image = Image("vllm:1", (0,))
    plan = dataclasses.replace(make_plan(), images=(image,), setup=(SetupStep("fix", "ab" * 32, "setup/01-fix.sh"),))
    results = build_results(plan, "run-1", "done", [good()], images={"vllm:1": "sha256:1", "other": "sha256:2"})
    document = results.to_json()
    check_schema(document)
    assert document["images"] == {"vllm:1": "sha256:1"}
    assert document["setup"] == [{"name": "fix", "sha256": "ab" * 32}]
    assert results_from_json(document) == results
    assert {"image vllm:1 (sha256:1)", "setup fix (sha256 abababababab)"} <= set(render_table(document).splitlines())
    page = render_page(document)
    assert "vllm:1 (sha256:1)" in page
    assert "fix (sha256 abababababab)" in page
    rehearsed = build_results(dataclasses.replace(plan, rehearsal=True), "run-1", "done", [good()])
    assert rehearsed.setup == ()
    assert rehearsed.images == {"vllm:1": None}


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="results schema 99, but this version reads 1"):
        results_from_json({"schema": 99})


FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(FLOATS, FLOATS, FLOATS)
def test_nan_and_infinity_never_reach_json(a: float, b: float, c: float) -> None:
    result = good(
        ttft_ms=Stat(a, b, c, None),
        output_tps=a,
        pools={"serve": {"server_ttft_mean_ms": b, "deep": [{"x": c}]}},
    )
    text = json.dumps(build_results(make_plan(), "run-1", "done", [result]).to_json(), allow_nan=False)
    assert "NaN" not in text
    assert "Infinity" not in text


@given(st.none() | st.booleans() | st.text(max_size=3) | FLOATS | st.integers())
def test_a_number_is_finite_or_none(value: object) -> None:
    found = number(value)
    assert found is None or math.isfinite(found)
    assert number(10**400) is None


def test_scrub_keeps_the_rest() -> None:
    assert scrub({"a": (1, math.inf, [math.nan, "x"]), 2: None}) == {"a": [1, None, [None, "x"]], "2": None}
