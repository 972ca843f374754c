"""The network between nodes, as recipe and profile name it: NIXL's KV, NCCL, and the GPUs that see each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from recipe_toolkit.faults import Fault
from recipe_toolkit.feasibility.lint.registry import Setting, Told, site_rule
from recipe_toolkit.recipe import Recipe, Role

_SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
# Of UCX's transports those that need an RDMA device; a name may carry the kind of verbs after it (rc_mlx5).
_RDMA = re.compile(r"(rc|ud|dc|srd|ib|gga|all)(_\w+)?(:.*)?")
_OFF = frozenset(["0", "n", "no", "off", "false", ""])
_MANAGEMENT = re.compile(r"(lo|docker|virbr|br-|veth|cni|podman|mgmt|mgt|mgm|bmc|ipmi|idrac|ilo|oob)[\w.-]*")
_DEVICES = re.compile(r"(--gpus?|--device|--env|-e)(=(.*))?")
_FEWER = re.compile(
    r"\"?device=.*|\d+|nvidia\.com/gpu=(?!all$).*|(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES=(?!all$).*", re.IGNORECASE
)


@dataclass(frozen=True)
class _Variable:
    """A variable of a role's processes, and where it is said."""

    value: str
    path: tuple[str, ...]
    profile: bool = False

    def told(self, message: str, hint: str | None) -> Told:
        return Told(Fault(self.path, message, hint), self.profile)


def _variable(setting: Setting, role: Role, name: str) -> _Variable | None:
    if name in role.env:
        return _Variable(role.env[name], ("roles", role.name, "env", name))
    if name in setting.recipe.engine.env:
        return _Variable(setting.recipe.engine.env[name], ("engine", "env", name))
    env: Mapping[str, str] = setting.cluster.env if setting.cluster else {}
    return _Variable(env[name], ("env", name), profile=True) if name in env else None


def _on(setting: Setting, role: Role, name: str) -> bool:
    found = _variable(setting, role, name)
    return found is not None and found.value.lower() not in _OFF


def _has_network(setting: Setting) -> bool:
    """Whether the profile's nodes are hosts of their own; the local scheduler's are all this machine."""
    return setting.cluster is not None and setting.cluster.scheduler != "local"


def _spanning(setting: Setting) -> list[Role]:
    """The roles whose instances are larger than a node, so that NCCL goes between nodes."""
    if not _has_network(setting):
        return []
    gpus = setting.recipe.resources.gpus_per_node
    return [role for role in setting.recipe.roles if role.parallel.size > gpus]


def _receivers(setting: Setting) -> list[Role]:
    """Prefill and decode where NIXL takes KV from one node to another."""
    recipe: Recipe = setting.recipe
    nixl = recipe.kv_transfer is not None and recipe.kv_transfer.connector == "nixl"
    if not (_has_network(setting) and nixl and recipe.disaggregated):
        return []
    working = sum(role.instances * role.parallel.size for role in recipe.roles)
    apart = not recipe.resources.share_nodes or working > recipe.resources.gpus_per_node
    return list(recipe.roles) if apart else []


def _once(told: Iterator[Told]) -> Iterator[Told]:
    """Each place once: roles share the variables of the profile and of the engine."""
    seen: set[tuple[object, bool]] = set()
    for item in told:
        if (item.fault.path, item.profile) not in seen:
            seen.add((item.fault.path, item.profile))
            yield item


@site_rule(
    "kv-device-unnamed",
    "warning",
    "NIXL takes KV between nodes with GPUs, and `UCX_NET_DEVICES` is set nowhere",
    "UCX chooses by itself, among management ports too, and takes TCP without a word where it finds no RDMA device: "
    "KV moves, a hundred times slower.",
    do='`UCX_NET_DEVICES: "mlx5_0:1,mlx5_1:1"` in `env` of the profile: `ibdev2netdev` shows the devices.',
)
def kv_device(setting: Setting) -> Iterator[Told]:
    """RDMA devices for UCX; NVLink between nodes needs none."""
    for role in _receivers(setting):
        named = _variable(setting, role, "UCX_NET_DEVICES")
        if named is None and not _on(setting, role, "UCX_CUDA_IPC_ENABLE_MNNVL"):
            hint = 'UCX_NET_DEVICES: "mlx5_0:1,..." in the profile\'s env; ibdev2netdev shows the devices'
            message = "does not say UCX_NET_DEVICES, and prefill hands KV to decode on other nodes"
            yield Told(Fault(("env",), message, hint, key=True), profile=True)
            return


