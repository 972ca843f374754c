"""Whole runs on the simulated engine: vLLM's layouts, its KV exchange, its DP ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import runkit
from recipe_toolkit.plan.model import Plan, Process, Ready
from recipe_toolkit.plan.values import Address, Json, Port, Python, Value
from runkit import ASK, MODEL, Run, client, plan

Start = Callable[[Plan], Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run of a plan; at the end nothing of it may be left."""
    runs: list[Run] = []

    def begin(what: Plan) -> Run:
        runs.append(Run(tmp_path / f"run{len(runs)}", what))
        return runs[-1].start()

    yield begin
    left = [line for run in runs for line in run.survivors()]
    for run in runs:
        run.kill()
    assert left == []


def sim(
    name: str,
    node: int,
    *,
    dp: int = 1,
    ranks: tuple[int, ...] = (0,),
    head: tuple[str, int] | None = None,
    fault: Mapping[str, Any] | None = None,
) -> Process:
    """One process of a simulated instance. ``head``: name and node of rank 0, where this is a headless one."""
    role, _, rest = name.partition("-")
    instance, _, rank = rest.partition(".")
    first, first_node = head or (name, node)
    kv = {"kv_connector": "NixlConnector", "kv_role": "kv_producer" if role == "prefill" else "kv_consumer"}
    document = {"startup_s": 0.2, **({"fault": dict(fault)} if fault else {})}
    argv: list[Value] = [Python(), "-m", "recipe_toolkit.sim", "serve", MODEL, "--host", Address(node)]
    argv += ["--headless"] if head else ["--port", Port(name, "http")]
    if dp > 1:
        argv += ["--data-parallel-size", str(dp), "--data-parallel-size-local", str(len(ranks))]
        argv += ["--data-parallel-address", Address(first_node), "--data-parallel-rpc-port", Port(first, "dp_rpc")]
        argv += ["--data-parallel-start-rank", str(ranks[0])] if head else []
    argv += [] if role == "serve" else ["--kv-transfer-config", Json(kv)]
    argv += ["--sim", json.dumps(document)]
    ports = {"nixl": len(ranks)} if head else {"http": 1, "nixl": len(ranks), "dp_rpc": 1}
    return Process(
        name=name,
        role=role,
        instance=int(instance),
        rank=int(rank or 0),
        node=node,
        argv=tuple(argv),
        dp_ranks=ranks,
        env={
            "VLLM_HOST_IP": Address(node),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": Address(node),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": Port(name, "nixl", -ranks[0]),
            "RECIPE_INSTANCE": instance,
            "RECIPE_RANK": rank or "0",
        },
        ports=ports,
        api=head is None,
        ready=None if head else Ready("http", "/health", MODEL),
    )


def disaggregated(fault: Mapping[str, Any] | None = None) -> Plan:
    """Two prefill instances on one node; a decode instance of 4 DP ranks over two."""
    head = sim("decode-0.0", 1, dp=4, ranks=(0, 1))
    headless = sim("decode-0.1", 2, dp=4, ranks=(2, 3), head=("decode-0.0", 1), fault=fault)
    prefills = [sim("prefill-0", 0), sim("prefill-1", 0)]
    router = runkit.router(0, prefills[0], head)
    # Longer than a block of KV, which is what is handed on.
    points = [client("c1", "router", 0, ASK), client("c2", "router", 0, "import time; time.sleep(60)")]
    what = plan([*prefills, head, headless, router], points, nodes=3, kv=True)
    return dataclasses.replace(what, engine="sim", proof=dataclasses.replace(what.proof, prompt_words=64))


def test_disaggregated(start: Start) -> None:
    what = disaggregated()
    run = start(dataclasses.replace(what, benchmarks=what.benchmarks[:1]))
    assert run.wait() == {0: 0, 1: 0, 2: 0}
    pairs = {(event["prefill"], event["decode"]) for event in run.events("proof_pair")}
    ranks = [f"decode-0 DP rank {rank}" for rank in range(4)]
    assert pairs == {(prefill, rank) for prefill in ("prefill-0", "prefill-1") for rank in ranks}
    assert run.events("proof_differs") == []
    results = json.loads(run.dir.results.read_text())
    assert results["simulated"] is True
    assert results["versions"]["sim"]
    assert set(results["points"][0]["pools"]) == {"prefill", "decode"}
    assert results["points"][0]["pools"]["decode"]["requests"] == 1


