from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from recipe_toolkit.plan.model import Plan, Proof
from recipe_toolkit.results.collect import point_result
from recipe_toolkit.results.gate import judge, remarks
from recipe_toolkit.results.model import Length, PointResult, Requests
from results_support import DATA, make_plan, make_point

POINT = make_point()
GOOD = point_result(make_plan(POINT), POINT, DATA / "aiperf" / "ok", 0, 9.0, {})
PULLED = {
    "requests": 14.0,
    "prompt_tokens": 896.0,
    "prompt_tokens_by_source": {"local_compute": 0.0, "local_cache_hit": 0.0, "external_kv_transfer": 896.0},
    "kv_transfer": {"transfers": 14.0, "failed_transfers": 0.0},
}
PREFILL = {"requests": 14.0, "prompt_tokens": 896.0}


def length(name: str, wanted: int, seen: float | None) -> dict[str, Length]:
    return {name: Length(wanted, seen, "server")}


def test_a_good_point_has_no_reasons() -> None:
    assert judge(make_plan(POINT), POINT, GOOD) == []
    assert GOOD.valid
    assert remarks(make_plan(POINT), POINT, GOOD) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"exit_code": 3}, "the client ended with exit code 3"),
        ({"exit_code": -9}, "the client was ended by signal 9"),
        ({"requests": Requests(12, 9, 3)}, "3 of 12 requests failed"),
        ({"requests": Requests(12, 0, 12)}, "12 of 12 requests failed"),
        ({"requests": Requests(12, 10, 0)}, "12 requests were wanted and 10 were made"),
        ({"requests": Requests(12, 13, 0)}, "12 requests were wanted and 13 were made"),
        (
            {"requests": Requests(12, None, None)},
            "12 requests were wanted, and the client does not say how many it made",
        ),
        (length("osl", 16, None), "no output tokens were counted"),
        (length("osl", 16, 0.0), "no output tokens were counted"),
        (length("isl", 64, None), "no input tokens were counted"),
        ({"output_tps": 0.0}, "the output rate is 0 tokens/s"),
        (
            length("osl", 1000, 989.0),
            "output length: 1000 tokens a request were wanted and 989.00 seen (-1.1%, 1% are allowed)",
        ),
        (
            length("osl", 1000, 1011.0),
            "output length: 1000 tokens a request were wanted and 1011.00 seen (+1.1%, 1% are allowed)",
        ),
        (
            length("isl", 1000, 979.0),
            "input length: 1000 tokens a request were wanted and 979.00 seen (-2.1%, 2% are allowed)",
        ),
        (
            length("isl", 1000, 1021.0),
            "input length: 1000 tokens a request were wanted and 1021.00 seen (+2.1%, 2% are allowed)",
        ),
        (
            length("isl", 64, 67.0),
            "input length: 64 tokens a request were wanted and 67.00 seen (+4.7%, 2% are allowed)",
        ),
        ({"pools": {"serve": {"restarted": ["serve-0"]}}}, "counters of serve-0 began anew: the engine restarted"),
    ],
)
def test_each_reason(change: dict[str, Any], reason: str) -> None:
    assert judge(make_plan(POINT), POINT, dataclasses.replace(GOOD, **change)) == [reason]


def test_nothing_answered() -> None:
    reasons = judge(make_plan(POINT), POINT, dataclasses.replace(GOOD, requests=Requests(12, 0, 0)))
    assert reasons == ["no request was answered", "12 requests were wanted and 0 were made"]


@pytest.mark.parametrize(
    "change",
    [
        length("osl", 1000, 990.0),
        length("osl", 1000, 1010.0),
        length("isl", 1000, 980.0),
        length("isl", 1000, 1020.0),
        length("isl", 64, 66.0),
        {**length("isl", 64, 64 + 64), "endpoint": "chat"},
        {"slo": {}, "request_rate_rps": 3.0},
    ],
)
def test_what_is_within_the_tolerances(change: dict[str, Any]) -> None:
    assert judge(make_plan(POINT), POINT, dataclasses.replace(GOOD, **change)) == []


def test_lengths_of_a_range_stray_from_its_middle_by_chance() -> None:
    """900 of 800 to 1000: with 12 requests 67 tokens more or less are chance beside the 1 %, with 1200 it is 7."""
    point = dataclasses.replace(POINT, osl=1000, osl_min=800)
    few = dataclasses.replace(GOOD, **length("osl", 900, 970.0))
    assert few.requests.ok == 12
    assert judge(make_plan(point), point, few) == []
    many = dataclasses.replace(few, requests=dataclasses.replace(few.requests, ok=1200, wanted=1200))
    (reason,) = judge(make_plan(point), point, many)
    assert reason.startswith("output length: 900 tokens a request were wanted and 970.00 seen")


