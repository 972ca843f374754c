"""Whole runs that must fail: in which phase, and in which words."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import runkit
from recipe_toolkit.plan.model import Deadlines, Plan
from recipe_toolkit.plan.values import Address, Port, Program, Python
from runkit import ASK, QUICK, Run, client, engine, plan

SLEEP = "import time; print('sleeping', flush=True); time.sleep(100)"

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run of a plan; at the end nothing of it may be left."""
    runs: list[Run] = []

    def begin(what: Plan, *indexes: int, env: dict[str, str] | None = None) -> Run:
        run = Run(tmp_path / f"run{len(runs)}", what)
        runs.append(run)
        return run.start(*indexes, env=env)

    yield begin
    left = [line for run in runs for line in run.survivors()]
    for run in runs:
        run.kill()
    assert left == []


def fails(run: Run, *texts: str) -> str:
    """The run's message, once it has failed; it holds all texts."""
    assert all(code != 0 for code in run.wait().values())
    state = run.state
    message = str(state["message"])
    assert (state["state"], state["phase"], state["valid"]) == ("failed", "end", False), message
    for text in texts:
        assert text in message, message
    assert message.splitlines()[0] in run.dir.attempt(0).agent_log(0).read_text()
    assert run.events("outcome")[0]["message"] == message
    assert message in (run.dir.root / "agent-0.out").read_text()
    assert "Traceback" not in run.dir.attempt(0).agent_log(0).read_text()
    return message


def quick(**seconds: float) -> Deadlines:
    return dataclasses.replace(QUICK, **seconds)


# --- bind


def test_a_missing_agent(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], nodes=3, deadlines=quick(bind=1.5)), 0, 1)
    fails(run, "no agent of node 2 has joined within 1.5 s")
    assert [node["state"] for node in run.state["nodes"]] == ["left", "left", "pending"]


def test_an_agent_that_comes_too_late(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], nodes=2, deadlines=quick(bind=1.0)), 0)
    fails(run, "no agent of node 1 has joined")
    run.start(1)
    assert run.wait()[1] == 1
    assert "the run ended before node 1 joined: no agent of node 1" in (run.dir.root / "agent-1.out").read_text()


def test_no_lead(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], nodes=2, deadlines=quick(bind=1.0)), 1)
    assert run.wait() == {1: 1}
    out = (run.dir.root / "agent-1.out").read_text()
    assert "node 1 did not meet the lead within 1 s: it has not said where it listens" in out


def test_a_program_that_is_not_there(start: Start) -> None:
    process = dataclasses.replace(engine("serve-0", 0), argv=(Program("no-such-engine"), "serve"))
    fails(start(plan([process])), "node 0 (", "has no no-such-engine, neither beside", "hint: install it there")


def test_a_job_of_another_size(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], nodes=2), 0, env={"SUBMITIT_LOCAL_NTASKS": "5"})
    assert run.wait() == {0: 1}
    assert "the job has 5 nodes, but the plan is for 2" in (run.dir.root / "agent-0.out").read_text()


def test_too_few_gpus(start: Start) -> None:
    what = dataclasses.replace(plan([engine("serve-0", 0)]), device="gpu")
    fails(start(what, env={"CUDA_VISIBLE_DEVICES": "0,1"}), "has 2 GPUs for this run", "the plan uses 8")


# --- launch


def test_a_program_that_cannot_be_executed(start: Start) -> None:
    process = dataclasses.replace(engine("serve-0", 0), argv=("/no/such/program", "serve"))
    fails(start(plan([process])), "launch: serve-0 on node 0", "cannot execute /no/such/program: No such file")


# --- ready


def test_exit_0_is_a_failure(start: Start) -> None:
    fails(
        start(plan([engine("serve-0", 0, fault="exit_0")])), "serve-0 on node 0", "exited with code 0", "fault=exit_0"
    )


def test_the_cause_of_an_exit_is_named(start: Start) -> None:
    run = start(plan([engine("serve-0", 0), engine("serve-1", 1, fault="error")], nodes=2))
    fails(
        run,
        "serve-1 on node 1 (",
        "exited with code 3: ValueError: the model has no weights",
        "log: attempts/0/nodes/01/serve-1.log",
    )


def test_never_ready(start: Start) -> None:
    engines = [engine("serve-0", 0), engine("serve-1", 0, fault="never_ready")]
    message = fails(
        start(plan(engines, deadlines=quick(ready=4.0))),
        "ready: not ready within 4 s",
        "serve-1: GET /health answers 503",
        "log of serve-1 on node 0",
    )
    assert "serve-0:" not in message


def test_a_stall(start: Start) -> None:
    run = start(plan([engine("serve-0", 0, fault="silent")], deadlines=quick(stall=1.0)))
    fails(run, "ready: serve-0 on node 0", "shows no sign of life for", "fault=silent")


def test_another_model(start: Start) -> None:
    fails(start(plan([engine("serve-0", 0, fault="wrong_model")])), "serve-0 on node 0", "serves other, not tiny")