@site_rule(
    "kv-over-tcp",
    "warning",
    "NIXL takes KV between nodes with GPUs, and UCX is told of network interfaces alone, or of no transport with RDMA",
    "KV goes over TCP: the run works, and TTFT is that of the network card's driver.",
    do="`UCX_NET_DEVICES: mlx5_0:1` and not `eth0`; `rc` among `UCX_TLS`.",
)
def kv_over_tcp(setting: Setting) -> Iterator[Told]:
    """Devices are DEVICE:PORT (mlx5_0:1); a name without a port is an interface, which UCX uses by TCP."""
    yield from _once(_kv_over_tcp(setting))


def _kv_over_tcp(setting: Setting) -> Iterator[Told]:
    for role in _receivers(setting):
        if _on(setting, role, "UCX_CUDA_IPC_ENABLE_MNNVL"):
            continue
        devices, transports = (_variable(setting, role, name) for name in ("UCX_NET_DEVICES", "UCX_TLS"))
        if devices and devices.value and not re.search(r"[\^:*]|\ball\b", devices.value):
            message = f"{devices.value} names no RDMA device: KV goes over TCP"
            yield devices.told(message, "as DEVICE:PORT, such as mlx5_0:1; ibdev2netdev shows the devices")
        words = [word.strip() for word in transports.value.split(",")] if transports else []
        if transports and words[0] and not words[0].startswith("^") and not any(map(_RDMA.fullmatch, words)):
            hint = "rc before the others, as in rc,cuda_copy,cuda_ipc,sm,self,tcp"
            yield transports.told(f"{transports.value} has no transport with RDMA: KV goes over TCP", hint)


