"""Whole runs with agents as processes: what must work."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import runkit
from recipe_toolkit.plan.model import Plan, Process
from recipe_toolkit.plan.values import Python
from runkit import ASK, Run, client, engine, plan

SLURM_FREE = """
import json, os, sys
json.dump(dict(os.environ), open(sys.argv[2] + "/env.json", "w"))
json.dump([os.getcwd(), os.readlink("/proc/self/fd/0")], open("where.json", "w"))
print("measured")
"""
SLEEP = "import time; print('sleeping', flush=True); time.sleep(100)"

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run of a plan; at the end nothing of it may be left."""
    runs: list[Run] = []

    def begin(what: Plan, *indexes: int, env: dict[str, str] | None = None, first: str = "") -> Run:
        run = Run(tmp_path / f"run {len(runs)}", what)
        runs.append(run)
        return run.start(*indexes, env=env, first=first)

    yield begin
    left = [line for run in runs for line in run.survivors()]
    for run in runs:
        run.kill()
    assert left == []


def test_aggregated(start: Start) -> None:
    serve = dataclasses.replace(engine("serve-0", 0, dp=2), unset=("GONE",), secrets=("HF_TOKEN",))
    run = start(
        plan([serve], [client("c1", "serve-0", 0, ASK), client("c2", "serve-0", 0, SLURM_FREE)]),
        env={"SLURM_FAKE": "1", "PMIX_RANK": "0", "HF_TOKEN": "hunter2", "GONE": "1"},
    )
    assert run.wait() == {0: 0}
    state = run.state
    assert (state["state"], state["phase"], state["message"], state["valid"]) == ("done", "end", None, True)
    assert state["points"] == {"c1": "done", "c2": "done"}
    assert state["processes"]["serve-0"]["state"] == "exited"
    assert state["nodes"][0]["address"] == "127.0.0.1"
    phases = [event["phase"] for event in run.events("phase")]
    assert phases == ["bind", "launch", "ready", "prove", "bench", "drain"]
    inherited = json.loads((run.dir.bench("c2") / "env.json").read_text())
    assert not [name for name in inherited if name.startswith(("SLURM_", "SUBMITIT_", "PMIX_"))]
    assert inherited["HF_TOKEN"] == "hunter2"
    assert json.loads((run.dir.bench("c2") / "where.json").read_text()) == [str(run.dir.bench("c2")), "/dev/null"]
    written = [path for path in run.dir.root.rglob("*") if path.is_file() and path.name not in ("env.json",)]
    assert not [path for path in written if b"hunter2" in path.read_bytes()]
    results = json.loads(run.dir.results.read_text())
    assert [point["id"] for point in results["points"]] == ["c1", "c2"]
    assert results["state"] == "done"
    files = {item["path"] for item in json.loads(run.dir.manifest.read_text())["files"]}
    assert {"state.json", "events.jsonl", "results.json", "bench/c1/answer.txt"} <= files
    bound = json.loads(run.dir.attempt(0).bound.read_text())["processes"]["serve-0"]
    assert bound["argv"][bound["argv"].index("--port") + 1] == str(bound["ports"]["http"][0])
    assert bound["unset"] == ["GONE"]
    assert "vllm:generation_tokens_total" in (run.dir.metrics / "serve-0.jsonl").read_text()


SEE_TARGETS = """
import pathlib, shutil, sys
[file] = pathlib.Path(FOLDER).iterdir()
shutil.copy(file, sys.argv[2] + "/targets.json")
"""


