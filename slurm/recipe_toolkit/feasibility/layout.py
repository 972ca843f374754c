"""The parallel sizes of a role against the GPUs of a node."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.recipe import Parallel, Resources, Role

MOST_GPUS = 100_000


def check_role(role: Role, resources: Resources) -> Iterator[Fault]:
    """Whether instances of the role can be laid out on nodes of ``gpus_per_node`` GPUs."""
    at: FieldPath = ("roles", role.name, "parallel")
    parallel, gpus = role.parallel, resources.gpus_per_node
    if parallel.size * role.instances > MOST_GPUS:
        count = f"{role.instances} x {parallel.size} GPUs"
        yield Fault(at[:2], f"{count} are more than the {MOST_GPUS} that a plan can hold", key=True)
        return
    if parallel.tp % parallel.dcp:
        hint = "the ranks of one tensor parallel group share the KV cache out; dcp adds no GPUs"
        yield Fault((*at, "dcp"), f"dcp {parallel.dcp} does not divide tp {parallel.tp}", hint)
    if parallel.ep and parallel.tp * parallel.dp == 1:
        yield Fault((*at, "ep"), "experts are spread over tp x dp = 1 GPU: this changes nothing", severity="warning")
    placed = True
    for fault in _replica_faults(parallel, gpus, at):
        placed = False
        yield fault
    if placed:
        yield from _dp_faults(parallel, gpus, at)


def _replica_faults(parallel: Parallel, gpus: int, at: FieldPath) -> Iterator[Fault]:
    replica = parallel.replica
    factor = "tp" if parallel.pp == 1 else "pp"
    asked = f"a replica of tp {parallel.tp} x pp {parallel.pp} = {replica} GPUs"
    if replica > gpus and replica % gpus:
        whole = -(-replica // gpus) * gpus
        hint = f"a replica that spans nodes takes each of them whole: {whole - gpus} or {whole} GPUs"
        yield Fault((*at, factor), f"{asked} does not fill whole nodes of {gpus} GPUs", hint)
    elif replica < gpus and gpus % replica:
        sizes = ", ".join(str(size) for size in range(1, gpus + 1) if gpus % size == 0)
        hint = f"sizes that divide it: {sizes}; or use fewer GPUs of each node: resources.gpus_per_node"
        yield Fault((*at, factor), f"{asked} does not divide a node of {gpus} GPUs", hint)


def _dp_faults(parallel: Parallel, gpus: int, at: FieldPath) -> Iterator[Fault]:
    if parallel.dp > 1 and parallel.replica > gpus and not parallel.ep:
        yield Fault(
            (*at, "dp"),
            f"dp {parallel.dp} with replicas that span nodes does not start with a dense model: every replica "
            "takes the same master port, and the first to lose it stops the instance",
            f"use {parallel.dp} instances with dp 1; if the model is a mixture of experts, say ep: true",
        )
    local = local_replicas(parallel, gpus)
    if local is None:
        most = gpus // parallel.replica
        below = parallel.dp // most * most
        yield Fault(
            (*at, "dp"),
            f"dp {parallel.dp} cannot be spread evenly over nodes that hold {most} replicas each",
            f"each node of an instance takes as many replicas; dp {below} or {below + most} would fill its nodes",
        )
    elif parallel.dp_lb == "hybrid":
        yield from _hybrid_faults(parallel, gpus, local, at)


def local_replicas(parallel: Parallel, gpus: int) -> int | None:
    """DP ranks on each node of an instance, 0 where one replica spans nodes; None if nodes would differ."""
    most = gpus // parallel.replica
    if most == 0:
        return 0
    nodes = -(-parallel.dp // most)
    return parallel.dp // nodes if parallel.dp % nodes == 0 else None


def _hybrid_faults(parallel: Parallel, gpus: int, local: int, at: FieldPath) -> Iterator[Fault]:
    if local == parallel.dp:
        message = "hybrid balances between nodes, and this instance stands on one"
    elif local == 0:
        message = (
            f"hybrid needs whole replicas on each node; a replica of {parallel.replica} GPUs spans nodes of {gpus}"
        )
    elif local == 1 and not parallel.ep:
        # vLLM turns hybrid with one local rank into its external load balancer, which is for MoE alone.
        message = "hybrid with one replica a node does not start with a dense model"
    else:
        return
    yield Fault((*at, "dp_lb"), message, "dp_lb: internal, or separate instances behind the router")
