from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.plan.model import Plan, Point, Process, Proof
from recipe_toolkit.results.collect import point_result
from recipe_toolkit.results.gate import few_for, judge, remarks
from recipe_toolkit.results.model import ClientLoad, Length, PointResult, Requests
from recipe_toolkit.results.pools import pool_metrics
from recipe_toolkit.results.records import Request, whole
from recipe_toolkit.results.rules import RULES
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


def said(plan: Plan, result: PointResult, point: Point = POINT) -> list[str]:
    return [reason.said for reason in judge(plan, point, result)]


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
    assert said(make_plan(POINT), dataclasses.replace(GOOD, **change)) == [reason]


def test_nothing_answered() -> None:
    reasons = said(make_plan(POINT), dataclasses.replace(GOOD, requests=Requests(12, 0, 0)))
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
    assert reason.said.startswith("output length: 900 tokens a request were wanted and 970.00 seen")


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
    assert said(plan, result) == [reason]


def test_a_prefill_pool_that_was_passed_by() -> None:
    plan, result = pd(PULLED, {**PREFILL, "prompt_tokens": 0})
    assert said(plan, result) == ["the prefill pool saw no prompt"]


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
        (
            {"preemptions": 1234.0, "requests": 200000},
            "the serve engines preempted 1,234 requests: their KV cache was full",
        ),
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


# --- each rule by its name ------------------------------------------------------------------------------------------


def serving(argv: tuple[str, ...] = ("vllm", "serve", "m"), **changes: Any) -> Plan:
    process = Process(name="serve-0", role="serve", instance=0, rank=0, node=0, argv=argv)
    return make_plan(POINT, processes=(process,), **changes)


def client_of(client: str, *argv: str, **changes: Any) -> Point:
    point = make_point(client=client, **changes)
    return dataclasses.replace(point, process=dataclasses.replace(point.process, argv=argv))


POOL: dict[str, Any] = {"processes": ["serve-0"], "requests": 12.0, "prompt_tokens": 768.0}
LATE = {**PULLED, "kv_transfer": {"late_notifications": 1.0}}
RULE_CASES: dict[str, tuple[Plan, PointResult]] = {
    "client-failed": (make_plan(POINT), dataclasses.replace(GOOD, exit_code=1)),
    "requests-failed": (make_plan(POINT), dataclasses.replace(GOOD, requests=Requests(12, 11, 1))),
    "requests-missing": (make_plan(POINT), dataclasses.replace(GOOD, requests=Requests(12, 11, 0))),
    "tokens-missing": (make_plan(POINT), dataclasses.replace(GOOD, output_tps=0.0)),
    "input-length": (make_plan(POINT), dataclasses.replace(GOOD, **length("isl", 1000, 900.0))),
    "output-length": (make_plan(POINT), dataclasses.replace(GOOD, **length("osl", 1000, 900.0))),
    "too-few-requests": (make_plan(POINT, slo={"ttft_p99_s": 1.0}), GOOD),
    "client-saturated": (make_plan(POINT), dataclasses.replace(GOOD, client_load=ClientLoad(9, 1.5, 0.9, 0.06))),
    "answers-whole": (make_plan(POINT), dataclasses.replace(GOOD, whole_answers=1)),
    "engine-restarted": (make_plan(POINT), dataclasses.replace(GOOD, pools={"serve": {"restarted": ["serve-0"]}})),
    "engine-preempted": (make_plan(POINT), dataclasses.replace(GOOD, pools={"serve": {**POOL, "preemptions": 1.0}})),
    "prefix-cache-hits": (
        make_plan(POINT),
        dataclasses.replace(
            GOOD, pools={"serve": {**POOL, "prefix_cache_queries_tokens": 768.0, "prefix_cache_hits_tokens": 64.0}}
        ),
    ),
    "spec-decode-silent": (
        serving(("vllm", "serve", "m", "--speculative-config", "{}")),
        dataclasses.replace(GOOD, pools={"serve": {**POOL, "spec_decode": None}}),
    ),
    "local-prefill": pd({**PULLED, "prompt_tokens_by_source": sources(896, 0)}),
    "pool-idle": pd({**PULLED, "prompt_tokens": 0}),
    "kv-transfer-failed": pd({**PULLED, "kv_transfer": {"failed_transfers": 2.0}}),
    "kv-transfer-late": pd(LATE),
}
# Where else they are tried: what the clients write, and lm-eval's scores.
ELSEWHERE = {"client-files", "warmup-missing", "score-low", "score-missing"}


@pytest.mark.parametrize("rule", RULE_CASES)
def test_each_rule_finds_its_fault_and_says_what_to_do(rule: str) -> None:
    plan, result = RULE_CASES[rule]
    (reason,) = judge(plan, POINT, result)
    assert reason.rule == rule
    assert reason.text == f"{reason.said}; {RULES[rule].do}"


def test_no_rule_is_without_a_test() -> None:
    assert {*RULE_CASES, *ELSEWHERE} == set(RULES)


def test_warm_up_that_did_not_happen(tmp_path: Path) -> None:
    for name in ("profile_export_aiperf.json", "profile_export.jsonl"):
        text = (DATA / "aiperf" / "ok" / name).read_text()
        lines = [line for line in text.splitlines() if '"benchmark_phase":"warmup"' not in line]
        (tmp_path / name).write_text("\n".join(lines))
    result = point_result(make_plan(POINT), POINT, tmp_path, 0, 9.0, {})
    assert (result.rules, POINT.warmup) == (("warmup-missing",), 2)
    assert result.reasons[0].startswith("2 warm-up requests were wanted and 0 were answered; ")
    cold = dataclasses.replace(POINT, warmup=None)
    assert point_result(make_plan(cold), cold, tmp_path, 0, 9.0, {}).valid


