"""Real AIPerf through the real vllm-router, prefill and decode simulated: every count must agree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.resources import files
from pathlib import Path

import pytest

from simkit import Sims, free_ports, until
from support import require

pytestmark = pytest.mark.aiperf

ISL, OSL, REQUESTS = 300, 24, 6


def program(name: str, variable: str) -> str:
    """Where a program is: named by a variable, beside this Python, or on PATH."""
    beside = Path(sys.executable).with_name(name)
    found = os.environ.get(variable) or (str(beside) if beside.exists() else shutil.which(name))
    require("aiperf", found is not None, f"{name} is not installed; {variable} may name it")
    return str(found)


@pytest.fixture
def routed(tmp_path):
    """Two prefill instances and a decode instance of two DP ranks behind the router; its URL and the decode side."""
    router = program("vllm-router", "RECIPE_VLLM_ROUTER")
    sims = Sims(tmp_path)
    port, metrics = free_ports(2)
    process = None
    try:
        (one, decode), (two, unused) = sims.pair("-dp=2"), sims.pair()
        unused.stop()
        argv = [
            router,
            "--vllm-pd-disaggregation",
            "--policy",
            "round_robin",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        for prefill in (one, two):
            argv += ["--prefill", f"http://127.0.0.1:{prefill.port}"]
        argv += ["--decode", f"http://127.0.0.1:{decode.port}", "--prometheus-port", str(metrics)]
        with (tmp_path / "router.log").open("wb") as log:
            process = subprocess.Popen([*argv, "--worker-startup-check-interval", "1"], stdout=log, stderr=log)
        until("the router", lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield f"http://127.0.0.1:{port}", (one, two), decode
    finally:
        if process is not None:
            process.terminate()
            process.wait(20)
        sims.close()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_aiperf_counts_what_the_engine_counts(routed, tmp_path, endpoint):
    url, prefills, decode = routed
    argv = [program("aiperf", "RECIPE_AIPERF"), "profile", "--model", "tiny", "--url", url, "--streaming"]
    argv += ["--endpoint-type", endpoint, "--tokenizer", str(files("recipe_toolkit") / "sim" / "tokenizer")]
    argv += ["--isl", str(ISL), "--isl-stddev", "0", "--osl", str(OSL), "--osl-stddev", "0", "--random-seed", "0"]
    argv += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{OSL}", "--ui", "none"]
    argv += ["--concurrency", "3", "--request-count", str(REQUESTS), "--artifact-dir", str(tmp_path / "out")]
    # Offline mode would send a local tokenizer to the hub's cache.
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    env = {name: value for name, value in os.environ.items() if name not in offline}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == REQUESTS
    assert not found["error_summary"]
    for name, wanted in (("input_sequence_length", ISL), ("output_sequence_length", OSL), ("usage_prompt_tokens", ISL)):
        assert (found[name]["min"], found[name]["max"]) == (wanted, wanted), name
    for name in ("usage_prompt_tokens_diff_pct", "usage_completion_tokens_diff_pct", "osl_mismatch_diff_pct"):
        assert found[name]["max"] == 0, name
    source = "vllm:prompt_tokens_by_source_total"
    assert decode.metric(source, source="external_kv_transfer") == REQUESTS * ISL
    assert decode.metric(source, source="local_compute") == 0
    assert [prefill.metric(source, source="local_compute") for prefill in prefills] == [REQUESTS // 2 * ISL] * 2
    assert decode.metric("vllm:generation_tokens_total") == REQUESTS * OSL
