"""The plan: everything that will be executed, decided before the job is submitted.

Only the standard library is imported here and in :mod:`recipe_toolkit.plan.values`, because the
agent on a compute node reads plans too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.plan.values import Value, decode, encode

PLAN_SCHEMA = 1
# Of a field that stands in the document only where it is not None.
_WHERE_SAID = {"where_said": True}


@dataclass(frozen=True)
class Node:
    """A host of the job. ``gpus``: how many of its GPUs (or CPU worker slots) the plan uses."""

    index: int
    gpus: int


@dataclass(frozen=True)
class Ready:
    """How a process shows that it is up: HTTP ``path`` on its own port ``port`` answers 200.

    ``model``: the name that ``/v1/models`` must list, where the process serves models.
    """

    port: str
    path: str
    model: str | None = None


@dataclass(frozen=True)
class Process:
    """One program that an agent starts.

    ``rank``: index of the process in its instance (0 is the one with the API server, unless every
    node has one). ``dp_ranks``: the DP ranks whose engines live in it. ``gpus``: its own slots on
    its node. ``visible``: its own slots and then the peers that it must see. ``ports``: block name
    to number of consecutive ports. ``api``: whether it answers requests on its port ``http``.
    ``unset``: variables taken out of its environment. ``secrets``: variables handed on from the
    agent's environment by name, whose values are never written anywhere. ``may_exit``: whether
    ending with 0 is no failure (clients). ``cleanup``: the command that removes what may outlive it
    (its container), safe to repeat; empty where nothing can. ``inspect``: the command that prints, one
    a line, the pids that the container runtime started elsewhere than below the program; empty where
    the program itself is what runs. ``image``: the container image that it runs in.
    """

    name: str
    role: str
    instance: int
    rank: int
    node: int
    argv: tuple[Value, ...]
    gpus: tuple[int, ...] = ()
    visible: tuple[int, ...] = ()
    dp_ranks: tuple[int, ...] = ()
    env: Mapping[str, Value] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    api: bool = False
    ready: Ready | None = None
    after: tuple[str, ...] = ()
    may_exit: bool = False
    cleanup: tuple[Value, ...] = ()
    inspect: tuple[Value, ...] = ()
    image: str | None = None


@dataclass(frozen=True)
class Image:
    """A container image that nodes must hold before a process starts in it.

    ``reference``: what the recipe or profile names, after the profile's ``container.images``.
    ``file``: the .sqsh or .sif that must be there; None for an image in the engine's own store.
    ``present``: command that exits with 0 if the image is there; empty where ``file`` says it.
    ``fetch``: command that gets it, into :class:`ImagePart` where there is a ``file``; empty: it must
    be there already. ``identify``: command that prints its digest; empty where the file's says it.
    ``store``: command that prints the folder of the engine's own store, for its free space.
    ``remedy``: what to do when it is missing and cannot be fetched.
    """

    reference: str
    nodes: tuple[int, ...]
    file: Value | None = None
    present: tuple[Value, ...] = ()
    fetch: tuple[Value, ...] = ()
    identify: tuple[Value, ...] = ()
    remedy: str = ""
    store: tuple[Value, ...] = ()


@dataclass(frozen=True)
class SetupStep:
    """A script that is run where the engines run, before them. ``path``: its copy in the run folder."""

    name: str
    sha256: str
    path: str


@dataclass(frozen=True)
class Instance:
    """One deployment of the model: its role, its index in the role, the names of its processes.

    ``size``: GPUs (tp × pp × dp; dcp shares those of tp). ``ep``: experts lie on different ranks.
    ``lb``: who balances over the DP ranks: ``internal`` (one API server for all) or ``hybrid`` (one a node).
    """

    role: str
    index: int
    processes: tuple[str, ...]
    tp: int
    pp: int
    dp: int
    size: int
    dcp: int = 1
    ep: bool = False
    lb: str = "internal"


@dataclass(frozen=True)
class Accuracy:
    """What an accuracy point asks. ``limit``: documents of each task at most; ``minimum``: scores in percent."""

    tasks: tuple[str, ...]
    limit: int | None = None
    minimum: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """The highest load within the SLO is looked for; which loads are measured is decided as the points come in.

    ``over``: ``concurrency`` or ``request_rate`` (requests/s); loads from ``least`` to ``most`` are in its unit.
    ``maximize``: ``total_tps_per_gpu`` or ``goodput``. ``bounds``: of the slo, those on a point's aggregates.
    ``resolution``: how far apart the ends of the knee may be, as a share of the load. ``repeats``: points at each end.
    ``confidence``: that the knee is between them. ``points``, ``deadline_s``: what it may take at most.
    ``requests`` and ``warmup``: of a point, by themselves or for each in flight. ``seed``: of the benchmark.
    """

    over: str
    least: float
    most: float
    maximize: str
    bounds: Mapping[str, float]
    resolution: float
    repeats: int
    confidence: float
    points: int
    deadline_s: float | None
    seed: int
    requests: int | None = None
    requests_per_concurrency: int | None = None
    warmup: int | None = None
    warmup_per_concurrency: int | None = None


@dataclass(frozen=True)
class Point:
    """One measurement. ``process`` is the client's, started by the agent of its node.

    ``isl``, ``osl``: tokens wanted (None for a command); with ``isl_min`` or ``osl_min`` uniform from
    there. ``requests`` and ``warmup`` are numbers of requests. ``artifacts``: folder in the run folder.
    ``repeat_of``, ``repeat``: of measurements of one point, the id that they share, and which this is, from 1.
    ``search``: this stands for all points of a search, whose numbers the process holds as
    :class:`recipe_toolkit.plan.values.Asked`; :func:`recipe_toolkit.plan.search.asked` makes one of them.
    """

    id: str
    client: str
    process: Process
    artifacts: str
    timeout_s: float
    isl: int | None = None
    osl: int | None = None
    isl_min: int | None = None
    osl_min: int | None = None
    concurrency: int | None = None
    request_rate: float | None = None
    max_concurrency: int | None = None
    requests: int | None = None
    warmup: int | None = None
    accuracy: Accuracy | None = field(default=None, metadata=_WHERE_SAID)
    repeat_of: str | None = field(default=None, metadata=_WHERE_SAID)
    repeat: int | None = field(default=None, metadata=_WHERE_SAID)
    search: Search | None = field(default=None, metadata=_WHERE_SAID)


@dataclass(frozen=True)
class Proof:
    """What must be shown before the benchmark. ``kind``: ``generate`` or ``kv_transfer``.

    ``prompt_words``: length of a fresh prompt, in words, so long that it fills more than one KV
    block. ``two_step``: whether the prefill's answer carries ``kv_transfer_params`` for the decode.
    ``counter``/``source``: the decode side's Prometheus counter and its ``source`` label that must move.
    """

    kind: str
    prompt_words: int
    two_step: bool = True
    counter: str = "vllm:prompt_tokens_by_source_total"
    source: str = "external_kv_transfer"


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each phase may take. ``stall``: without a sign of life of a process."""

    bind: float = 300.0
    images: float = 3600.0
    ready: float = 3600.0
    stall: float = 900.0
    prove: float = 600.0
    drain: float = 60.0


