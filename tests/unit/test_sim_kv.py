"""Prefill and decode apart: the exchange of kv_transfer_params and the side channel."""

from __future__ import annotations

import json

import pytest

from simkit import REMOTE_DECODE, Sims, disaggregated, free_ports, texts, until, words

SOURCE = "vllm:prompt_tokens_by_source_total"
FAILED = "vllm:nixl_num_failed_transfers_total"


@pytest.fixture
def sims(tmp_path):
    made = Sims(tmp_path)
    yield made
    made.close()


def test_the_params_are_those_of_vllm(sims):
    prefill, _ = sims.pair("-dp=2")
    reply = prefill.complete(words(100), 1, kv_transfer_params=REMOTE_DECODE).json
    params = reply["kv_transfer_params"]
    assert list(params) == [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
    ]
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert len(params["remote_block_ids"][0]) == 7
    assert params["remote_num_tokens"] == 100
    assert params["remote_request_id"].startswith("cmpl-")
    assert prefill.complete(words(100), 1).json["kv_transfer_params"] is None


def test_disaggregated_answers_are_the_aggregated_ones(sims):
    prefill, decode = sims.pair("-dp=2")
    alone = sims.start().ready()
    for number in range(6):
        prompt = words(90, f"p{number}x")
        _, answer = disaggregated(prefill, decode, prompt, 12, return_token_ids=True)
        whole = alone.complete(prompt, 12, return_token_ids=True)
        assert texts([answer]) == texts([whole])
        assert answer.json["choices"][0]["token_ids"] == whole.json["choices"][0]["token_ids"]
    assert decode.metric(SOURCE, source="external_kv_transfer") == 6 * 90
    assert decode.metric(SOURCE, source="local_compute") == 0
    assert prefill.metric(SOURCE, source="local_compute") == 6 * 90
    for rank in "01":
        assert decode.metric("vllm:nixl_xfer_time_seconds_count", engine=rank) == 3
    assert decode.metric("vllm:nixl_bytes_transferred_sum") == 6 * 90 * 65536
    assert decode.metric("vllm:nixl_num_descriptors_sum") == 6 * 6
    assert decode.metric(FAILED) == 0
    assert prefill.metric("vllm:kv_cache_usage_perc") == 0, "the decode side has said done"


def test_only_what_is_not_cached_is_transferred(sims):
    prefill, decode = sims.pair()
    disaggregated(prefill, decode, words(100), 2)
    disaggregated(prefill, decode, words(100), 2)
    assert decode.metric(SOURCE, source="local_cache_hit") == 96
    assert decode.metric(SOURCE, source="external_kv_transfer") == 100 + 4


def test_without_params_a_decode_prefills_by_itself(sims):
    _, decode = sims.pair()
    assert decode.complete(words(50), 3).status == 200
    assert decode.metric(SOURCE, source="local_compute") == 50
    broken = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_host": None}
    assert decode.complete(words(50, "other"), 3, kv_transfer_params=broken).status == 200
    assert decode.metric(SOURCE, source="local_compute") == 100


def test_kv_of_another_prompt_is_seen_in_the_answer(sims):
    prefill, decode = sims.pair()
    params = prefill.complete(words(60, "one"), 1, kv_transfer_params=REMOTE_DECODE).json["kv_transfer_params"]
    mixed_up = decode.complete(words(60, "two"), 8, kv_transfer_params=params)
    assert texts([mixed_up]) != texts([decode.complete(words(60, "two"), 8)])


def test_blocks_are_held_until_they_are_read(sims):
    prefill, decode = sims.pair()
    first = prefill.complete(words(100), 1, kv_transfer_params=REMOTE_DECODE)
    held = prefill.metric("vllm:kv_cache_usage_perc")
    assert held == pytest.approx(7 / 16384)
    decode.complete(words(100), 1, kv_transfer_params=first.json["kv_transfer_params"])
    assert prefill.metric("vllm:kv_cache_usage_perc") == 0
    again = decode.complete(words(100, "x"), 1, kv_transfer_params=first.json["kv_transfer_params"])
    assert again.status == 500, "they are gone"