def test_another_process_on_the_port(start: Start) -> None:
    """A server that answers on the right port with the right model, but is not ours."""
    stranger = engine("serve-1", 0)
    words = tuple(Port("serve-0", "http") if word == Port("serve-1", "http") else word for word in stranger.argv)
    silent = dataclasses.replace(engine("serve-0", 0), argv=(Python(), "-c", SLEEP, Address(0)))
    run = start(plan([silent, dataclasses.replace(stranger, argv=words)]))
    fails(
        run,
        "ready: serve-0 on node 0",
        "does not hold its own port",
        "held by another process:",
        "engine.py serve tiny",
    )


def test_a_dead_rank(start: Start) -> None:
    run = start(plan([engine("serve-0", 0, dp=3, fault="dead_rank")], deadlines=quick(ready=4.0)))
    message = fails(run, "serve-0 DP rank 2: one token: answer 500", "engine core is dead")
    assert "DP rank 1" not in message


# --- prove


def disaggregated(fault: str) -> Plan:
    prefill, decode = engine("prefill-0", 0), engine("decode-0", 1, fault=fault)
    router = runkit.router(0, prefill, decode)
    points = [client("c1", "router", 0, ASK)]
    return plan([prefill, decode, router], points, nodes=2, kv=True, deadlines=quick(prove=2.5))


def test_kv_that_never_moves(start: Start) -> None:
    run = start(disaggregated("no_kv"))
    message = fails(
        run, "prove: KV from prefill-0 to decode-0: still not after", "the decode side computed the prompt itself"
    )
    logs = [line for line in message.splitlines() if line.startswith("log of ")]
    assert [line.partition(" on ")[0] for line in logs] == ["log of prefill-0", "log of decode-0"]
    assert all((run.dir.root / line.rpartition(": ")[2]).is_file() for line in logs)
    assert run.state["points"] == {"c1": "pending"}


def test_kv_that_is_garbled(start: Start) -> None:
    fails(start(disaggregated("wrong_answer")), "prove: wrong answer: over KV from prefill-0, decode-0 says")


# --- bench


def test_a_client_that_fails(start: Start) -> None:
    bad = client("c2", "serve-0", 0, "import sys; print('Error: no tokenizer'); sys.exit(5)")
    run = start(plan([engine("serve-0", 0)], [client("c1", "serve-0", 0, ASK), bad, client("c3", "serve-0", 0, ASK)]))
    fails(run, "bench: point c2: bench-c2 on node 0", "exited with code 5: Error: no tokenizer")
    assert run.state["points"] == {"c1": "done", "c2": "failed", "c3": "pending"}
    points = json.loads(run.dir.results.read_text())["points"]
    assert [(point["id"], point["valid"], point["exit_code"]) for point in points] == [
        ("c1", True, 0),
        ("c2", False, 5),
    ]


def test_a_client_that_is_not_there(start: Start) -> None:
    missing = client("c1", "serve-0", 0, "")
    missing = dataclasses.replace(missing, process=dataclasses.replace(missing.process, argv=("/no/such/client",)))
    run = start(plan([engine("serve-0", 0)], [missing]))
    fails(run, "bench: point c1: bench-c1 on node 0", "cannot execute /no/such/client: No such file")
    assert run.state["points"] == {"c1": "failed"}


def test_a_client_that_does_not_end(start: Start) -> None:
    slow = client("c1", "serve-0", 0, SLEEP, timeout=1.0)
    fails(
        start(plan([engine("serve-0", 0)], [slow])), "bench: point c1: bench-c1", "has not ended within 1 s", "sleeping"
    )


def test_an_engine_that_exits_meanwhile(start: Start, tmp_path: Path) -> None:
    serve = engine("serve-0", 0, fault="late_exit", extra=("--marker", str(tmp_path / "now")))
    run = start(plan([serve], [client("c1", "serve-0", 0, ASK), client("c2", "serve-0", 0, SLEEP)]))
    run.until(lambda: run.state.get("processes", {}).get("bench-c2", {}).get("state") == "running")
    (tmp_path / "now").touch()
    fails(run, "bench: serve-0 on node 0", "exited with code 7")
    assert run.state["points"] == {"c1": "done", "c2": "failed"}
    assert run.state["processes"]["bench-c2"]["exit_code"] == -15


def test_a_throughput_that_stalls(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [client("c1", "serve-0", 0, SLEEP)], deadlines=quick(stall=1.0)))
    fails(run, "bench: point c1: bench-c1", "is stalled: no token and no line of output for 1 s")


def test_a_stall_names_the_engine_that_is_silent(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [client("c1", "serve-0", 0, SLEEP)], deadlines=quick(stall=1.0)))
    run.until(lambda: run.state.get("processes", {}).get("bench-c1", {}).get("state") == "running")
    os.kill(run.state["processes"]["serve-0"]["pid"], signal.SIGSTOP)
    fails(run, "is stalled: no token and no line of output for 1 s; serve-0 does not answer at /metrics")