def test_the_middle_of_a_range_is_what_was_wanted() -> None:
    point = dataclasses.replace(POINT, isl_min=48)
    result = point_result(make_plan(point), point, DATA / "aiperf" / "ok", 0, 9.0, {})
    assert (point.isl, result.isl.wanted_tokens, result.osl.wanted_tokens) == (64, 56, point.osl)


def pd(decode: dict[str, Any] | None, prefill: dict[str, Any] | None = None, **plan: Any) -> tuple[Plan, PointResult]:
    pools = {"prefill": prefill or PREFILL, **({"decode": decode} if decode is not None else {})}
    return make_plan(POINT, pd=True, **plan), dataclasses.replace(GOOD, pools=pools)


def sources(local: float, pulled: float) -> dict[str, float]:
    return {"local_compute": local, "local_cache_hit": 0.0, "external_kv_transfer": pulled}


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        (
            {**PULLED, "prompt_tokens_by_source": sources(896, 0)},
            "the decode pool computed 896 of its 896 prompt tokens itself (100.0%; up to 1 a request is normal): "
            "KV did not arrive for all requests",
        ),
        # One request of 14 silently prefilled on the decode side.
        (
            {**PULLED, "prompt_tokens_by_source": sources(64, 832)},
            "the decode pool computed 64 of its 896 prompt tokens itself (7.1%; up to 1 a request is normal): "
            "KV did not arrive for all requests",
        ),
        ({**PULLED, "kv_transfer": {"failed_transfers": 2.0}}, "2 KV transfers failed"),
        ({**PULLED, "prompt_tokens": 0}, "the decode pool saw no prompt"),
        (
            {**PULLED, "kv_transfer": {"late_notifications": 1.0}},
            "1 KV transfers ended after their lease: their blocks may have been overwritten",
        ),
    ],
)
def test_disaggregation_that_did_not_happen(decode: dict[str, Any], reason: str) -> None:
    plan, result = pd(decode)
    assert judge(plan, POINT, result) == [reason]


def test_a_prefill_pool_that_was_passed_by() -> None:
    plan, result = pd(PULLED, {**PREFILL, "prompt_tokens": 0})
    assert judge(plan, POINT, result) == ["the prefill pool saw no prompt"]


@pytest.mark.parametrize("decode", [PULLED, {**PULLED, "prompt_tokens_by_source": sources(14, 882)}])
def test_a_token_a_request_computed_anew_is_normal(decode: dict[str, Any]) -> None:
    plan, result = pd(decode)
    assert judge(plan, POINT, result) == []
    assert remarks(plan, POINT, result) == []


def test_kv_in_files_is_loaded_in_whole_blocks() -> None:
    files = Proof("kv_transfer", 64, two_step=False)
    for block, local, good in ((32, 14 * 32, True), (None, 14 * 60, True), (16, 14 * 32, False)):
        plan, result = pd(
            {**PULLED, "block_size_tokens": block, "prompt_tokens_by_source": sources(local, 896 - local)}, proof=files
        )
        assert (judge(plan, POINT, result) == []) is good


def test_counters_that_were_not_read_are_a_remark() -> None:
    remark = "the decode pool's counters were not read, so silent local prefill is not ruled out"
    for decode in (None, {**PULLED, "prompt_tokens_by_source": None}):
        plan, result = pd(decode)
        assert judge(plan, POINT, result) == []
        assert remarks(plan, POINT, result) == [remark]


@pytest.mark.parametrize(
    ("pool", "remark"),
    [
        ({"preemptions": 1234.0}, "the serve engines preempted 1,234 requests: their KV cache was full"),
        ({"prefix_cache_hit_ratio": 0.25}, "25.0% of the serve pool's prompt tokens were prefix-cache hits"),
        ({"unscraped": ["serve-0"]}, "the counters of serve-0 could not be read"),
        ({"kv_transfer": {"expired_requests": 2.0}}, "2 prefilled requests of the serve pool were never fetched"),
    ],
)
def test_remarks_of_the_pools(pool: dict[str, Any], remark: str) -> None:
    result = dataclasses.replace(GOOD, pools={"serve": pool})
    assert remarks(make_plan(POINT), POINT, result) == [remark]
    assert judge(make_plan(POINT), POINT, result) == []


def test_answers_that_were_not_streamed_are_a_remark() -> None:
    result = dataclasses.replace(GOOD, ttft_ms=None)
    assert remarks(make_plan(POINT), POINT, result) == ["no time to first token: the answers were not streamed"]
