from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_toolkit.results.pools import PoolGauges, pool_metrics, role_of
from recipe_toolkit.results.prometheus import parse
from results_support import DATA, recorded_metrics


def test_real_pull_between_two_vllm_engines() -> None:
    pools = pool_metrics(recorded_metrics("before"), recorded_metrics("after"))
    decode = pools["decode"]
    assert decode["processes"] == ["decode-0"]
    assert decode["requests"] == 6
    assert decode["prompt_tokens_by_source"] == {
        "local_compute": 0,
        "local_cache_hit": 0,
        "external_kv_transfer": 6 * 131,
    }
    assert decode["generation_tokens"] == 6 * 12
    assert decode["preemptions"] == 0
    assert (decode["block_size_tokens"], decode["kv_blocks"]) == (32, 2048)
    transfer = decode["kv_transfer"]
    assert transfer["transfers"] == 6
    assert transfer["failed_transfers"] == transfer["failed_notifications"] == 0
    assert transfer["time_total_s"] == pytest.approx(0.02431 - 0.008594)
    assert transfer["time_mean_ms"] == pytest.approx((0.02431 - 0.008594) / 6 * 1000)
    assert transfer["bytes_mean"] == 163840
    assert transfer["bytes_per_s"] == pytest.approx(6 * 163840 / (0.02431 - 0.008594))
    assert decode["spec_decode"] is None
    prefill = pools["prefill"]
    assert prefill["requests"] == 6
    assert prefill["prompt_tokens_by_source"]["local_compute"] == 6 * 131
    assert prefill["server_ttft_mean_ms"] > 0
    assert prefill["server_queue_mean_ms"] > 0
    # One token each: the prefill's requests have no TPOT to speak of, and the counters say 0.
    assert prefill["generation_tokens"] == 6


def test_silent_local_prefill_shows_in_the_decodes_counters() -> None:
    decode = pool_metrics(recorded_metrics("after"), recorded_metrics("silent"))["decode"]
    assert decode["prompt_tokens_by_source"] == {
        "local_compute": 4 * 134,
        "local_cache_hit": 0,
        "external_kv_transfer": 0,
    }
    assert decode["kv_transfer"]["transfers"] == 0
    assert decode["kv_transfer"]["time_mean_ms"] is None


def test_prefills_that_nobody_fetched_expire() -> None:
    before = recorded_metrics("silent")
    after = {"prefill-0": (DATA / "metrics" / "expired-prefill-0.txt").read_text()}
    pools = pool_metrics(before, after)
    assert pools["prefill"]["kv_transfer"]["expired_requests"] == 4
    assert pools["decode"]["unscraped"] == ["decode-0"]
    assert pools["decode"]["requests"] is None


def test_what_is_missing_is_none_and_never_0() -> None:
    pools = pool_metrics({"serve-0": "", "router": "x 1"}, {"serve-0": "not a metric\n", "router": "x 2"})
    assert list(pools) == ["serve"]
    left = {key: value for key, value in pools["serve"].items() if value is not None}
    assert left == {"processes": ["serve-0"], "unscraped": [], "restarted": []}


def test_processes_of_a_role_and_engines_of_a_process_are_summed() -> None:
    text = 'vllm:prompt_tokens_total{{engine="0"}} {a}\nvllm:prompt_tokens_total{{engine="1"}} {b}\n'
    before = {"decode-0.0": text.format(a=1, b=2), "decode-0.1": text.format(a=3, b=4), "decode-1": ""}
    after = {
        "decode-0.0": text.format(a=11, b=22),
        "decode-0.1": text.format(a=33, b=44),
        "decode-1": text.format(a=5, b=6),
    }
    pool = pool_metrics(before, after)["decode"]
    assert pool["prompt_tokens"] == 10 + 20 + 30 + 40 + 5 + 6
    assert pool["processes"] == ["decode-0.0", "decode-0.1", "decode-1"]