def test_prometheus_is_told_of_a_run_while_it_serves_and_no_longer(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    see = SEE_TARGETS.replace("FOLDER", repr(str(folder)))
    what = plan([engine("serve-0", 0)], [client("c1", "serve-0", 0, see)])
    run = start(dataclasses.replace(what, metrics_targets=str(folder)))
    assert run.wait() == {0: 0}
    [group] = json.loads((run.dir.bench("c1") / "targets.json").read_text())
    port = json.loads(run.dir.attempt(0).bound.read_text())["processes"]["serve-0"]["ports"]["http"][0]
    assert group["targets"] == [f"127.0.0.1:{port}"]
    labels = {"run": run.dir.id, "recipe": "test", "role": "serve", "process": "serve-0", "rank": "0"}
    assert group["labels"] == labels
    assert list(folder.iterdir()) == []


def test_a_folder_of_targets_that_cannot_be_written_is_no_reason_to_fail(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    what = plan([engine("serve-0", 0)], [client("c1", "serve-0", 0, ASK)])
    run = start(dataclasses.replace(what, metrics_targets=str(tmp_path / "file" / "targets")))
    assert run.wait() == {0: 0}
    assert [event["error"] for event in run.events("targets_failed")] == ["Not a directory"]


def test_prefill_and_decode_over_three_nodes(start: Start) -> None:
    prefills = [engine("prefill-0", 0, dp=2), engine("prefill-1", 1, dp=2)]
    decode = engine("decode-0", 2, dp=2, fault="kv_late")
    what = plan(
        [*prefills, decode, runkit.router(0, prefills[0], decode)],
        [client("c1", "router", 0, ASK)],
        nodes=3,
        kv=True,
    )
    run = start(what)
    assert run.wait() == {0: 0, 1: 0, 2: 0}
    pairs = {(event["prefill"], event["decode"]) for event in run.events("proof_pair")}
    assert len(pairs) == 8
    # The first handshakes "time out" and fall back to local prefill, which is no proof.
    assert run.events("proof_retried")[0]["tries"] == 3
    times = {event["process"]: event["t"] for event in run.events("process_started")}
    assert times["router"] >= max(event["t"] for event in run.events("ready") if event["group"] != "router")
    assert [node["address"] for node in run.state["nodes"]] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert json.loads(run.dir.attempt(0).facts(2).read_text())["address"] == "127.0.0.3"


def test_a_port_in_use_is_retried_once(start: Start, tmp_path: Path) -> None:
    serve = engine("serve-0", 0, fault="taken_once", extra=("--marker", str(tmp_path / "marker")))
    run = start(plan([serve], [client("c1", "serve-0", 0, ASK)]))
    assert run.wait() == {0: 0}
    assert len(run.events("port_retry")) == 1
    pids = [event["pid"] for event in run.events("process_started") if event["process"] == "serve-0"]
    assert len(pids) == 2


def test_a_stubborn_engine_is_killed_within_the_deadline(start: Start) -> None:
    deadlines = dataclasses.replace(runkit.QUICK, drain=5.0)
    run = start(plan([engine("serve-0", 0, fault="stubborn")], [client("c1", "serve-0", 0, ASK)], deadlines=deadlines))
    assert run.wait() == {0: 0}
    assert run.state["processes"]["serve-0"] == {
        **run.state["processes"]["serve-0"],
        "state": "killed",
        "exit_code": -9,
    }
    assert run.events("drained")[0]["seconds"] < 5.0


def hold(start: Start, nodes: int = 1) -> Run:
    """A run in its second point, which does not end by itself."""
    engines = [engine(f"serve-{index}", index) for index in range(nodes)]
    points = [client("c1", "serve-0", 0, ASK), client("c2", "serve-0", 0, SLEEP)]
    run = start(plan(engines, points, nodes=nodes, entry="serve-0"))
    run.until(lambda: run.state.get("points", {}).get("c2") == "running")
    run.until(lambda: run.state["processes"]["bench-c2"]["state"] == "running")
    return run


@pytest.mark.parametrize(
    ("node", "number", "state"),
    [(0, signal.SIGTERM, "cancelled"), (1, signal.SIGTERM, "cancelled"), (0, signal.SIGUSR2, "timeout")],
)
def test_signals(start: Start, node: int, number: signal.Signals, state: str) -> None:
    run = hold(start, nodes=2)
    run.agents[node].send_signal(number)
    assert all(code != 0 for code in run.wait().values())
    assert run.state["state"] == state
    assert "in phase bench" in run.state["message"]
    assert run.state["points"] == {"c1": "done", "c2": "failed"}
    results = json.loads(run.dir.results.read_text())
    assert [point["id"] for point in results["points"]] == ["c1"]
    assert results["valid"] is False
    assert run.dir.manifest.exists()


# submitit lets TERM pass, and until the agent's loop runs it is the one that gets it.
CANCELLED_EARLY = """
import os, signal
from recipe_toolkit.run import environment
place = environment.place
def cancelled(environ):
    os.kill(os.getpid(), signal.SIGTERM)
    return place(environ)
environment.place = cancelled
signal.signal(signal.SIGTERM, lambda number, frame: print("Bypassing signal SIGTERM"))
"""


def test_a_signal_before_the_agents_are_up(start: Start) -> None:
    """`recipe cancel` right after the start: nobody repeats it, where no Slurm kills."""
    engines = [engine(f"serve-{index}", index) for index in range(2)]
    run = start(plan(engines, [client("c1", "serve-0", 0, SLEEP)], nodes=2, entry="serve-0"), first=CANCELLED_EARLY)
    assert all(code != 0 for code in run.wait(20.0).values())
    assert (run.state["state"], run.state["message"]) == ("cancelled", "cancelled (SIGTERM), in phase bind")


def test_a_signal_to_everything(start: Start) -> None:
    """Slurm may signal each process of a step: that the programs die of it is no failure of theirs."""
    run = hold(start, nodes=2)
    processes = run.state["processes"]
    for name in ("serve-1", "bench-c2", "serve-0"):
        os.kill(processes[name]["pid"], signal.SIGTERM)
    for agent in run.agents.values():
        agent.send_signal(signal.SIGTERM)
    run.wait()
    assert run.state["state"] == "cancelled"
    assert run.events("drained")[0]["survivors"] == []


def test_a_second_signal_cuts_the_drain_short(start: Start) -> None:
    """The warning signal leaves time; the time limit's TERM, some time later, does not."""
    deadlines = dataclasses.replace(runkit.QUICK, drain=60.0)
    serve = engine("serve-0", 0, fault="stubborn")
    run = start(plan([serve], [client("c1", "serve-0", 0, SLEEP)], deadlines=deadlines))
    run.until(lambda: run.state.get("processes", {}).get("bench-c1", {}).get("state") == "running")
    run.agents[0].send_signal(signal.SIGUSR2)
    run.until(lambda: run.state["phase"] == "drain")
    assert run.state["state"] == "timeout"
    run.agents[0].send_signal(signal.SIGTERM)
    run.wait(15.0)
    assert run.state["state"] == "timeout"
    assert run.state["processes"]["serve-0"]["state"] == "killed"


def test_the_next_attempt_measures_what_is_left(start: Start) -> None:
    run = hold(start)
    run.agents[0].send_signal(signal.SIGTERM)
    run.wait()
    # The same folder again, as Slurm requeues a job; this time the second point ends.
    points = [run.plan.benchmarks[0], client("c2", "serve-0", 0, ASK)]
    run.dir.plan.write_text(json.dumps(dataclasses.replace(run.plan, benchmarks=tuple(points)).to_json()))
    first = (run.dir.bench("c1") / "point.json").read_text()
    slurm = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_RESTART_COUNT": "1"}
    run.start(env=slurm)
    assert run.wait() == {0: 0}
    assert run.state["attempt"] == 1
    assert run.state["points"] == {"c1": "done", "c2": "done"}
    assert (run.dir.bench("c1") / "point.json").read_text() == first
    assert [path.name for path in (run.dir.root / "bench").iterdir() if "unfinished" in path.name] == [
        "c2.unfinished-1"
    ]
    assert run.dir.attempts() == [0, 1]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_agent_leaves_nothing(start: Start, victim: int) -> None:
    run = hold(start, nodes=2)
    run.agents[victim].kill()
    codes = run.wait()
    assert all(code != 0 for code in codes.values())
    if victim == 1:
        assert run.state["state"] == "failed"
        assert "node 1 (" in run.state["message"]
        assert "is lost" in run.state["message"]
        assert "log of its agent: attempts/0/nodes/01/agent.log" in run.state["message"]
    else:
        assert "lost the connection to the lead" in (run.dir.root / "agent-1.out").read_text()
    run.until(lambda: run.survivors() == [], timeout=20.0)


def test_a_killed_keeper_leaves_nothing(start: Start) -> None:
    """The program of a killed keeper dies, what it started too, and the run names it."""
    run = hold(start)
    pid = run.state["processes"]["serve-0"]["pid"]
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    run.wait()
    assert "serve-0 on node 0" in run.state["message"]
    assert "was killed by signal 9" in run.state["message"]


def test_headless_ranks_are_watched(start: Start) -> None:
    head = dataclasses.replace(engine("serve-0.0", 0, dp=1), dp_ranks=(0,))
    headless = Process(
        name="serve-0.1", role="serve", instance=0, rank=1, node=1, argv=(Python(), "-c", SLEEP), dp_ranks=()
    )
    run = start(plan([head, headless], [client("c1", "serve-0.0", 0, SLEEP)], nodes=2, entry="serve-0.0"))
    run.until(lambda: run.state.get("points", {}).get("c1") == "running")
    os.kill(run.state["processes"]["serve-0.1"]["pid"], signal.SIGKILL)
    run.wait()
    assert run.state["message"].startswith("bench: serve-0.1 on node 1 (")
    assert "log: attempts/0/nodes/01/serve-0.1.log" in run.state["message"]
    assert "sleeping" in run.state["message"]
