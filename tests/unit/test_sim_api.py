"""The HTTP surface of a live simulated process."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time

import pytest

from simkit import Sim, Sims, samples, until, words


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    sims = Sims(tmp_path_factory.mktemp("sim"))
    yield sims.start("--max-model-len=512", "-dp=2", "--enable-prompt-tokens-details").ready()
    sims.close()


def stream(sim: Sim, path: str, body: dict) -> list:
    reply = sim.call("POST", path, {"model": "tiny", "stream": True, **body})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    return reply.events


def test_the_small_routes(engine):
    assert engine.call("GET", "/health").body == b""
    assert engine.call("POST", "/ping").status == 200
    assert engine.call("GET", "/version").json["version"].endswith("+sim")
    assert engine.call("GET", "/load").json == {"server_load": 0}
    card = engine.call("GET", "/v1/models").json["data"][0]
    assert (card["id"], card["root"], card["max_model_len"], card["object"]) == ("tiny", "tiny", 512, "model")
    assert engine.call("GET", "/nowhere").status == 404
    assert engine.call("GET", "/v1/completions").status == 405


def test_a_completion(engine):
    reply = engine.complete(words(10), 6, ignore_eos=True, min_tokens=6, temperature=0).json
    choice = reply["choices"][0]
    assert re.fullmatch(r"( w\d+){6}", choice["text"])
    assert choice["finish_reason"] == "length"
    assert reply["object"] == "text_completion"
    assert reply["kv_transfer_params"] is None
    assert reply["usage"]["prompt_tokens"] == 10
    assert reply["usage"]["completion_tokens"] == 6
    assert reply["usage"]["total_tokens"] == 16


def test_the_default_is_sixteen_tokens_and_chat_fills_the_context(engine):
    short = engine.call("POST", "/v1/completions", {"prompt": "a b"}).json
    assert short["usage"]["completion_tokens"] == 16
    body = {"messages": [{"role": "user", "content": words(500)}]}
    assert engine.call("POST", "/v1/chat/completions", body).json["usage"]["completion_tokens"] == 12


def test_a_stream_says_what_a_document_says(engine):
    whole = engine.complete(words(20), 9).json["choices"][0]["text"]
    *chunks, usage, done = stream(
        engine, "/v1/completions", {"prompt": words(20), "max_tokens": 9, "stream_options": {"include_usage": True}}
    )
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 8 + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (20, 9)
    assert done == "[DONE]"


def test_usage_in_every_chunk(engine):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _, _ = stream(engine, "/v1/completions", {"prompt": "a", "max_tokens": 3, "stream_options": options})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]


def test_chat(engine):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    whole = engine.call(
        "POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_completion_tokens": 5}
    ).json
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert whole["usage"]["prompt_tokens"] == 3
    role, *chunks, done = stream(engine, "/v1/chat/completions", {"messages": messages, "max_tokens": 5})
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert (
        "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        == whole["choices"][0]["message"]["content"]
    )
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"


def test_several_prompts_in_one_request(engine):
    both = engine.complete(["a b c", "d e"], 3).json
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    assert both["choices"][1]["text"] == engine.complete("d e", 3).json["choices"][0]["text"]
    assert both["usage"]["prompt_tokens"] == 5
    chunks = stream(engine, "/v1/completions", {"prompt": ["a b c", "d e"], "max_tokens": 3})[:-1]
    for index in (0, 1):
        said = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"][0]["index"] == index)
        assert said == both["choices"][index]["text"]


def test_token_ids_go_both_ways(engine):
    found = engine.call("POST", "/tokenize", {"prompt": "to be or not zyzzyva", "return_token_strs": True}).json
    assert (found["count"], found["max_model_len"], found["tokens"][-1]) == (5, 512, 0)
    assert found["token_strs"] == ["to", "be", "or", "not", "zyzzyva"]
    known = found["tokens"][:4]
    assert engine.call("POST", "/detokenize", {"tokens": known}).json == {"prompt": "to be or not"}
    by_text = engine.complete("to be or not", 4, return_token_ids=True).json["choices"][0]
    by_ids = engine.complete(known, 4, return_token_ids=True).json["choices"][0]
    assert by_ids["text"] == by_text["text"]
    assert by_ids["token_ids"] == by_text["token_ids"]
    said = engine.call("POST", "/detokenize", {"tokens": by_text["token_ids"]}).json["prompt"]
    assert said == by_text["text"].strip()
    assert engine.complete([known, known], 1).json["usage"]["prompt_tokens"] == 8


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        (b"{", 400, "BadRequestError", "JSON"),
        (b"[]", 400, "BadRequestError", "not a JSON object"),
        ({"model": "other", "prompt": "a"}, 404, "NotFoundError", "The model `other` does not exist"),
        ({"prompt": ""}, 400, "BadRequestError", "cannot be empty"),
        ({"prompt": []}, 400, "BadRequestError", "cannot be empty"),
        ({}, 400, "BadRequestError", "neither a text nor a list"),
        ({"prompt": [1, "a"]}, 400, "BadRequestError", "neither a text nor"),
        ({"prompt": [10**6]}, 400, "BadRequestError", "out of vocabulary"),
        ({"prompt": words(513)}, 400, "BadRequestError", "maximum context length is 512 tokens"),
        ({"prompt": words(500), "max_tokens": 13}, 400, "BadRequestError", "you requested 13 output tokens"),
        ({"prompt": "a", "max_tokens": 0}, 400, "BadRequestError", "must be at least 1"),
        ({"prompt": "a", "max_tokens": "many"}, 400, "BadRequestError", "not a whole number"),
        ({"prompt": "a", "max_tokens": 3, "min_tokens": 4}, 400, "BadRequestError", "min_tokens"),
        ({"prompt": "a", "n": 2}, 400, "BadRequestError", "n must be 1"),
        ({"prompt": "a", "kv_transfer_params": "x"}, 400, "BadRequestError", "kv_transfer_params"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream=True"),
    ],
)
def test_refusals_have_the_shape_of_vllm(engine, body, status, kind, message):
    reply = engine.call("POST", "/v1/completions", body)
    error = reply.json["error"]
    assert (reply.status, error["code"], error["type"]) == (status, status, kind)
    assert message in error["message"]
    assert "param" in error


def test_chat_needs_messages(engine):
    for messages in (None, "hello", [{"role": "user"}], []):
        assert engine.call("POST", "/v1/chat/completions", {"messages": messages}).status == 400


def test_the_dp_rank_of_the_header_answers(engine):
    before = [engine.metric("vllm:request_success_total", engine=rank) for rank in "01"]
    for _ in range(3):
        engine.complete("a", 1, {"X-data-parallel-rank": "1"})
    after = [engine.metric("vllm:request_success_total", engine=rank) for rank in "01"]
    assert (after[0] - before[0], after[1] - before[1]) == (0, 3)
    refused = engine.complete("a", 1, {"X-data-parallel-rank": "2"})
    assert refused.status == 400
    assert "out of range [0, 2)" in refused.json["error"]["message"]


def test_requests_without_a_rank_are_spread(engine):
    before = [engine.metric("vllm:request_success_total", engine=rank) for rank in "01"]
    for _ in range(6):
        engine.complete("a", 1)
    after = [engine.metric("vllm:request_success_total", engine=rank) for rank in "01"]
    assert (after[0] - before[0], after[1] - before[1]) == (3, 3)


def test_the_metrics_are_prometheus_text(engine):
    engine.complete(words(50), 7)
    reply = engine.call("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    for name, labels, value in samples(text):
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in types or types[family] == "histogram", name
        assert value >= 0
        assert labels["engine"] in "01"
    histograms = [name for name, kind in types.items() if kind == "histogram"]
    assert "vllm:time_to_first_token_seconds" in histograms
    for name in histograms:
        for rank in "01":
            of = [
                (has, value)
                for found, has, value in samples(text)
                if found == f"{name}_bucket" and has["engine"] == rank
            ]
            values = [value for _, value in of]
            assert values == sorted(values)
            assert of[-1][0]["le"] == "+Inf"
            assert values[-1] == next(
                v for n, has, v in samples(text) if n == f"{name}_count" and has["engine"] == rank
            )


def test_the_counters_count(engine):
    names = ["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"]
    before = [engine.metric(name) for name in names]
    engine.complete(words(33, "fresh"), 5)
    assert [engine.metric(name) - was for name, was in zip(names, before, strict=True)] == [33, 5, 1]
    assert engine.metric("vllm:num_requests_running") == 0


def test_a_repeated_prompt_hits_the_cache_of_its_rank(engine):
    head = {"X-data-parallel-rank": "0"}
    first = engine.complete(words(100, "again"), 2, head).json
    second = engine.complete(words(100, "again"), 2, head).json
    elsewhere = engine.complete(words(100, "again"), 2, {"X-data-parallel-rank": "1"}).json
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in (first, second, elsewhere)]
    assert cached == [0, 96, 0]
    assert first["choices"][0]["text"] == second["choices"][0]["text"] == elsewhere["choices"][0]["text"]


def test_a_connection_is_kept_and_pipelined(engine):
    body = json.dumps({"prompt": "a b", "max_tokens": 2, "stream": True}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", engine.port), 10) as connection:
        connection.sendall(request[:30])
        connection.sendall(request[30:] + request + b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
        got = b""
        while part := connection.recv(65536):
            got += part
    assert got.count(b"HTTP/1.1 200 OK") == 3
    assert got.count(b"data: [DONE]") == 2


def test_a_body_in_chunks(engine):
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)
    parts = iter([b'{"prompt": "a', b' b c", "max', b'_tokens": 3}'])
    connection.request("POST", "/v1/completions", parts, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert json.loads(connection.getresponse().read())["usage"]["prompt_tokens"] == 3
    connection.close()


def test_http_1_0_gets_a_stream_without_chunks(engine):
    body = b'{"prompt": "a", "max_tokens": 2, "stream": true}'
    with socket.create_connection(("127.0.0.1", engine.port), 10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        got = b""
        while part := connection.recv(65536):
            got += part
    head, _, rest = got.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert rest.startswith(b"data: {")
    assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", b"413"),
        (b"x" * 70000, b"431"),
    ],
)
def test_what_is_no_http_is_refused(engine, request_, status):
    with socket.create_connection(("127.0.0.1", engine.port), 10) as connection:
        connection.sendall(request_)
        got = b""
        while part := connection.recv(65536):
            got += part
    assert got.split()[1] == status
    assert engine.healthy()


def test_a_client_that_goes_is_forgotten(engine):
    before = engine.metric("vllm:request_success_total", finished_reason="abort")
    body = b'{"prompt": "a", "max_tokens": 500, "stream": true, "ignore_eos": true}'
    with socket.create_connection(("127.0.0.1", engine.port), 10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        connection.recv(100)
    until(
        "an aborted request", lambda: engine.metric("vllm:request_success_total", finished_reason="abort") == before + 1
    )
    assert engine.call("GET", "/load").json == {"server_load": 0}
    assert engine.metric("vllm:num_requests_running") == 0


@pytest.mark.parametrize(("flags", "env"), [(["--api-key=secret"], {}), ([], {"VLLM_API_KEY": "secret"})])
def test_an_api_key_is_asked_for(tmp_path, flags, env):
    sims = Sims(tmp_path)
    try:
        sim = sims.start(*flags, env=env).ready()
        assert sim.call("GET", "/v1/models").status == 401
        assert sim.call("GET", "/v1/models", headers={"Authorization": "Bearer secret"}).status == 200
    finally:
        sims.close()


def test_answers_end_by_themselves_where_that_is_asked(tmp_path):
    sims = Sims(tmp_path)
    try:
        sim = sims.start(sim={"answer_tokens": 7}).ready()
        natural = sim.complete("a", 50).json
        assert (natural["usage"]["completion_tokens"], natural["choices"][0]["finish_reason"]) == (7, "stop")
        assert sim.complete("a", 50, ignore_eos=True).json["usage"]["completion_tokens"] == 50
        assert sim.complete("a", 50, min_tokens=9).json["usage"]["completion_tokens"] == 9
        assert sim.complete("a", 3).json["choices"][0]["finish_reason"] == "length"
    finally:
        sims.close()


def test_times_are_not_shorter_than_the_model_says(tmp_path):
    sims = Sims(tmp_path)
    try:
        sim = sims.start(sim={"ttft_base_ms": 100, "prefill_tokens_per_s": 1000, "tpot_base_ms": 10}).ready()
        began = time.monotonic()
        sim.complete(words(100), 11)
        assert time.monotonic() - began >= 0.1 + 100 / 1000 + 10 * 0.010
        assert sim.metric("vllm:time_to_first_token_seconds_sum") >= 0.2
        assert sim.metric("vllm:inter_token_latency_seconds_sum") >= 0.099
    finally:
        sims.close()