@dataclass(frozen=True)
class Gpus:
    """How many GPUs: the three denominators of a per-GPU figure."""

    allocated: int
    working: int
    by_role: Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """A run, decided. ``entry``: the process that clients talk to. ``device``: ``gpu`` or ``cpu``.

    ``rehearsal``: the engine is the simulated one in place of the recipe's, and no GPU is asked for.
    ``published``: what others have reported, as the recipe says it. ``check``: what must hold on every node
    (:class:`recipe_toolkit.plan.expect.Expect`). ``metrics_targets``: folder where Prometheus looks for what to ask.
    """

    name: str
    engine: str
    engine_version: str
    served_name: str
    device: str
    gpu: str
    gpus_per_node: int
    time_limit_s: int
    nodes: tuple[Node, ...]
    instances: tuple[Instance, ...]
    processes: tuple[Process, ...]
    benchmarks: tuple[Point, ...]
    entry: str
    proof: Proof
    deadlines: Deadlines
    gpus: Gpus
    slo: Mapping[str, float] = field(default_factory=dict)
    published: tuple[Mapping[str, Any], ...] = ()
    interface: str | None = None
    rehearsal: bool = False
    images: tuple[Image, ...] = ()
    setup: tuple[SetupStep, ...] = ()
    check: Mapping[str, Any] = field(default_factory=dict)
    metrics_targets: str | None = field(default=None, metadata=_WHERE_SAID)
    schema: int = PLAN_SCHEMA

    @property
    def label(self) -> str:
        """What its runs and jobs are called."""
        return f"{self.name}-rehearsal" if self.rehearsal else self.name

    def process(self, name: str) -> Process:
        """The process called ``name``. Raises KeyError."""
        for process in self.processes:
            if process.name == name:
                return process
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Plain data; the same plan gives the same data, key order included."""
        return {"schema": self.schema, **_plain(self)}


def _plain(item: Any) -> Any:
    if dataclasses.is_dataclass(item) and type(item).__module__ == __name__:
        return {
            f.name: _plain(getattr(item, f.name))
            for f in dataclasses.fields(item)
            if getattr(item, f.name) is not None or not f.metadata.get("where_said")
        }
    if isinstance(item, Mapping):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(value) for value in item]
    return encode(item)


def _words(data: Mapping[str, Any], *keys: str) -> dict[str, tuple[Value, ...]]:
    return {key: tuple(decode(item) for item in data[key]) for key in keys}


def _image(data: Mapping[str, Any]) -> Image:
    own = {"nodes": tuple(data["nodes"]), "file": decode(data["file"])}
    return Image(**{**data, **own, **_words(data, "present", "fetch", "identify", "store")})


def _process(data: Mapping[str, Any]) -> Process:
    return Process(
        **{
            **data,
            **_words(data, "argv", "cleanup", "inspect"),
            "env": {key: decode(item) for key, item in data["env"].items()},
            "ready": Ready(**data["ready"]) if data["ready"] else None,
            **{key: tuple(data[key]) for key in ("gpus", "visible", "dp_ranks", "unset", "secrets", "after")},
        }
    )


def _point(data: Mapping[str, Any]) -> Point:
    asked = data.get("accuracy")
    accuracy = Accuracy(**{**asked, "tasks": tuple(asked["tasks"])}) if asked else None
    search = Search(**data["search"]) if data.get("search") else None
    return Point(**{**data, "process": _process(data["process"]), "accuracy": accuracy, "search": search})


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The plan of :meth:`Plan.to_json`'s data, or of what ``recipe plan --json`` prints, which says more.

    Raises ValueError if it was written for another schema; KeyError or TypeError if it is not a plan.
    """
    if data.get("schema") != PLAN_SCHEMA:
        raise ValueError(f"plan schema {data.get('schema')!r}, but this version reads {PLAN_SCHEMA}")
    own = {key: value for key, value in data.items() if key not in ("warnings", "lint")}
    return Plan(
        **{
            **own,
            "nodes": tuple(Node(**item) for item in data["nodes"]),
            "instances": tuple(
                Instance(**{**item, "processes": tuple(item["processes"])}) for item in data["instances"]
            ),
            "processes": tuple(_process(item) for item in data["processes"]),
            "benchmarks": tuple(_point(item) for item in data["benchmarks"]),
            "proof": Proof(**data["proof"]),
            "deadlines": Deadlines(**data["deadlines"]),
            "gpus": Gpus(**data["gpus"]),
            "images": tuple(_image(item) for item in data["images"]),
            "setup": tuple(SetupStep(**item) for item in data["setup"]),
            "published": tuple(data["published"]),
        }
    )
