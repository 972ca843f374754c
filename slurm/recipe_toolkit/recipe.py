"""A recipe: what to serve and measure, and nothing about the site where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Model:
    """``path``: an absolute path, an alias of the profile, or ``hf:ORG/REPO[@REVISION]``."""

    path: str
    served_name: str
    tokenizer: str | None = None


@dataclass(frozen=True)
class Engine:
    """``kind``: ``vllm`` or ``sim``. ``version`` selects the argument list that ``args`` are checked against."""

    kind: str
    version: str
    image: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    sim: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """``gpus_per_node`` counts CPU worker slots where ``device`` is ``cpu``.

    ``share_nodes``: whether instances of different roles may share a node.
    """

    gpu: str
    gpus_per_node: int
    device: str = "gpu"
    share_nodes: bool = False


@dataclass(frozen=True)
class Parallel:
    """Parallel sizes of one instance. ``dp_lb``: ``internal`` or ``hybrid`` (an API server a node)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: bool = False
    dp_lb: str = "internal"

    @property
    def replica(self) -> int:
        """GPUs of one DP rank."""
        return self.tp * self.pp

    @property
    def size(self) -> int:
        """GPUs of one instance."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Role:
    """``prefill``, ``decode`` or ``serve``: how many instances, how large, with which flags.

    ``instances_per_node``: at most so many on one node (None: as many as its GPUs hold).
    """

    name: str
    instances: int
    parallel: Parallel
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    sim: Mapping[str, Any] = field(default_factory=dict)
    instances_per_node: int | None = None


@dataclass(frozen=True)
class KvTransfer:
    """How KV moves from prefill to decode.

    ``connector``: ``nixl``, ``example`` (files; for tests) or ``decode-bench`` (dummy KV for ``serve`` alone).
    """

    connector: str
    load_failure_policy: str = "fail"
    buffer_device: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Router:
    """``kind``: ``vllm-router`` or ``none``. ``version``: whose flags ``args`` are checked against."""

    kind: str = "vllm-router"
    version: str | None = None
    policy: str = "round_robin"
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step before the engine serves, in its container. ``script``: the whole file, from ``#!`` on."""

    name: str
    script: str


@dataclass(frozen=True)
class Search:
    """The load within the SLO that gives the most, looked for instead of listed.

    ``over``: ``concurrency`` or ``request_rate``, from ``least`` to ``most``. ``maximize``: ``total_tps_per_gpu`` or
    ``goodput``. ``resolution``: share of the load. ``repeats``: points at each end of the knee. ``confidence``: that it
    is between them. ``points`` (None: what that should take) and ``deadline_s`` bound it.
    """

    over: str
    least: float
    most: float
    maximize: str = "total_tps_per_gpu"
    repeats: int = 3
    resolution: float = 0.05
    confidence: float = 0.95
    points: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class Benchmark:
    """One client over a list of loads, or a search among them.

    ``client``: ``aiperf``, ``vllm-bench``, ``lm-eval`` or ``command``. Lengths are tokens; with ``isl_min`` or
    ``osl_min`` they are uniform from there to ``isl`` or ``osl``. Exactly one of ``concurrency``, ``request_rate``
    (requests/s) and ``search`` is given, but for a ``command``. ``requests`` or ``requests_per_concurrency``, and
    ``warmup`` or ``warmup_per_concurrency``, are the rules that the plan turns into numbers.
    ``max_concurrency``: how many may be in flight at a rate. ``version``: whose flags ``args`` are checked against.
    ``repeats``: measurements of each load.

    Of ``lm-eval`` alone, which has one ``concurrency``: ``tasks``; ``limit``, documents of each at most;
    ``num_fewshot`` (None: the task's own); ``min``, the least score of tasks in percent; ``data``, a folder of tasks
    (an absolute path, or an alias of the profile's ``data``).
    """

    client: str
    name: str
    isl: int | None = None
    osl: int | None = None
    concurrency: tuple[int, ...] = ()
    request_rate: tuple[float, ...] = ()
    max_concurrency: int | None = None
    requests: int | None = None
    requests_per_concurrency: int | None = None
    warmup: int | None = None
    warmup_per_concurrency: int | None = None
    endpoint: str = "completions"
    command: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    timeout_s: float = 3600.0
    isl_min: int | None = None
    osl_min: int | None = None
    version: str | None = None
    tasks: tuple[str, ...] = ()
    limit: int | None = None
    num_fewshot: int | None = None
    min: Mapping[str, float] = field(default_factory=dict)
    data: str | None = None
    repeats: int = 1
    search: Search | None = None


@dataclass(frozen=True)
class Slo:
    """Bounds on aggregates (``*_mean_*``, percentiles) and, for goodput, on each request (the others)."""

    ttft_mean_s: float | None = None
    tpot_mean_ms: float | None = None
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p90_ms: float | None = None
    tpot_p99_ms: float | None = None
    ttft_s: float | None = None
    tpot_ms: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True)
class Published:
    """What others have reported, under which conditions; None is what they did not say.

    ``per_gpu``: which GPUs its per-GPU figures divide by (``working``, ``allocated`` or a role).
    ``metrics``: by the names and units of the results. ``accuracy``: percent by task. ``tolerance``:
    share of a figure.
    """

    url: str | None = None
    client: str | None = None
    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    request_rate: float | None = None
    per_gpu: str = "working"
    metrics: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.05
    note: str | None = None


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each phase may take; ``stall_s``: without a sign of life of a process."""

    bind_s: float = 300.0
    images_s: float = 3600.0
    ready_s: float = 3600.0
    stall_s: float = 900.0
    prove_s: float = 600.0
    drain_s: float = 60.0


@dataclass(frozen=True)
class Recipe:
    """A checked recipe. ``roles``: ``serve`` alone, or ``prefill`` and ``decode``, in this order.

    ``lint``: by rule, why it is meant as it is.
    """

    name: str
    model: Model
    engine: Engine
    resources: Resources
    roles: tuple[Role, ...]
    benchmarks: tuple[Benchmark, ...]
    router: Router = Router()
    kv_transfer: KvTransfer | None = None
    setup: tuple[Step, ...] = ()
    slo: Slo = Slo()
    published: tuple[Published, ...] = ()
    deadlines: Deadlines = Deadlines()
    time_limit_s: int = 3600
    description: str | None = None
    source: Mapping[str, str] = field(default_factory=dict)
    lint: Mapping[str, str] = field(default_factory=dict)

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run in different instances."""
        return any(role.name == "prefill" for role in self.roles)