def test_a_headless_rank_that_exits_ends_the_run(start: Start) -> None:
    run = start(disaggregated({"kind": "exit", "after_s": 1.5, "code": 9}))
    assert all(code != 0 for code in run.wait().values())
    assert "decode-0.1 on node 2 (" in run.state["message"]
    assert "exited with code 9" in run.state["message"]
    assert run.state["state"] == "failed"


@pytest.mark.parametrize(
    ("prefill", "decode", "text"),
    [
        ("no_kv", None, "prefill-0 handed no kv_transfer_params on"),
        ("lost_kv", None, "prove: KV from prefill-0 to decode-0: still not after"),
    ],
)
def test_faults_that_only_the_proof_sees(start: Start, prefill: str | None, decode: str | None, text: str) -> None:
    processes = [
        sim(name, 0, fault={"kind": kind} if kind else None)
        for name, kind in (("prefill-0", prefill), ("decode-0", decode))
    ]
    what = plan(processes, kv=True, deadlines=dataclasses.replace(runkit.QUICK, prove=2.5))
    run = start(dataclasses.replace(what, engine="sim", proof=dataclasses.replace(what.proof, prompt_words=64)))
    run.wait()
    assert text in run.state["message"]


def test_the_proof_fills_the_blocks_that_the_engine_has_settled_on(start: Start) -> None:
    engine = sim("serve-0", 0)
    run = start(plan([dataclasses.replace(engine, argv=(*engine.argv, "--block-size", "512"))]))
    assert run.wait() == {0: 0}
    (proved,) = run.events("proved")
    assert proved["prompt_words"] == 512 + 256 + 16


# Kind of fault, keys, what the run says of it (None: it ends well), and what else the lead's log must hold.
FAULTS: tuple[tuple[str, dict[str, Any], str | None, str], ...] = (
    ("exit", {"code": 7}, "serve-1 on node 0 (", "exited with code 7"),
    ("exit", {"code": 0, "after_s": 0.5}, "serve-1 on node 0 (", "exited with code 0"),
    ("hang", {}, "serve-1: no answer yet", "not ready within"),
    ("hang_generate", {}, "serve-1", "one token"),
    ("never_ready", {}, "serve-1: ", "not ready within"),
    ("wrong_model", {}, "serve-1 on node 0 (", "serves not-tiny, not tiny"),
    ("wrong_answer", {}, "prove: a generation through serve-1", "serve-1 answered nothing"),
    ("leak_kv", {}, "bench: point c1: bench-c1", "serve-1 has 1 waiting, its KV cache is"),
    ("slow_load", {"load_s": 2}, None, ""),
    ("slow_load", {"load_s": 60}, "serve-1", "not ready within"),
    ("leak_process", {}, None, "drain: did not end at TERM, and was killed: serve-1 on node 0 ("),
    ("ignore_term", {}, None, "drain: did not end at TERM, and was killed: serve-1 on node 0 ("),
)


@pytest.mark.parametrize(("kind", "keys", "said", "more"), FAULTS)
def test_every_fault_of_one_instance_is_found(
    start: Start, kind: str, keys: dict[str, Any], said: str | None, more: str
) -> None:
    """Two instances, and the fault in the second alone: it is the one that is named."""
    fault = {"kind": kind, "instance": 1, "rank": 0, **keys}
    engines = [sim(f"serve-{index}", 0, fault=fault) for index in (0, 1)]
    deadlines = dataclasses.replace(runkit.QUICK, ready=6.0, stall=4.0, prove=5.0, drain=5.0)
    slow = "import time; time.sleep(4)" if kind == "exit" else ASK
    points = [client("c1", "serve-1", 0, FILL if kind == "leak_kv" else slow)]
    run = start(dataclasses.replace(plan(engines, points, deadlines=deadlines), engine="sim"))
    codes = run.wait()
    message, log = str(run.state["message"]), run.dir.attempt(0).agent_log(0).read_text()
    if said is None:
        assert codes == {0: 0}, message
        assert run.state["state"] == "done"
        assert more in log
    else:
        assert run.state["state"] == "failed"
        assert said in message, message
        assert more in message, message
    assert "serve-0" not in message
    assert "Traceback" not in log


# One answer after the other, until none comes any more.
FILL = """
import json, sys, urllib.request
for _ in range(400):
    body = json.dumps({"model": "tiny", "prompt": "a " * 2000, "max_tokens": 1}).encode()
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).read()
"""
