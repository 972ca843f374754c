"""A probe's raw answer to a :class:`Node`."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recipe_toolkit.check.facts import Command, Gid, Gpu, Hca, Interface, Node, System

Raw = Mapping[str, Any]
_PACKAGES = re.compile(r"^(nvidia-(?:driver|headless|open|dkms)\S*) installed", re.MULTILINE)
# Of the driver, and not of what only works beside it: the container toolkit is held alone too.
_OF_DRIVER = re.compile(
    r"(?:lib)?nvidia-(?!container|docker|fabricmanager|imex|modprobe|settings)|linux-modules-nvidia-"
)
_BLACKLISTED = re.compile(r"Package-Blacklist::\S*\s+\"(.*)\";")
_ABSENT = ("no such image", "no such object", "image not known", "failed to find image")  # docker's words, podman's
_MAPPED = "0000:0000:0000:0000:0000:ffff:"


def parse(name: str, answers: Sequence[Raw], asked: tuple[float, float] | None = None) -> Node:
    """The node called ``name``, by its answers. ``asked``: the asker's clock before and after the first of them."""
    first = answers[0]
    node = Node(name, first["host"])
    if asked is not None:
        # Its first reading came after we asked, its last before we had the answer.
        node.clock = (first["ended"] - asked[1], first["began"] - asked[0])
    for answer in answers:
        for section, raw in answer["sections"].items():
            try:
                if isinstance(raw, dict) and set(raw) == {"error"}:
                    raise ValueError(raw["error"])
                _SECTIONS[section](node, raw)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                for field in _FIELDS[section]:
                    node.why.setdefault(field, f"{section}: {error}")
    return node


def command(raw: Raw) -> Command:
    """A command as the probe tells it."""
    return Command(raw["rc"], raw["out"], raw["err"])


