"""Faults on demand, refusals at the start, and the end of a process."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from simkit import Sims, free_ports, until


@pytest.fixture
def sims(tmp_path):
    made = Sims(tmp_path)
    yield made
    made.close()


def fault(kind, **more):
    return {"fault": {"kind": kind, **more}}


def test_exit_at_the_start(sims):
    sim = sims.start(sim=fault("exit", code=7))
    assert sim.ends() == 7


def test_exit_after_it_was_ready(sims):
    sim = sims.start(sim=fault("exit", code=0, after_s=0.4)).ready()
    began = time.monotonic()
    assert sim.ends() == 0
    assert time.monotonic() - began < 5
    sim.says("fault on demand: exit")


def test_a_fault_is_of_one_instance_and_one_rank(sims):
    document = fault("exit", code=7, instance=1, rank=0)
    assert sims.start(sim=document, env={"RECIPE_INSTANCE": "1", "RECIPE_RANK": "0"}).ends() == 7
    sims.start(sim=document, env={"RECIPE_INSTANCE": "0", "RECIPE_RANK": "0"}).ready()


def test_hang(sims):
    sim = sims.start(sim=fault("hang", after_s=0.3)).ready()
    sim.says("fault on demand: hang")
    with pytest.raises(TimeoutError):
        sim.call("GET", "/health", wait=0.5)
    with pytest.raises(TimeoutError):
        sim.complete("a", 1, wait=0.5)
    assert sim.process.poll() is None
    assert sim.stop() == 0


def test_hang_of_generation_alone(sims):
    sim = sims.start("-dp=2", sim=fault("hang_generate", dp_rank=1)).ready()
    assert sim.complete("a", 1, {"X-data-parallel-rank": "0"}).status == 200
    with pytest.raises(TimeoutError):
        sim.complete("a", 1, {"X-data-parallel-rank": "1"}, wait=0.5)
    assert sim.healthy()


def test_never_ready(sims):
    sim = sims.start(sim=fault("never_ready"))
    time.sleep(1)
    assert sim.process.poll() is None
    assert not sim.healthy()
    assert sim.stop() == 0


def test_wrong_model(sims):
    sim = sims.start("--served-model-name=shown", sim=fault("wrong_model")).ready()
    assert [card["id"] for card in sim.call("GET", "/v1/models").json["data"]] == ["not-shown"]
    assert sim.call("POST", "/v1/completions", {"model": "shown", "prompt": "a"}).status == 404


def test_wrong_answer(sims):
    sim = sims.start(sim=fault("wrong_answer")).ready()
    reply = sim.complete("a", 5).json
    assert reply["choices"][0]["text"] == ""
    assert reply["usage"]["completion_tokens"] == 5
    assert all(not chunk["choices"][0]["text"] for chunk in sim.complete("a", 5, stream=True).events[:-1])


def test_slow_load_goes_on_showing_its_progress(sims):
    sim = sims.start(sim=fault("slow_load", load_s=1.2))
    sim.says("25% Completed")
    assert not sim.healthy()
    sim.ready()
    assert "100% Completed" in sim.log.read_text()


def usage(sim):
    """Share of the KV blocks that are in use."""
    (line,) = [
        row for row in sim.call("GET", "/metrics").body.decode().splitlines() if row.startswith("vllm:kv_cache_usage")
    ]
    return float(line.rpartition(" ")[2])


def test_leak_of_kv_blocks(sims):
    sim = sims.start("--max-model-len=64", sim={"kv_cache_tokens": 128, **fault("leak_kv")}).ready()
    assert sim.complete("a", 40).status == 200
    held = usage(sim)
    assert held > 0
    assert sim.complete("b", 40).status == 200
    assert usage(sim) > held
    with pytest.raises(TimeoutError):
        sim.complete("c", 40, wait=0.5)
    assert sim.healthy()


def test_leak_of_a_process(sims):
    sim = sims.start(sim=fault("leak_process")).ready()
    sim.says("fault on demand: process")
    pid = int(sim.log.read_text().partition("fault on demand: process ")[2].split()[0])
    try:
        assert sim.stop() == 0
        os.kill(pid, signal.SIGTERM)
        assert Path(f"/proc/{pid}").exists()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_ignore_term(sims):
    sim = sims.start(sim=fault("ignore_term")).ready()
    sim.process.send_signal(signal.SIGTERM)
    sim.says("SIGTERM is ignored")
    assert sim.healthy()


def test_a_port_that_is_taken(sims):
    first = sims.start().ready()
    second = sims.start(port=first.port)
    assert second.ends() == 1
    second.says("ddress already in use")
    master = free_ports(1)[0]
    one = sims.start("-dp=2", "-dpl=1", f"-dpp={master}")
    one.says("Starting to load")
    assert sims.start("-dp=2", "-dpl=1", f"-dpp={master}").ends() == 1


@pytest.mark.parametrize(
    ("flags", "options", "code", "text"),
    [
        (["--port=x"], {}, 2, "invalid int value"),
        ([], {"tpot_bse_ms": 1}, 2, "did you mean `tpot_base_ms`?"),
        ([], {"fault": {"kind": "exit", "code": 999}}, 2, "fault.code"),
        (["--max-model-len=1000"], {"kv_cache_tokens": 999}, 1, "To serve at least one request"),
        (["--nnodes=2"], {}, 1, "not divisible by nnodes"),
        (["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_load_failure_policy":"x"}'], {}, 1, "recompute"),
    ],
)
def test_what_vllm_would_refuse(sims, flags, options, code, text):
    sim = sims.start(*flags, sim=options)
    assert sim.ends() == code
    assert text in sim.log.read_text()
    assert "Traceback" not in sim.log.read_text()


def test_loading_shows_in_the_log(sims):
    sim = sims.start("--some-flag=1", "--max-model-len=8192", sim={"startup_s": 0.2}).ready()
    sim.says("Application startup complete")
    log = sim.log.read_text()
    assert "ignored: --some-flag 1" in log
    for percent in (0, 25, 50, 75, 100):
        assert f"{percent}% Completed" in log
    assert "GPU KV cache size: 262,144 tokens, Maximum concurrency for 8,192 tokens per request: 32.00x" in log


def in_flight(sim, tokens):
    """A request that runs in a thread, and what came of it."""
    outcome = {}

    def ask():
        try:
            outcome["reply"] = sim.complete("a", tokens, stream=True)
        except (OSError, http.client.HTTPException) as error:
            outcome["error"] = error

    thread = threading.Thread(target=ask)
    thread.start()
    until("a running request", lambda: sim.call("GET", "/load").json["server_load"] == 1)
    return thread, outcome


def test_sigterm_aborts_what_runs(sims):
    sim = sims.start(sim={"tpot_base_ms": 20}).ready()
    thread, outcome = in_flight(sim, 5000)
    began = time.monotonic()
    assert sim.stop() == 0
    assert time.monotonic() - began < 5
    thread.join(10)
    assert outcome["reply"].events[-2]["choices"][0]["finish_reason"] == "abort"


def test_sigterm_drains_where_there_is_time(sims):
    sim = sims.start("--shutdown-timeout=20", sim={"tpot_base_ms": 5}).ready()
    thread, outcome = in_flight(sim, 200)
    sim.process.send_signal(signal.SIGTERM)
    sim.says("mode=drain")
    assert sim.healthy()
    assert sim.ends() == 0
    thread.join(10)
    said = [chunk["choices"][0] for chunk in outcome["reply"].events[:-1]]
    assert len(said) == 200
    assert said[-1]["finish_reason"] == "length"


def test_a_drain_ends_in_time(sims):
    sim = sims.start("--shutdown-timeout=1", sim={"tpot_base_ms": 20}).ready()
    thread, outcome = in_flight(sim, 5000)
    began = time.monotonic()
    assert sim.stop() == 0
    assert 0.9 < time.monotonic() - began < 10
    thread.join(10)
    assert outcome["reply"].events[-2]["choices"][0]["finish_reason"] == "abort"


def test_sigterm_while_it_loads(sims):
    sim = sims.start(sim={"startup_s": 60})
    sim.says("Starting to load")
    assert sim.stop() == 0


def test_no_process_is_left_behind(sims):
    sim = sims.start("-dp=4", sim={}).ready()
    assert sim.complete("a", 1).status == 200
    pid = sim.process.pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""