def test_a_lease_ends(sims):
    config = {"kv_connector": "NixlConnector", "kv_connector_extra_config": {"kv_lease_duration": 0.2}}
    prefill = sims.start("--kv-transfer-config", json.dumps(config), env={"VLLM_NIXL_SIDE_CHANNEL_PORT": "0"}).ready()
    prefill.complete(words(100), 1, kv_transfer_params=REMOTE_DECODE)
    until("the end of the lease", lambda: prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == 1)
    assert prefill.metric("vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_prefill_fails_the_request_or_not_as_the_policy_says(sims, stream):
    for policy in ("fail", "recompute"):
        prefill, decode = sims.pair(policy=policy)
        params = prefill.complete(words(80), 1, kv_transfer_params=REMOTE_DECODE).json["kv_transfer_params"]
        prefill.process.kill()
        prefill.ends()
        reply = decode.complete(words(80), 3, kv_transfer_params=params, stream=stream)
        assert decode.metric(FAILED) == 1
        if policy == "recompute":
            assert reply.status == 200
            assert decode.metric(SOURCE, source="local_compute") == 80
        elif stream:
            # The status went out before the generation began.
            assert reply.events[0]["error"] == {
                "message": "Internal server error",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
            assert reply.events[1] == "[DONE]"
        else:
            assert reply.status == 500
            assert reply.json["error"]["type"] == "InternalServerError"
        assert decode.complete("a", 1).status == 200
        assert decode.metric("vllm:kv_cache_usage_perc") == 0


def test_the_first_handshakes_fail_where_that_is_asked(sims):
    prefill, decode = sims.pair(decode={"handshake_failures": 2, "handshake_timeout_s": 0.05}, policy="recompute")
    for number in range(3):
        assert disaggregated(prefill, decode, words(40, f"h{number}x"), 2)[1].status == 200
    assert decode.metric(FAILED) == 2
    assert decode.metric(SOURCE, source="local_compute") == 80
    assert decode.metric(SOURCE, source="external_kv_transfer") == 40


def test_a_decode_of_another_model_is_refused(sims):
    prefill, _ = sims.pair()
    config = json.dumps({"kv_connector": "NixlConnector"})
    env = {"VLLM_NIXL_SIDE_CHANNEL_PORT": "0"}
    other = sims.start("--model=other", "--kv-transfer-config", config, env=env, model=None).ready()
    params = prefill.complete(words(40), 1, kv_transfer_params=REMOTE_DECODE).json["kv_transfer_params"]
    assert other.call("POST", "/v1/completions", {"prompt": words(40), "kv_transfer_params": params}).status == 500
    other.says("compatibility hash mismatch")


@pytest.mark.parametrize(("tp", "status"), [("4", 200), ("3", 500)])
def test_tensor_parallel_sizes_must_divide_one_another(sims, tp, status):
    config = json.dumps({"kv_connector": "NixlConnector"})
    ends = [
        sims.start("-tp", size, "--kv-transfer-config", config, env={"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)})
        for size, port in zip(("2", tp), free_ports(2), strict=True)
    ]
    prefill, decode = (end.ready() for end in ends)
    assert disaggregated(prefill, decode, words(40), 2)[1].status == status


def test_faults_of_the_exchange(sims):
    prefill, decode = sims.pair(prefill={"fault": {"kind": "no_kv"}})
    assert prefill.complete(words(40), 1, kv_transfer_params=REMOTE_DECODE).json["kv_transfer_params"] is None
    lost, decode = sims.pair(prefill={"fault": {"kind": "lost_kv"}})
    assert disaggregated(lost, decode, words(40), 2)[1].status == 500
    decode.says("no KV is held")


def test_the_example_connector_needs_no_params(sims, tmp_path):
    config = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")},
    }
    ends = [
        sims.start("--kv-transfer-config", json.dumps({**config, "kv_role": role}))
        for role in ("kv_producer", "kv_consumer")
    ]
    prefill, decode = (end.ready() for end in ends)
    first = prefill.complete(words(100), 8)
    second = decode.complete(words(100), 8)
    assert texts([first]) == texts([second])
    assert decode.metric(SOURCE, source="external_kv_transfer") == 96
    assert decode.metric(SOURCE, source="local_compute") == 4
    assert not any("nixl" in line for line in decode.call("GET", "/metrics").body.decode().splitlines())


def test_the_decode_benchmark_computes_one_token_of_a_prompt(sims):
    config = {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}
    engine = sims.start("--kv-transfer-config", json.dumps(config)).ready()
    assert engine.complete(words(100), 8).status == 200
    assert engine.metric(SOURCE, source="external_kv_transfer") == 99
    assert engine.metric(SOURCE, source="local_compute") == 1
