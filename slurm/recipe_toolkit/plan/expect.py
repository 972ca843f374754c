"""What must hold on the nodes, as the recipe and the profile say it: what a preflight is judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.cluster import Cluster, Container
from recipe_toolkit.plan.model import Image, Process
from recipe_toolkit.recipe import Recipe

MANIFEST = "MANIFEST.sha256"  # of a model's folder, as sha256sum writes it
_PREFIXES = ("NCCL_", "UCX_", "MELLANOX_")
_ENGINES = ("docker", "podman")
GIB = 1 << 30
_RUNS_BYTES = GIB  # logs and results of a run


@dataclass(frozen=True)
class Expect:
    """What is wanted; what is None or empty is not asked for.

    ``gpus``: of a node. ``env``: variables of the engines that choose networks. ``images``: ``reference``,
    ``engine`` (docker or podman, and its own arguments) or ``file``. ``vllm``: how vLLM is asked for its flags, and
    the commands that need them (`plan.asking`). ``model``: a folder on the nodes. ``memory``:
    largest share of a GPU's memory that an engine takes. ``ports``: that nothing may listen on. ``port_count``: ports
    that the run takes on a node. ``disk``: folder to free bytes. ``lanes``: interface to network (``""``: any).
    ``speed``: Mb/s. ``sim``: no vLLM is run. ``skip``: checks that the site leaves out.
    """

    sim: bool = False
    device: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    driver: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = "local"
    runtime: str = "none"
    images: Sequence[Mapping[str, Any]] = ()
    vllm: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    memory: float | None = None
    ports: Sequence[int] = ()
    port_count: int = 0
    disk: Mapping[str, int] = field(default_factory=dict)
    lanes: Mapping[str, str] = field(default_factory=dict)
    mtu: int = 9000
    speed: int | None = None
    ring: bool = False
    bind: bool = True
    skip: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data: what is not as it is by default."""
        usual = Expect()
        return {name: _plain(value) for name, value in vars(self).items() if value != getattr(usual, name)}

    @property
    def rdma(self) -> bool:
        """Whether RDMA is asked for: lanes, or devices named in the environment."""
        if self.env.get("NCCL_NET", "IB") != "IB" or self.env.get("NCCL_IB_DISABLE", "0") == "1":
            return False
        return bool(self.lanes or self.hcas or self.env.get("NCCL_NET") == "IB")

    @property
    def nccl_rdma(self) -> bool:
        """Whether it is NCCL that RDMA is asked of, not UCX alone."""
        return self.rdma and bool(self.lanes or self.env.get("NCCL_IB_HCA") or self.env.get("NCCL_NET") == "IB")

    @property
    def hcas(self) -> tuple[str, ...]:
        """RDMA devices that the environment names, in its order and without ports.

        NCCL takes names as prefixes unless the list begins with ``=``; ``^`` excludes (then nothing is named).
        UCX's list may hold network interfaces too: a device has its port behind a colon.
        """
        nccl, ucx = (self.env.get(name, "").split(",") for name in ("NCCL_IB_HCA", "UCX_NET_DEVICES"))
        found = [] if nccl[0].startswith("^") else [item.lstrip("=") for item in nccl if item]
        found = found or [item for item in ucx if ":" in item]
        return tuple(item.partition(":")[0] for item in found)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def expect_from_json(data: Mapping[str, Any]) -> Expect:
    """The data of :meth:`Expect.to_json`. Raises TypeError if it is something else."""
    return Expect(**data)


def of_profile(cluster: Cluster) -> Expect:
    """What a profile alone says of its nodes."""
    check = cluster.check
    return Expect(
        driver=check.driver,
        env={key: value for key, value in cluster.env.items() if key.startswith(_PREFIXES)},
        scheduler=cluster.scheduler,
        runtime=cluster.container.runtime,
        ports=check.ports,
        disk={cluster.runs: _RUNS_BYTES, **check.disk},
        lanes=dict(check.lanes),
        mtu=check.mtu,
        speed=check.speed,
        ring=check.ring,
        bind=check.bind,
        skip=check.skip,
    )


def of_recipe(recipe: Recipe, cluster: Cluster, engines: Sequence[Process], images: Sequence[Image]) -> Expect:
    """What a recipe's plan asks of every node, beside what the profile says."""
    site = of_profile(cluster)
    env: dict[str, str] = dict(site.env)
    for process in engines:
        env |= {k: v for k, v in process.env.items() if k.startswith(_PREFIXES) and isinstance(v, str)}
    theirs = {process.image for process in engines}
    on_node: dict[int, int] = {}
    for process in engines:
        on_node[process.node] = on_node.get(process.node, 0) + sum(process.ports.values())
    sim = recipe.engine.kind == "sim"
    gpu = recipe.resources.device == "gpu" and not sim
    return dataclasses.replace(
        site,
        sim=sim,
        device="gpu" if gpu else "cpu",
        gpu=recipe.resources.gpu if gpu else None,
        gpus=_gpus(recipe, cluster, engines) if gpu else None,
        env=env if gpu else {},
        lanes=site.lanes if gpu else {},
        images=tuple(_images([item for item in images if item.reference in theirs], cluster.container)),
        model=None if sim else next((path for path in map(_model, engines) if path), None),
        memory=max(_shares(recipe), default=None) if gpu else None,
        port_count=max(on_node.values(), default=0),
    )


def _images(images: Sequence[Image], container: Container) -> Iterator[Mapping[str, Any]]:
    for image in images:
        file = image.file if isinstance(image.file, str) else None
        engine = [container.runtime, *container.global_args] if container.runtime in _ENGINES else []
        if engine or file:
            yield {"reference": image.reference, "engine": engine, "file": file}


def _gpus(recipe: Recipe, cluster: Cluster, processes: Sequence[Process]) -> int:
    """GPUs that a node must show: all of it, or those that the run takes where nodes are shared."""
    if cluster.scheduler == "slurm" and not cluster.slurm.exclusive:
        return max((slot + 1 for process in processes for slot in process.gpus), default=0)
    return recipe.resources.gpus_per_node


def _model(process: Process) -> str | None:
    words = list(process.argv)
    path = words[words.index("serve") + 1]
    return path if isinstance(path, str) and path.startswith("/") else None


def _shares(recipe: Recipe) -> Iterator[float]:
    for role in recipe.roles:
        share = {**recipe.engine.args, **role.args}.get("gpu-memory-utilization")
        if isinstance(share, (int, float)):
            yield float(share)
