"""argv, environment and ports of every process of a vLLM instance.

Facts are of vLLM 0.32 (``vllm/engine/arg_utils.py``, ``vllm/entrypoints/cli/serve.py``):

- An instance over several nodes is one process a node. Where whole replicas stand on each node, they
  are told their DP ranks (``--data-parallel-start-rank``); a replica that itself spans nodes uses
  ``--nnodes``/``--node-rank``, from which vLLM infers the DP rank.
- The API server is in the first process; the others are ``--headless``, except with the hybrid load
  balancer, where each node has one. ``--data-parallel-start-rank`` without ``--headless`` means hybrid
  too, so the first process of an internally balanced instance is not given it.
- With internal balancing vLLM starts as many API servers as there are DP ranks, on one port. Their
  counters then go through Prometheus' multiprocess mode: ``/metrics`` of that port has them all, the
  gauges' meaning is the same, only the periodic log line of throughput is gone.
- ``VLLM_PORT`` is left alone. It makes vLLM scan upwards from one port for all its further sockets;
  ranks of an instance that start together then find the same port free, where the kernel's own choice
  differs for each.
- ``--host`` is the node's own address, not 0.0.0.0: the local scheduler's nodes are 127.0.0.1,
  127.0.0.2, … of one host, and a port is then theirs alone; on a cluster it keeps the API off
  interfaces that the run does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_toolkit import vllm_args
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.plan.container import Needs
from recipe_toolkit.plan.expect import Expect
from recipe_toolkit.plan.model import Instance, Process, Ready
from recipe_toolkit.plan.tools import Source, source
from recipe_toolkit.plan.topology import Part, Placed, Placement
from recipe_toolkit.plan.values import Address, Devices, Interface, Json, Port, RunPath, Value
from recipe_toolkit.recipe import KvTransfer, Recipe, Role

KV_FOLDER = "kv"
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "serve": "kv_both"}
_CONNECTORS = {"nixl": "NixlConnector", "example": "ExampleConnector", "decode-bench": "DecodeBenchConnector"}
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def instance(placed: Placed) -> Instance:
    """The instance of the plan that stands at this place."""
    parallel = placed.role.parallel
    hybrid = parallel.dp_lb == "hybrid" and len(placed.parts) > 1
    return Instance(
        role=placed.role.name,
        index=placed.index,
        processes=tuple(_name(placed, rank) for rank in range(len(placed.parts))),
        tp=parallel.tp,
        pp=parallel.pp,
        dp=parallel.dp,
        size=parallel.size,
        dcp=parallel.dcp,
        ep=parallel.ep,
        lb="hybrid" if hybrid else "internal",
    )


def _name(placed: Placed, rank: int) -> str:
    name = f"{placed.role.name}-{placed.index}"
    return name if len(placed.parts) == 1 else f"{name}.{rank}"


def processes(recipe: Recipe, cluster: Cluster, placement: Placement, placed: Placed) -> list[Process]:
    """The instance's processes, one a node, with ``vllm`` as their first word.

    Raises InputError for a model that the profile does not know.
    """
    return [_process(recipe, cluster, placement, placed, rank) for rank in range(len(placed.parts))]


def _process(recipe: Recipe, cluster: Cluster, placement: Placement, placed: Placed, rank: int) -> Process:
    role, part, name = placed.role, placed.parts[rank], _name(placed, rank)
    api = rank == 0 or instance(placed).lb == "hybrid"
    ranks = dp_ranks(placed, rank)
    visible = part.slots + _peers(recipe, placement, part)
    argv: list[Value] = ["vllm", *serve_words(recipe, cluster, placed, rank)]
    if visible != part.slots and vllm_args.knows("device-ids", recipe.engine.version):
        # Numbers are places in CUDA_VISIBLE_DEVICES where that is set (arg_utils.py, _resolve_device_ids).
        argv += ["--device-ids", ",".join(str(place) for place in range(len(part.slots)))]
    argv += vllm_args.render(effective_args(recipe, role), recipe.engine.version)
    return Process(
        name=name,
        role=role.name,
        instance=placed.index,
        rank=rank,
        node=part.node,
        argv=tuple(argv),
        gpus=part.slots,
        visible=visible,
        dp_ranks=ranks,
        env=_env(recipe, cluster, placed, rank, visible),
        secrets=cluster.secrets,
        ports=_ports(recipe, placed, rank, api),
        api=api,
        ready=Ready("http", "/health", recipe.model.served_name) if api else None,
    )


def needs(recipe: Recipe, cluster: Cluster, placement: Placement) -> Needs:
    """What an engine must find in its container."""
    gpus = recipe.resources.device == "gpu"
    return Needs([_model(recipe, cluster).name], gpus, fabric=gpus and len(placement.nodes) > 1)


def dp_ranks(placed: Placed, rank: int) -> tuple[int, ...]:
    """The DP ranks whose engine core is in process ``rank``; none where it only runs workers of another's."""
    if placed.local:
        return tuple(range(rank * placed.local, (rank + 1) * placed.local))
    nodes_per_replica = len(placed.parts) // placed.role.parallel.dp
    return (rank // nodes_per_replica,) if rank % nodes_per_replica == 0 else ()


def _peers(recipe: Recipe, placement: Placement, part: Part) -> tuple[int, ...]:
    """The node's other slots, where prefill and decode on this node hand KV to each other.

    UCX opens a peer's memory (cuda_ipc) only on a device that it sees, and goes through the host
    otherwise: 28 % less throughput on two H200s.
    """
    moves = recipe.kv_transfer is not None and recipe.kv_transfer.connector == "nixl"
    both = all(placement.slots(part.node, role) for role in ("prefill", "decode"))
    if not (moves and both):
        return ()
    return tuple(slot for slot in sorted(placement.slots(part.node)) if slot not in part.slots)


def serve_words(recipe: Recipe, cluster: Cluster, placed: Placed, rank: int) -> list[Value]:
    """``serve MODEL`` and the flags that the toolkit sets."""
    role, part = placed.role, placed.parts[rank]
    model = _model(recipe, cluster)
    words: list[Value] = ["serve", model.name, "--served-model-name", recipe.model.served_name]
    if model.revision:
        words += ["--revision", model.revision]
    if rank == 0 or instance(placed).lb == "hybrid":
        words += ["--host", Address(part.node), "--port", Port(_name(placed, rank), "http")]
    else:
        words.append("--headless")
    words += _sizes(role)
    if len(placed.parts) > 1:
        words += _data_parallel(placed, rank) if placed.local else _over_nodes(placed, rank)
    if recipe.kv_transfer is not None:
        words += ["--kv-transfer-config", Json(kv_config(recipe.kv_transfer, role, recipe.resources.device))]
    return words


def _model(recipe: Recipe, cluster: Cluster) -> Source:
    """The model; the simulated engine reads none, so any name will do for it."""
    path = recipe.model.path
    if recipe.engine.kind == "sim" and not path.startswith("hf:") and path not in cluster.models:
        return Source(path)
    return source(path, cluster, "model.path")


def _sizes(role: Role) -> list[Value]:
    parallel = role.parallel
    words: list[Value] = ["--tensor-parallel-size", str(parallel.tp)]
    for flag, size in (
        ("--pipeline-parallel-size", parallel.pp),
        ("--decode-context-parallel-size", parallel.dcp),
        ("--data-parallel-size", parallel.dp),
    ):
        if size > 1:
            words += [flag, str(size)]
    return [*words, "--enable-expert-parallel"] if parallel.ep else words


def _data_parallel(placed: Placed, rank: int) -> list[Value]:
    """Whole replicas on each node."""
    head, first = placed.parts[0].node, _name(placed, 0)
    words: list[Value] = ["--data-parallel-size-local", str(placed.local)]
    words += ["--data-parallel-address", Address(head), "--data-parallel-rpc-port", Port(first, "dp_rpc")]
    hybrid = instance(placed).lb == "hybrid"
    if hybrid or rank > 0:
        words += ["--data-parallel-start-rank", str(rank * placed.local)]
    return [*words, "--data-parallel-hybrid-lb"] if hybrid else words


def _over_nodes(placed: Placed, rank: int) -> list[Value]:
    """Replicas that span nodes."""
    head, first = placed.parts[0].node, _name(placed, 0)
    words: list[Value] = ["--nnodes", str(len(placed.parts)), "--node-rank", str(rank)]
    words += ["--master-addr", Address(head), "--master-port", Port(first, "master")]
    if placed.role.parallel.dp > 1:
        words += ["--data-parallel-address", Address(head), "--data-parallel-rpc-port", Port(first, "dp_rpc")]
    return words


def kv_config(kv: KvTransfer, role: Role, device: str) -> dict[str, Any]:
    """vLLM's KVTransferConfig for one side (``vllm/config/kv_transfer.py``).

    The connectors do not act on ``kv_role``: the requests say who sends. It names the metrics that
    vLLM keeps, and NIXL warns of ``kv_both``.
    """
    config: dict[str, Any] = {"kv_connector": _CONNECTORS[kv.connector], "kv_role": _KV_ROLES[role.name]}
    extra: dict[str, Any] = dict(kv.extra)
    if kv.connector == "example":
        extra["shared_storage_path"] = RunPath(KV_FOLDER)
    buffer = kv.buffer_device or ("cpu" if device == "cpu" else None)
    if buffer:
        config["kv_buffer_device"] = buffer
    if kv.connector != "decode-bench":
        config["kv_load_failure_policy"] = kv.load_failure_policy
    if extra:
        config["kv_connector_extra_config"] = extra
    return config


def effective_args(recipe: Recipe, role: Role) -> dict[str, Any]:
    """The recipe's own flags of a role: the engine's, then the role's over them, in the order of writing."""
    merged: dict[str, Any] = {}
    for args in (recipe.engine.args, role.args):
        for key, value in args.items():
            merged[vllm_args.full_name(key, recipe.engine.version)] = value
    return merged


def _env(recipe: Recipe, cluster: Cluster, placed: Placed, rank: int, visible: tuple[int, ...]) -> dict[str, Value]:
    """The profile's, the engine's, the role's, and last what only the toolkit knows."""
    part = placed.parts[rank]
    env: dict[str, Value] = {**cluster.env, **recipe.engine.env, **placed.role.env}
    env["VLLM_HOST_IP"] = Address(part.node)
    if recipe.resources.device == "gpu":
        # Numbers that nvidia-smi and Slurm give are in the bus' order.
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        env["CUDA_VISIBLE_DEVICES"] = Devices(part.node, visible)
    if len(placed.parts) > 1:
        for key in _INTERFACES:
            # A site knows its networks: what its profile says stands.
            env[key] = cluster.env.get(key) or Interface(part.node)
        said = {key: value for key, value in env.items() if isinstance(value, str)}
        if Expect(env=said, lanes=cluster.check.lanes).nccl_rdma:
            # A few hundred lines a rank while it starts, none later: what tells RDMA from a silent fall-back to TCP.
            env.setdefault("NCCL_DEBUG", "INFO")
            env.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    if recipe.kv_transfer is not None and recipe.kv_transfer.connector == "nixl":
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = Address(part.node)
        # A few tables while connections are made, none later: what tells NVLink or RDMA from a silent fall-back.
        env.setdefault("UCX_PROTO_INFO", "y")
        ranks = dp_ranks(placed, rank)
        if ranks:
            # vLLM adds the global DP rank to it.
            env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = Port(_name(placed, rank), "nixl", -ranks[0])
    return env


def _ports(recipe: Recipe, placed: Placed, rank: int, api: bool) -> Mapping[str, int]:
    ports = {"http": 1} if api else {}
    if rank == 0 and len(placed.parts) > 1:
        if not placed.local:
            ports["master"] = 1
        if placed.role.parallel.dp > 1:
            ports["dp_rpc"] = 1
    ranks = dp_ranks(placed, rank)
    if ranks and recipe.kv_transfer is not None and recipe.kv_transfer.connector == "nixl":
        ports["nixl"] = len(ranks)
    return ports