def test_an_engine_that_restarted_is_named_and_counts_from_its_start() -> None:
    pool = pool_metrics({"serve-0": "vllm:prompt_tokens_total 100"}, {"serve-0": "vllm:prompt_tokens_total 30"})[
        "serve"
    ]
    assert pool["restarted"] == ["serve-0"]
    assert pool["prompt_tokens"] == 30


def test_speculative_decoding_is_recorded_metrics() -> None:
    text = "\n".join(
        [
            "vllm:spec_decode_num_drafts_total 100",
            "vllm:spec_decode_num_draft_tokens_total 300",
            "vllm:spec_decode_num_accepted_tokens_total 180",
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 90',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 60',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="10"} 30',
        ]
    )
    spec = pool_metrics({"serve-0": ""}, {"serve-0": text})["serve"]["spec_decode"]
    assert spec["mean_acceptance_length_tokens"] == 2.8
    assert spec["acceptance_ratio"] == 0.6
    assert spec["accepted_by_position_ratio"] == [0.9, 0.6, 0.3]


def test_gauges_over_the_time_of_a_point() -> None:
    gauges = PoolGauges()
    for usage, running in ((0.2, 3), (0.6, 5)):
        text = (
            f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\nvllm:kv_cache_usage_perc{{engine="1"}} 0.4\n'
            f"vllm:num_requests_running {running}\nvllm:num_requests_waiting NaN\n"
        )
        gauges.add({"decode-0": text, "decode-1": text, "router": text})
    pool = pool_metrics({"decode-0": ""}, {"decode-0": ""}, gauges)["decode"]
    assert pool["kv_usage_mean_ratio"] == pytest.approx(0.4)
    assert pool["kv_usage_max_ratio"] == 0.6
    assert pool["running_max_requests"] == 10
    assert pool["waiting_max_requests"] is None


@pytest.mark.parametrize(
    ("name", "role"),
    [("prefill-0.1", "prefill"), ("decode-12", "decode"), ("serve-0", "serve"), ("router", None), ("bench-c1", None)],
)
def test_role_by_name(name: str, role: str | None) -> None:
    assert role_of(name) == role


def test_text_format_with_escapes_infinity_and_timestamps() -> None:
    text = "\n".join(
        [
            "# HELP a_total x",
            r'a_total{path="C:\\x",say="\"hi\", {you}\n",} 1.5e3 1700000000',
            "b_sum +Inf",
            "b_count NaN",
            'b_bucket{le="+Inf"} 3',
            "a_created 1.7e9",
            "c_total",
            "c_total seven",
            'd_total{unclosed="x} 1',
            "  # odd",
            'e_total{le="1"} 4 # {trace_id="x"} 1.0',
        ]
    )
    samples = {sample.name: sample for sample in parse(text)}
    assert set(samples) == {"a_total", "b_sum", "b_count", "e_total"}
    assert samples["a_total"].value == 1500
    assert samples["a_total"].labels == {"path": "C:\\x", "say": '"hi", {you}\n'}
    assert math.isinf(samples["b_sum"].value)
    assert math.isnan(samples["b_count"].value)
    assert samples["e_total"].value == 4


@settings(deadline=None)
@given(st.lists(st.text(alphabet='ab_{}"\\=,.:0 \n#', max_size=40), max_size=20))
def test_any_text_is_parsed_without_an_error(lines: list[str]) -> None:
    text = "\n".join(lines)
    list(parse(text))
    pool_metrics({"serve-0": text}, {"serve-0": "vllm:" + text})


def test_infinite_counters_do_not_reach_the_figures() -> None:
    pools = pool_metrics({"serve-0": ""}, {"serve-0": "vllm:prompt_tokens_total +Inf\nvllm:num_preemptions_total NaN"})
    assert pools["serve"]["prompt_tokens"] is None
    assert pools["serve"]["preemptions"] is None
