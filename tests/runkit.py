"""Whole runs on this host: a hand-made plan, a run folder, one agent process a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit.plan.model import Deadlines, Gpus, Instance, Node, Plan, Point, Process, Proof, Ready
from recipe_toolkit.plan.values import Address, Port, Python, RunPath, Value, url
from recipe_toolkit.rundir import RunDir, write_atomic, write_json

ENGINE = Path(__file__).parent / "data" / "run" / "engine.py"
ROUTER = ENGINE.with_name("router.py")
MODEL = "tiny"
QUICK = Deadlines(bind=20.0, ready=30.0, stall=20.0, prove=20.0, drain=8.0)


def engine(
    name: str, node: int, *, fault: str = "", dp: int = 1, after: tuple[str, ...] = (), extra: Sequence[Value] = ()
) -> Process:
    """An engine process: the whole of an instance ``ROLE-INDEX``."""
    role, _, rest = name.partition("-")
    instance, _, rank = rest.partition(".")
    argv: tuple[Value, ...] = (
        Python(), str(ENGINE), "serve", MODEL, "--host", Address(node), "--port", Port(name, "http"),
        "--dp", str(dp), "--role", role, *(["--fault", fault] if fault else []), *extra,
    )  # fmt: skip
    return Process(
        name=name,
        role=role,
        instance=int(instance),
        rank=int(rank or 0),
        node=node,
        argv=argv,
        gpus=(0,),
        visible=(0,),
        dp_ranks=tuple(range(dp)),
        env={"RECIPE_TEST": "1"},
        ports={"http": 1},
        api=True,
        ready=Ready("http", "/health", MODEL),
        after=after,
    )


def client(point: str, entry: str, node: int, code: str, timeout: float = 60.0) -> Point:
    """A command client: ``code`` is Python; sys.argv[1] is the entry's URL, [2] the artifacts' folder."""
    process = Process(
        name=f"bench-{point}",
        role="bench",
        instance=0,
        rank=0,
        node=0,
        argv=(Python(), "-c", code, url(entry, node), RunPath(f"bench/{point}")),
        may_exit=True,
    )
    return Point(id=point, client="command", process=process, artifacts=f"bench/{point}", timeout_s=timeout)


ASK = """
import json, sys, urllib.request
body = json.dumps({"model": "tiny", "prompt": "a b c", "max_tokens": 4}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=10).read().decode())
open(sys.argv[2] + "/answer.txt", "w").write("ok")
"""


def plan(
    processes: Sequence[Process],
    points: Sequence[Point] = (),
    *,
    nodes: int = 1,
    entry: str | None = None,
    kv: bool = False,
    deadlines: Deadlines = QUICK,
    lb: str = "internal",
) -> Plan:
    """A plan around hand-made processes; ``ROLE-I`` and ``ROLE-I.R`` make up the instances."""
    groups: dict[tuple[str, int], list[Process]] = {}
    for process in processes:
        if process.role in ("serve", "prefill", "decode"):
            groups.setdefault((process.role, process.instance), []).append(process)
    instances = []
    for (role, index), members in groups.items():
        dp = len({rank for member in members for rank in member.dp_ranks})
        names = tuple(member.name for member in members)
        instances.append(Instance(role, index, names, tp=1, pp=1, dp=dp, size=dp, lb=lb))
    return Plan(
        name="test",
        engine="vllm",
        engine_version="0.32.0",
        served_name=MODEL,
        device="cpu",
        gpu="CPU",
        gpus_per_node=8,
        time_limit_s=600,
        nodes=tuple(Node(index, 8) for index in range(nodes)),
        instances=tuple(instances),
        processes=tuple(processes),
        benchmarks=tuple(points),
        entry=entry or processes[-1].name,
        proof=Proof("kv_transfer" if kv else "generate", 20),
        deadlines=deadlines,
        gpus=Gpus(8 * nodes, len(processes), {role: 1 for role, _ in groups}),
    )


class Run:
    """A run folder and its agents."""

    def __init__(self, folder: Path, what: Plan) -> None:
        self.dir = RunDir(folder)
        folder.mkdir(parents=True)
        write_atomic(self.dir.token, "5ecret" * 8, mode=0o600)
        write_json(self.dir.plan, what.to_json())
        self.plan = what
        self.agents: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *indexes: int, env: Mapping[str, str] | None = None, first: str = "") -> Run:
        """Start the agents of these nodes, or of all. ``first``: Python that each runs before."""
        for index in indexes or range(len(self.plan.nodes)):
            given = {
                **os.environ,
                "SUBMITIT_EXECUTOR": "local",
                "SUBMITIT_LOCAL_GLOBALID": str(index),
                "SUBMITIT_LOCAL_NTASKS": str(len(self.plan.nodes)),
                "SUBMITIT_LOCAL_JOB_ID": "1",
                "RECIPE_TEST_RUN": str(self.dir.root),
                **(env or {}),
            }
            code = f"{first}\nfrom recipe_toolkit.run.agent import run_agent; run_agent({str(self.dir.root)!r})"
            with (self.dir.root / f"agent-{index}.out").open("ab") as out:
                self.agents[index] = subprocess.Popen([sys.executable, "-c", code], env=given, stdout=out, stderr=out)
        return self

    def wait(self, timeout: float = 60.0) -> dict[int, int]:
        """Exit codes of the agents."""
        limit = time.monotonic() + timeout
        return {index: agent.wait(max(0.1, limit - time.monotonic())) for index, agent in self.agents.items()}

    @property
    def state(self) -> dict[str, Any]:
        """state.json, empty before it is there."""
        try:
            data: dict[str, Any] = json.loads(self.dir.state.read_text())
        except FileNotFoundError:
            return {}
        return data

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of one name."""
        if not self.dir.events.exists():
            return []
        return [item for item in map(json.loads, self.dir.events.read_text().splitlines()) if item["event"] == name]

    def until(self, condition: Callable[[], object], timeout: float = 30.0) -> None:
        """Poll until the condition holds."""
        limit = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > limit:
                raise AssertionError(f"not within {timeout} s; state: {json.dumps(self.state, indent=1)}")
            time.sleep(0.05)

    def survivors(self) -> list[str]:
        """Processes of this run that are alive, agents included, found by a variable of theirs."""
        mark = f"RECIPE_TEST_RUN={self.dir.root}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes() and entry.name != str(os.getpid()):
                        state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                        if state not in "ZX":
                            found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}")
                except OSError:
                    continue
        return found

    def kill(self) -> None:
        """End what is left, by exact pid."""
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.send_signal(signal.SIGKILL)
                agent.wait()
        for line in self.survivors():
            try:
                os.kill(int(line.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                continue


def router(node: int, prefill: Process, decode: Process) -> Process:
    """The stand-in router, started after the engines."""
    argv: tuple[Value, ...] = (
        Python(), str(ROUTER), Address(node), Port("router", "http"),
        url(prefill.name, prefill.node), url(decode.name, decode.node),
    )  # fmt: skip
    return Process(
        name="router",
        role="router",
        instance=0,
        rank=0,
        node=node,
        argv=argv,
        ports={"http": 1},
        ready=Ready("http", "/health"),
        after=("engines",),
    )
