"""What is known of a node, after parsing. A field that is None could not be read, or was not asked for."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.check.model import Unknown

Limit = int | None  # None: without limit


@dataclass(frozen=True)
class Command:
    """A command's end. ``rc`` None: it is not there, or did not end; ``err`` says which."""

    rc: int | None
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.rc == 0

    @property
    def why(self) -> str:
        """Why it is of no use, on one line."""
        return " ".join(self.err.split())[:200] or f"it exited with {self.rc}"


@dataclass(frozen=True)
class Gpu:
    """Memory in MiB; None where the GPU has none of its own (GB10)."""

    index: str
    name: str
    driver: str
    memory: int | None = None
    free: int | None = None


@dataclass(frozen=True)
class Interface:
    """A network interface. ``speed``: Mb/s, None where it says none."""

    name: str
    up: bool
    mtu: int
    speed: int | None = None
    wireless: bool = False
    addresses: tuple[ipaddress.IPv4Interface, ...] = ()


@dataclass(frozen=True)
class Gid:
    """A GID that is set. ``address``: the IPv4 address that it stands for."""

    index: int
    type: str
    ndev: str
    address: str | None


@dataclass(frozen=True)
class Hca:
    """An RDMA device, by its first port. ``active_mtu``: bytes, None where it was not told."""

    name: str
    netdevs: tuple[str, ...]
    state: str
    link_layer: str
    gids: tuple[Gid, ...] = ()
    active_mtu: int | None = None

    @property
    def active(self) -> bool:
        """Whether the port carries traffic."""
        return "ACTIVE" in self.state

    @property
    def ethernet(self) -> bool:
        """Whether it is RoCE."""
        return self.link_layer == "Ethernet"


@dataclass(frozen=True)
class System:
    """Kernel and memory (bytes by /proc/meminfo's names). ``limits``: soft and hard of the probe itself."""

    kernel: str
    machine: str
    release: str
    dgx: bool
    cmdline: str
    memory: Mapping[str, int]
    swap: bool
    target: str
    sysctl: Mapping[str, str | None]
    limits: Mapping[str, tuple[Limit, Limit]]

    def limit(self, name: str, hard: bool = False) -> float:
        """The soft (or hard) limit; infinity where there is none."""
        value = self.limits[name][hard]
        return float("inf") if value is None else value


@dataclass
class Node:
    """A node that has answered. ``clock``: bounds of what its clock is ahead of the asker's, in seconds.

    ``taken``: ids of the GPUs that a run takes of it; empty where all of it counts.
    """

    name: str
    host: str = ""
    clock: tuple[float, float] | None = None
    taken: frozenset[str] = frozenset()
    system: System | None = None
    units: Mapping[str, Mapping[str, str]] | None = None
    driver_loaded: str | None = None
    driver_open: bool | None = None
    driver_installed: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    peermem: bool | None = None
    held: bool | None = None
    driver_packages: bool | None = None
    fabric: tuple[tuple[str, str], ...] | None = None
    imex: Mapping[str, Any] | None = None
    klog: tuple[str, ...] | None = None
    power: tuple[tuple[str, ...], ...] | None = None
    interfaces: Mapping[str, Interface] | None = None
    routed: tuple[str, ...] | None = None
    hcas: Mapping[str, Hca] | None = None
    dev: Mapping[str, bool] | None = None
    docker: Mapping[str, Any] | None = None
    daemon: Mapping[str, Any] | None = None
    cdi: Command | None = None
    images: Mapping[str, Any] | None = None
    inside: Mapping[str, Command] | None = None
    vllm: Mapping[str, Command] | None = None
    model: Mapping[str, Any] | None = None
    disk: Mapping[str, Mapping[str, Any]] | None = None
    ports: frozenset[int] | None = None
    srun: Command | None = None
    enroot: Command | None = None
    enroot_conf: str | None = None
    firewall: Command | None = None
    pings: tuple[Mapping[str, Any], ...] | None = None
    why: dict[str, str] = field(default_factory=dict)  # field to why it is None

    def know(self, name: str) -> Any:
        """The field. Raises Unknown where it is None."""
        value = getattr(self, name)
        if value is None:
            raise Unknown(self.why.get(name, f"{name} was not read"), self.name)
        return value

    @property
    def gpu_kind(self) -> str:
        """The name of its first GPU; empty where there is none, or it was not read."""
        return self.gpus[0].name if self.gpus else ""
