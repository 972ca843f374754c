"""What the phases of a run share."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.bind import BoundProcess
from recipe_toolkit.plan.model import Instance, Plan, Process
from recipe_toolkit.plan.values import Bindings
from recipe_toolkit.run.environment import Place
from recipe_toolkit.run.fleet import Fleet, ProcessView
from recipe_toolkit.run.journal import Journal
from recipe_toolkit.rundir import AttemptDir, RunDir

RANK_HEADER = "X-data-parallel-rank"


@dataclass(frozen=True)
class Target:
    """One DP rank of an instance, and how it is addressed.

    ``process``: the API process that manages it. ``header``: the number that vLLM wants in
    X-data-parallel-rank: the global rank with the internal load balancer, the index among the
    node's own ranks with the hybrid one (``num_ranks`` in vllm/v1/engine/input_processor.py).
    ``engine``: its label in /metrics, which is the global rank in both.
    """

    instance: str
    process: str
    rank: int
    header: int | None

    @property
    def engine(self) -> str:
        """The ``engine`` label of its metrics."""
        return str(self.rank)

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that send a request to this rank."""
        return {} if self.header is None else {RANK_HEADER: str(self.header)}

    def __str__(self) -> str:
        return self.instance if self.header is None else f"{self.instance} DP rank {self.rank}"


@dataclass
class Context:
    """One attempt of a run, as the lead sees it."""

    run: RunDir
    attempt: AttemptDir
    plan: Plan
    where: Place
    fleet: Fleet
    journal: Journal
    bindings: Bindings | None = None
    bound: dict[str, BoundProcess] = field(default_factory=dict)
    images: dict[str, str | None] = field(default_factory=dict)  # reference to what identifies it
    versions: dict[str, str] = field(default_factory=dict)  # what each engine's API said of itself
    # New ports: groups that got them once, those that are being stopped for it, and how they are told.
    rebound: set[str] = field(default_factory=set)
    rebinding: set[str] = field(default_factory=set)
    rebind_wanted: dict[str, asyncio.Event] = field(default_factory=dict)

    def view(self, name: str) -> ProcessView:
        """What is known of the process."""
        return self.fleet.processes[name]

    def base_url(self, name: str, port: str = "http") -> str:
        """``http://ADDRESS:PORT`` of a process."""
        assert self.bindings is not None
        address = self.bindings.nodes[self.plan.process(name).node].address
        return f"http://{address}:{self.bindings.ports[name][port]}"

    def move_ports(self, ports: Mapping[str, Mapping[str, int]]) -> None:
        """Replace the ports of some processes in the bindings."""
        assert self.bindings is not None
        self.bindings = dataclasses.replace(self.bindings, ports={**self.bindings.ports, **ports})

    def engines(self) -> list[Process]:
        """The processes of all instances, in the plan's order."""
        names = {name for instance in self.plan.instances for name in instance.processes}
        return [process for process in self.plan.processes if process.name in names]

    def instance_of(self, name: str) -> Instance | None:
        """The instance that a process belongs to; None for the router and clients."""
        return next((item for item in self.plan.instances if name in item.processes), None)

    def targets(self, instance: Instance) -> list[Target]:
        """Its DP ranks in order."""
        name = f"{instance.role}-{instance.index}"
        apis = [process for process in map(self.plan.process, instance.processes) if process.api]
        if instance.dp == 1:
            return [Target(name, process.name, 0, None) for process in apis[:1]]
        if instance.lb == "hybrid":
            return [
                Target(name, process.name, rank, index)
                for process in apis
                for index, rank in enumerate(process.dp_ranks)
            ]
        return [Target(name, process.name, rank, rank) for process in apis[:1] for rank in range(instance.dp)]

    def role_targets(self, role: str) -> list[Target]:
        """The DP ranks of all instances of a role."""
        return [target for item in self.plan.instances if item.role == role for target in self.targets(item)]

    def node_label(self, index: int) -> str:
        """``node 1 (host)``."""
        node = self.fleet.nodes.get(index)
        return f"node {index} ({node.host})" if node else f"node {index}"

    def log_of(self, name: str) -> str:
        """Where a program's log is, in a line for a message."""
        view = self.view(name)
        return f"log of {name} on {self.node_label(view.node)}: {view.log}"

    def describe_exit(self, phase: str, view: ProcessView) -> RunError:
        """Why a program's end is a failure: where, how, its log and what it said."""
        code = view.exit_code
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        return self.failure(phase, view, how, view.last.get("cause"), view.last.get("lines", []))

    def failure(self, phase: str, view: ProcessView, what: str, cause: str | None, lines: list[str]) -> RunError:
        """An error about a program, with its log's path and last lines."""
        return RunError("\n".join(_story(phase, view, self.node_label(view.node), what, cause, lines)))

    async def tail(self, name: str, lines: int = 15) -> tuple[str | None, list[str]]:
        """(the line that looks like the cause, the last lines) of a program's log; empty if its node is lost."""
        try:
            reply = await self.fleet.call(self.view(name).node, "tail", 10.0, name=name, lines=lines)
        except RunError:
            return None, []
        return reply["cause"], reply["lines"]

    def publish(self) -> None:
        """Write nodes and processes into state.json."""
        nodes = []
        for item in self.plan.nodes:
            node = self.fleet.nodes.get(item.index)
            state = "pending" if node is None or not node.joined else "lost" if node.lost else "joined"
            state = "left" if node and node.dismissed else state
            nodes.append(
                {
                    "index": item.index,
                    "name": node.facts.get("host") if node else None,
                    "address": node.facts.get("address") if node else None,
                    "state": state,
                }
            )
        views = {name: view.to_json() for name, view in self.fleet.processes.items()}
        self.journal.update(nodes=nodes, processes=views)


def _story(phase: str, view: ProcessView, node: str, what: str, cause: str | None, lines: list[str]) -> Iterator[str]:
    yield f"{phase}: {view.name} on {node} {what}" + (f": {cause}" if cause else "")
    yield f"log: {view.log}"
    if lines:
        yield "last lines:"
        yield from (f"  {line}" for line in lines)


class Clock:
    """A deadline in seconds from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def over(self) -> bool:
        """Whether none are left."""
        return self.left() == 0.0