@site_rule(
    "nccl-device-unnamed",
    "note",
    "an instance is larger than a node, and `NCCL_IB_HCA` is set nowhere",
    "NCCL takes every RDMA device that is up, those of the storage network too.",
    do="`NCCL_IB_HCA: mlx5_0,mlx5_1` in the profile's `env`.",
)
def nccl_device(setting: Setting) -> Iterator[Told]:
    """RDMA devices for NCCL; plugins and NVLink between nodes have names of their own."""
    others = ("NCCL_IB_HCA", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_MNNVL_ENABLE", "NCCL_IB_DISABLE")
    for role in _spanning(setting):
        if not any(_variable(setting, role, name) for name in others):
            message = f"does not say NCCL_IB_HCA, and instances of {role.name} are larger than a node"
            hint = 'NCCL_IB_HCA: "mlx5_0,..." in the profile\'s env; ibdev2netdev shows the devices'
            yield Told(Fault(("env",), message, hint, key=True), profile=True)
            return


@site_rule(
    "nccl-over-tcp",
    "warning",
    "an instance is larger than a node, and `NCCL_IB_DISABLE` or `NCCL_NET` takes RDMA away from NCCL",
    "Collectives go over TCP sockets: it starts, and every step waits for the network.",
    do="Leave `NCCL_IB_DISABLE` out; `NCCL_NET: IB`.",
)
def nccl_over_tcp(setting: Setting) -> Iterator[Told]:
    """NCCL without its RDMA transport; NVLink between nodes does without."""
    yield from _once(_nccl_over_tcp(setting))


def _nccl_over_tcp(setting: Setting) -> Iterator[Told]:
    for role in _spanning(setting):
        disabled, net = (_variable(setting, role, name) for name in ("NCCL_IB_DISABLE", "NCCL_NET"))
        if _on(setting, role, "NCCL_MNNVL_ENABLE"):
            continue
        if disabled and disabled.value.strip() == "1":
            yield disabled.told(f"instances of {role.name} are larger than a node: NCCL goes over TCP", "leave it out")
        if net and net.value.strip().lower() == "socket":
            yield net.told(f"instances of {role.name} are larger than a node: NCCL goes over TCP", "IB")


@site_rule(
    "nccl-other-interface",
    "warning",
    "`NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME` leaves out the profile's `interface`",
    "The nodes give each other addresses of one network and ranks meet on another: where that is the management "
    "network, NCCL starts and is terribly slow.",
    do="`interface: bond0` alone: both variables follow from it.",
)
def nccl_interface(setting: Setting) -> Iterator[Told]:
    """The interface that the nodes' addresses are of, among those that NCCL and gloo may take."""
    cluster = setting.cluster
    if cluster is None or cluster.interface is None or not _spanning(setting):
        return
    for name in _SOCKETS:
        value = cluster.env.get(name)
        if value and not _selects(value, cluster.interface, prefixes=name.startswith("NCCL")):
            message = f"{value} leaves out {cluster.interface}, which holds the addresses that nodes give each other"
            yield Told(
                Fault(("env", name), message, f"leave it out: it follows from interface: {cluster.interface}"), True
            )


def _selects(value: str, interface: str, *, prefixes: bool) -> bool:
    """Whether NCCL's list (prefixes; ``=`` exact names, ``^`` what is not taken), or gloo's of names, has it."""
    excluded = prefixes and value.startswith("^")
    rest = value[1:] if excluded else value
    exact = not prefixes or rest.startswith("=")
    names = [name.partition(":")[0].strip() for name in rest.lstrip("=").split(",")]
    found = any(interface == name if exact else bool(name) and interface.startswith(name) for name in names)
    return found != excluded


@site_rule(
    "management-interface",
    "warning",
    "the profile's `interface`, or a variable for NCCL, gloo or UCX, names an interface for management or of this host "
    "alone (`lo`, `docker0`, `mgmt0`, …), in a run of several nodes",
    "What goes between nodes goes over it, if it goes at all.",
    do="`interface:` with the name of the fast port, as `ip -br address` shows it on a node.",
)
def management(setting: Setting) -> Iterator[Told]:
    """Interfaces whose names tell what they are for."""
    cluster = setting.cluster
    if cluster is None or not (_spanning(setting) or _receivers(setting)):
        return
    if cluster.interface and _MANAGEMENT.fullmatch(cluster.interface):
        yield Told(
            Fault(("interface",), _is_management(cluster.interface), "the network of the nodes' fast ports"), True
        )
    for name in (*_SOCKETS, "UCX_NET_DEVICES"):
        value = cluster.env.get(name, "")
        if not value.startswith("^"):
            words = (word.lstrip("=").partition(":")[0].strip() for word in value.split(","))
            bad = next((word for word in words if _MANAGEMENT.fullmatch(word)), None)
            if bad:
                yield Told(Fault(("env", name), _is_management(bad), "the network of the nodes' fast ports"), True)


def _is_management(name: str) -> str:
    return f"{name} seems to be no network between the nodes"


@site_rule(
    "peers-hidden",
    "warning",
    "`container.args` of the profile give a container some of the node's GPUs",
    "The plan gives each process its own and lets it see those that it hands KV to: hidden, they cost a quarter of the "
    "throughput, and a process may find none of its own.",
    do="Leave `--gpus device=0` out of `container.args`.",
)
def peers_hidden(setting: Setting) -> Iterator[Told]:
    """Flags of docker, podman and enroot that choose GPUs; the variables themselves are refused in every env."""
    args = setting.cluster.container.args if setting.cluster else ()
    for index, word in enumerate(args):
        found = _DEVICES.fullmatch(word)
        if not found:
            continue
        value = found[3] if found[2] else args[index + 1] if index + 1 < len(args) else ""
        if _FEWER.fullmatch(value):
            at = ("container", "args", index)
            hint = "leave it out: the container is given all GPUs, and each process is told which to use"
            yield Told(Fault(at, f"{found[1]} {value} hides the node's other GPUs", hint), True)