@pytest.mark.parametrize(
    ("load", "good"),
    [
        (ClientLoad(9, 3.0, 0.94, None), True),
        (ClientLoad(9, 3.0, 0.96, None), False),
        (ClientLoad(9, 3.0, 0.5, 0.46), False),
        # A point of less than five seconds says too little.
        (ClientLoad(4, 3.0, 1.0, 0.0), True),
    ],
)
def test_when_the_client_is_the_bottleneck(load: ClientLoad, good: bool) -> None:
    result = dataclasses.replace(GOOD, client_load=load)
    assert (judge(make_plan(POINT), POINT, result) == []) is good
    on_cpu = judge(make_plan(POINT, device="cpu"), POINT, result)
    assert (on_cpu == []) is (good or load.busiest_thread_ratio == 0.5)
    simulated = make_plan(POINT, engine="sim")
    assert judge(simulated, POINT, result) == []
    assert (remarks(simulated, POINT, result) == []) is good


def test_answers_that_came_in_one_piece() -> None:
    at_once = Request(0.0, 0.5, 0.5, 64, 16)
    streamed = Request(0.0, 0.5, 0.5 + 15 * 0.06e-3, 64, 16)
    short = Request(0.0, 0.5, 0.5, 64, 15)  # speculative decoding may make as many in one step
    assert whole([at_once, streamed, short, at_once]) == 2
    few = dataclasses.replace(GOOD, requests=Requests(100, 100, 0), whole_answers=5)
    assert judge(make_plan(POINT), POINT, few) == []
    (reason,) = judge(make_plan(POINT), POINT, dataclasses.replace(few, whole_answers=6))
    assert reason.text.startswith("6 of 100 answers came in one piece, and 5% are allowed; TTFT is then")
    many = dataclasses.replace(few, whole_answers=6)
    for crowded in (make_plan(POINT, engine="sim"), make_plan(POINT, device="cpu")):
        assert judge(crowded, POINT, many) == []
        assert remarks(crowded, POINT, many) == [reason.said]


def test_prefix_hits_that_are_meant() -> None:
    pools = {"serve": {**POOL, "prefix_cache_queries_tokens": 896.0, "prefix_cache_hits_tokens": 128.0}}
    pools["serve"]["prefix_cache_hit_ratio"] = 128 / 896
    result = dataclasses.replace(GOOD, pools=pools)
    shared = client_of("aiperf", "aiperf", "profile", "--shared-system-prompt-length", "512")
    assert judge(make_plan(shared), shared, result) == []
    assert len(remarks(make_plan(shared), shared, result)) == 1
    # The warm-up of vLLM's client is its first prompt: two of 64 tokens.
    warm = client_of("vllm-bench", "vllm", "bench", "serve", "--dataset-name", "random")
    assert judge(make_plan(warm), warm, result) == []
    cold = dataclasses.replace(warm, warmup=None)
    assert [reason.rule for reason in judge(make_plan(cold), cold, result)] == ["prefix-cache-hits"]


def test_speculative_decoding_that_drafts() -> None:
    plan, _ = RULE_CASES["spec-decode-silent"]
    drafting = dataclasses.replace(GOOD, pools={"serve": {**POOL, "spec_decode": {"drafts": 9.0}}})
    unread = dataclasses.replace(GOOD, pools={"serve": {"processes": [], "unscraped": ["serve-0"]}})
    assert judge(plan, POINT, drafting) == judge(plan, POINT, unread) == []
    silent = dataclasses.replace(drafting, pools={"serve": {**POOL, "spec_decode": None}})
    assert judge(serving(), POINT, silent) == []


@pytest.mark.parametrize(("requests", "found"), [(99, ("p90", "p99")), (100, ("p99",)), (999, ("p99",)), (1000, ())])
def test_percentiles_that_so_few_requests_do_not_support(requests: int, found: tuple[str, ...]) -> None:
    assert few_for(requests) == found


@pytest.mark.parametrize(("bound", "requests"), [("ttft_p99_s", 1000), ("tpot_p90_ms", 100), ("e2e_p50_s", 20)])
def test_a_bound_on_a_percentile_needs_ten_requests_beyond_it(bound: str, requests: int) -> None:
    plan = make_plan(POINT, slo={bound: 1.0, "ttft_mean_s": 2.0})
    enough = dataclasses.replace(GOOD, requests=Requests(requests, requests, 0))
    short = dataclasses.replace(GOOD, requests=Requests(requests - 1, requests - 1, 0))
    assert judge(plan, POINT, enough) == []
    assert [reason.rule for reason in judge(plan, POINT, short)] == ["too-few-requests"]


def test_an_engine_that_says_another_time_of_start_has_restarted() -> None:
    before = "process_start_time_seconds 100.5\nvllm:prompt_tokens_total 5\n"
    after = "process_start_time_seconds 200.5\nvllm:prompt_tokens_total 50\n"
    assert pool_metrics({"serve-0": before}, {"serve-0": after})["serve"]["restarted"] == ["serve-0"]
    assert pool_metrics({"serve-0": before}, {"serve-0": before})["serve"]["restarted"] == []