def _system(node: Node, raw: Raw) -> None:
    release = dict(line.partition("=")[::2] for line in (raw["os_release"] or "").splitlines())
    dgx = dict(line.partition("=")[::2] for line in (raw["dgx_release"] or "").splitlines())
    shown = release.get("PRETTY_NAME", "").strip('"')
    if raw["dgx_release"] is not None:
        shown += f", DGX OS {dgx.get('DGX_SWBUILD_VERSION', '').strip(chr(34))}".rstrip()
    memory = {}
    for line in (raw["meminfo"] or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            memory[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    node.system = System(
        kernel=raw["kernel"],
        machine=raw["machine"],
        release=shown,
        dgx=raw["dgx_release"] is not None,
        cmdline=raw["cmdline"] or "",
        memory=memory,
        swap=len((raw["swaps"] or "").splitlines()) > 1,
        target=raw["target"],
        sysctl=raw["sysctl"],
        limits={name: tuple(pair) for name, pair in raw["limits"].items()},
    )


def _units(node: Node, raw: Raw) -> None:
    done = command(raw)
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in done.out.split("\n\n")]
    units = {block["Id"].removesuffix(".service"): block for block in blocks if block.get("LoadState") == "loaded"}
    if not done.ok and not units:
        raise ValueError(done.why)
    node.units = units


def _driver(node: Node, raw: Raw) -> None:
    node.peermem = raw["peermem"]
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", raw["loaded"] or "")
    node.driver_loaded = version[1] if version else None
    node.driver_open = "Open Kernel Module" in raw["loaded"] if version else None
    node.why["driver_loaded"] = "/proc/driver/nvidia/version cannot be read: is the kernel module loaded?"
    installed, gpus = command(raw["modinfo"]), command(raw["gpus"])
    node.driver_installed = installed.out.strip() or None if installed.ok else None
    node.why["driver_installed"] = f"modinfo nvidia: {installed.why}"
    holds, apt, packages = (command(raw[name]) for name in ("holds", "apt", "dpkg"))
    installed_packages = _PACKAGES.findall(packages.out)
    if holds.ok:
        node.held = any(map(_OF_DRIVER.match, holds.out.split())) or _kept_off(apt.out, installed_packages)
    node.why["held"] = f"apt-mark: {holds.why}"
    node.driver_packages = bool(installed_packages)
    node.why["gpus"] = f"nvidia-smi: {gpus.out.strip()[:200] or gpus.why if gpus.rc else gpus.why}"
    if gpus.ok:
        node.why["gpus"] = f"nvidia-smi prints no list of GPUs: {' '.join(gpus.out.split())[:200]}"
        node.gpus = tuple(map(_gpu, filter(str.strip, gpus.out.splitlines())))


def _kept_off(text: str, names: Sequence[str]) -> bool:
    """Whether unattended-upgrades keeps off one of these packages: its blacklist holds beginnings, as patterns."""
    for pattern in _BLACKLISTED.findall(text):
        try:
            if any(re.match(pattern, name) for name in names):
                return True
        except re.error:
            continue
    return False


def _gpu(line: str) -> Gpu:
    index, name, driver, memory, free = (word.strip() for word in line.split(","))
    total = int(memory) if memory.isdigit() else None
    return Gpu(index, name, driver, total, int(free) if free.isdigit() else None)


def _fabric(node: Node, raw: Raw) -> None:
    done = command(raw)
    states = re.findall(r"State\s*:\s*(.+)", done.out)
    status = re.findall(r"Status\s*:\s*(.+)", done.out)
    if not done.ok or not states:
        raise ValueError(f"nvidia-smi -q tells no fabric: {done.why}" if not done.ok else "nvidia-smi -q tells none")
    node.fabric = tuple((a.strip(), b.strip()) for a, b in zip(states, [*status, *["-"] * len(states)], strict=False))


def _imex(node: Node, raw: Raw) -> None:
    told = command(raw["ctl"])
    if told.ok and not re.search(r"^Node #\d", told.out, re.MULTILINE):
        raise ValueError(f"nvidia-imex-ctl -N prints no nodes: {' '.join(told.out.split())[:200]}")
    node.imex = {"ctl": told, "config": raw["config"], "channel": raw["channel"]}


def _klog(node: Node, raw: Raw) -> None:
    if raw["rc"] is None or not raw["lines"]:
        raise ValueError(f"the kernel's log cannot be read: {raw['err'] or 'journalctl shows nothing to this user'}")
    node.klog = tuple(raw["bad"])


def _power(node: Node, raw: Raw) -> None:
    done = command(raw)
    if not done.ok:
        raise ValueError(done.why)
    node.power = tuple(tuple(word.strip() for word in line.split(",")) for line in done.out.splitlines() if line)


def _net(node: Node, raw: Raw) -> None:
    asked, routes = command(raw["addresses"]), command(raw["routes"])
    if not asked.ok or not routes.ok:
        raise ValueError(f"ip: {asked.why if not asked.ok else routes.why}")
    held: dict[str, list[ipaddress.IPv4Interface]] = {}
    for item in json.loads(asked.out or "[]"):
        held[item.get("ifname", "")] = [
            ipaddress.IPv4Interface(f"{address['local']}/{address['prefixlen']}")
            for address in item.get("addr_info", ())
            if address.get("family") == "inet"
        ]
    node.interfaces = {
        name: Interface(
            name=name,
            up=link["carrier"] == "1" and link["operstate"] in ("up", "unknown"),
            mtu=int(link["mtu"] or 0),
            speed=int(link["speed"]) if (link["speed"] or "").isdigit() else None,
            wireless=link["wireless"],
            addresses=tuple(held.get(name, ())),
        )
        for name, link in raw["interfaces"].items()
    }
    node.routed = tuple(item["dev"] for item in json.loads(routes.out or "[]") if "dev" in item)


def _rdma(node: Node, raw: Raw) -> None:
    node.dev = raw["dev"]
    node.hcas = {name: _hca(name, item) for name, item in raw["devices"].items() if item["ports"]}


def _hca(name: str, raw: Raw) -> Hca:
    port = next(iter(raw["ports"].values()))
    told = re.search(r"active_mtu:\s*(\d+)", command(raw["ibv"]).out) if raw["ibv"] else None
    return Hca(
        name=name,
        netdevs=tuple(raw["netdevs"]),
        state=port["state"] or "",
        link_layer=port["link_layer"] or "",
        gids=tuple(
            Gid(item["index"], item["type"] or "", item["ndev"] or "", _address(item["gid"])) for item in port["gids"]
        ),
        active_mtu=int(told[1]) if told else None,
    )


def _address(gid: str) -> str | None:
    """``0000:…:ffff:0a5b:6401`` is 10.91.100.1; None for what stands for no IPv4 address."""
    if not gid.startswith(_MAPPED):
        return None
    return str(ipaddress.IPv4Address(int(gid[len(_MAPPED) :].replace(":", ""), 16)))


def _docker(node: Node, raw: Raw) -> None:
    info = command(raw["info"])
    node.cdi = command(raw["cdi"])
    node.why["docker"] = f"docker info: {info.why}"
    found = json.loads(info.out) if info.ok and info.out.strip() else None
    if isinstance(found, dict) and found.get(
        "Driver"
    ):  # without a daemon docker 28 prints empty fields, and ends with 0
        node.docker = found
    node.why["daemon"] = "/etc/docker/daemon.json cannot be read"
    if raw["daemon"] is not None:
        try:
            daemon = json.loads(raw["daemon"] or "{}")
            if not isinstance(daemon, dict):
                raise ValueError("it is no object")
            node.daemon = daemon
        except ValueError as error:
            node.why["daemon"] = f"/etc/docker/daemon.json is no JSON: {error}"


def _images(node: Node, raw: Raw) -> None:
    found: dict[str, Any] = {}
    for reference, item in raw.items():
        if "file" in item:
            found[reference] = item
            continue
        done = command(item)
        absent = done.rc is not None and any(said in done.err.lower() for said in _ABSENT)
        if not done.ok and not absent:
            raise ValueError(f"image inspect {reference}: {done.why}")
        found[reference] = json.loads(done.out) if done.ok else None
        if done.ok and not (isinstance(found[reference], dict) and {"digests", "layers"} <= set(found[reference])):
            raise ValueError(f"image inspect {reference} prints {done.out.strip()[:200]}")
    node.images = found


def _inside(node: Node, raw: Raw) -> None:
    node.inside = {reference: command(item) for reference, item in raw.items()}


def _vllm(node: Node, raw: Raw) -> None:
    node.vllm = {name: command(item) for name, item in raw.items()}


def _model(node: Node, raw: Raw) -> None:
    node.model = raw


def _disk(node: Node, raw: Raw) -> None:
    node.disk = raw


def _ports(node: Node, raw: Any) -> None:
    node.ports = frozenset(raw)


def _slurm(node: Node, raw: Raw) -> None:
    node.srun, node.enroot, node.enroot_conf = command(raw["srun"]), command(raw["enroot"]), raw["conf"]


def _forward(node: Node, raw: Raw) -> None:
    node.firewall = command(raw)


def _pings(node: Node, raw: Any) -> None:
    node.pings = tuple(raw)


_SECTIONS: dict[str, Callable[[Node, Any], None]] = {
    "system": _system,
    "units": _units,
    "driver": _driver,
    "fabric": _fabric,
    "imex": _imex,
    "klog": _klog,
    "power": _power,
    "net": _net,
    "rdma": _rdma,
    "docker": _docker,
    "images": _images,
    "inside": _inside,
    "vllm": _vllm,
    "model": _model,
    "disk": _disk,
    "ports": _ports,
    "slurm": _slurm,
    "forward": _forward,
    "pings": _pings,
}
_FIELDS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in _SECTIONS},
    "driver": ("driver_loaded", "driver_open", "driver_installed", "gpus", "peermem", "held", "driver_packages"),
    "net": ("interfaces", "routed"),
    "rdma": ("hcas", "dev"),
    "docker": ("docker", "daemon", "cdi"),
    "slurm": ("srun", "enroot", "enroot_conf"),
    "forward": ("firewall",),
}
