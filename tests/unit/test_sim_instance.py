"""Instances of several processes, and what is left of them when one dies."""

from __future__ import annotations

import json
import time

import pytest

from simkit import REMOTE_DECODE, Sims, free_ports, texts, until, words


@pytest.fixture
def sims(tmp_path):
    made = Sims(tmp_path)
    yield made
    made.close()


def dp_pair(sims, *flags, fault=None, timeout="30"):
    """DP ranks 0 and 1 in one process, 2 and 3 in another."""
    common = (
        "-dp=4",
        "-dpl=2",
        "-dpa=127.0.0.1",
        f"-dpp={free_ports(1)[0]}",
        f"--distributed-timeout-seconds={timeout}",
    )
    other = sims.start(*common, "-dpr=2", "--headless", *flags, sim={"fault": fault} if fault else None)
    return sims.start(*common, *flags), other


def tp_pair(sims, timeout="30"):
    """One replica over two processes."""
    common = ("-tp=2", "--nnodes=2", f"--master-port={free_ports(1)[0]}", f"--distributed-timeout-seconds={timeout}")
    return sims.start(*common), sims.start(*common, "--node-rank=1", "--headless")


def at(rank: int) -> dict[str, str]:
    return {"X-data-parallel-rank": str(rank)}


def test_ranks_of_another_process_answer_through_the_head(sims):
    head, other = dp_pair(sims)
    head.ready()
    alone = sims.start().ready()
    expected = texts([alone.complete(words(70), 9)])
    for rank in range(4):
        assert texts([head.complete(words(70), 9, at(rank))]) == expected
        streamed = head.complete(words(70), 9, at(rank), stream=True).events
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed[:-1]) == expected[0]
        assert head.metric("vllm:prompt_tokens_total", engine=str(rank)) == 140
        assert head.metric("vllm:prefix_cache_hits_total", engine=str(rank)) == 64
        assert head.metric("vllm:time_to_first_token_seconds_count", engine=str(rank)) == 2
    other.says("Application startup complete")
    assert "API server" not in other.log.read_text()


def test_the_head_is_ready_when_all_are(sims):
    port = free_ports(1)[0]
    common = ("-dp=2", "-dpl=1", f"-dpp={port}")
    head = sims.start(*common)
    head.says("KV cache size")
    assert not head.healthy()
    sims.start(*common, "-dpr=1", "--headless", sim={"startup_s": 0.5})
    head.ready()


def test_a_killed_dp_rank_hangs_and_the_others_do_not(sims):
    """As seen with vLLM 0.32: /health stays 200, requests to the dead rank get no answer."""
    head, other = dp_pair(sims)
    head.ready()
    other.process.kill()
    other.ends()
    head.says("has gone")
    assert head.healthy()
    assert head.complete("a", 1, at(0)).status == 200
    with pytest.raises(TimeoutError):
        head.complete("a", 1, at(2), wait=1)
    assert head.healthy()
    assert head.stop() == 0


def test_a_lost_worker_ends_the_head_at_the_next_request(sims):
    head, other = tp_pair(sims)
    head.ready()
    assert head.complete("a", 3).status == 200
    other.process.kill()
    other.ends()
    head.says("has gone")
    assert head.healthy()
    reply = head.complete("a", 1)
    assert reply.status == 500
    assert "EngineCore encountered an issue" in reply.json["error"]["message"]
    assert head.ends() == 1


def test_headless_processes_outlive_their_head(sims):
    head, other = dp_pair(sims)
    head.ready()
    head.process.kill()
    head.ends()
    other.says("the connection to rank 0 is lost")
    time.sleep(0.2)
    assert other.process.poll() is None
    assert other.stop() == 0


def test_a_missing_process_is_waited_for_and_then_named(sims):
    head = sims.start("-dp=2", "-dpl=1", f"-dpp={free_ports(1)[0]}", "--distributed-timeout-seconds=1")
    assert head.ends() == 1
    head.says("timed out after 1 s: DP ranks [1] have not joined")
    lonely = sims.start(
        "-dp=2", "-dpl=1", "-dpr=1", f"-dpp={free_ports(1)[0]}", "--headless", "--distributed-timeout-seconds=1"
    )
    assert lonely.ends() == 1
    lonely.says("does not answer")


def test_a_process_that_dies_while_it_loads_is_missing(sims):
    head, other = dp_pair(sims, fault={"kind": "exit", "code": 9}, timeout="2")
    assert other.ends() == 9
    assert head.ends() == 1


def test_processes_must_be_of_one_configuration(sims):
    port = free_ports(1)[0]
    head = sims.start("-dp=2", "-dpl=1", f"-dpp={port}", "--distributed-timeout-seconds=3")
    head.says("Starting to load")
    stranger = sims.start("-dp=2", "-dpl=1", "-dpr=1", f"-dpp={port}", "--headless", "--max-model-len=99")
    assert stranger.ends() == 1
    stranger.says("its configuration is")
    double = sims.start("-dp=2", "-dpl=1", "-dpr=0", f"-dpp={port}", "--headless")
    assert double.ends() == 1
    double.says("have joined already")


def test_hybrid_has_an_api_server_in_each_process(sims):
    common = ("-dp=4", "-dpl=2", f"-dpp={free_ports(1)[0]}", "--data-parallel-hybrid-lb")
    ends = [sims.start(*common, f"-dpr={start}") for start in (0, 2)]
    for end, ranks in zip(ends, ((0, 1), (2, 3)), strict=True):
        end.ready()
        for index, rank in enumerate(ranks):
            # The header counts the ranks of one API server, the metrics those of the instance.
            assert end.complete("a", 2, at(index)).status == 200
            assert end.metric("vllm:generation_tokens_total", engine=str(rank)) == 2
        assert end.complete("a", 2, at(2)).status == 400
    ends[0].process.kill()
    ends[0].ends()
    assert ends[1].complete("a", 2).status == 200


def test_clients_that_go_are_forgotten_in_the_other_process_too(sims):
    head, _ = dp_pair(sims, "--max-model-len=8192")
    head.ready()
    with pytest.raises(TimeoutError):
        head.complete("a", 8000, at(3), wait=0.3)
    until(
        "an aborted request",
        lambda: head.metric("vllm:request_success_total", engine="3", finished_reason="abort") == 1,
    )
    assert head.metric("vllm:num_requests_running") == 0


def test_kv_is_handed_on_by_the_process_that_has_it(sims):
    config = json.dumps({"kv_connector": "NixlConnector"})
    common = ("-dp=4", "-dpl=2", f"-dpp={free_ports(1)[0]}", "--kv-transfer-config", config)
    channels = free_ports(6)
    # A base whose own DP ranks fall into the ports of each process.
    env = [{"VLLM_NIXL_SIDE_CHANNEL_PORT": str(base)} for base in (channels[0], channels[2] - 2, channels[4])]
    head = sims.start(*common, env=env[0])
    sims.start(*common, "-dpr=2", "--headless", env=env[1])
    head.ready()
    decode = sims.start("--kv-transfer-config", config, env=env[2]).ready()
    for rank in range(4):
        prompt = words(50, f"r{rank}x")
        params = head.complete(prompt, 1, at(rank), kv_transfer_params=REMOTE_DECODE).json["kv_transfer_params"]
        assert params["remote_port"] == channels[rank]
        assert decode.complete(prompt, 3, kv_transfer_params=params).status == 200
    assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 200
