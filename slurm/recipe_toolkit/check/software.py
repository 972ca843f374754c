"""Checks of limits, containers, images, weights, disks, ports and Slurm's plugins."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.check.facts import Node
from recipe_toolkit.check.hardware import differing, with_gpus
from recipe_toolkit.check.model import Check, Finding, Unknown
from recipe_toolkit.plan.expect import Expect

NOFILE = 65_536
_INODES = 1000
_FIRST_PORT, _LAST_PORT = 15_000, 32_767  # from which agents reserve
_SERVED_BY = {"docker": ("docker", "containerd"), "slurm": ("slurmd",)}


def _limit(expect: Expect, node: Node, name: str, least: float) -> Iterator[Finding]:
    """Limits of the services that start engines, and where those are our children, of this process itself."""
    shown = "unlimited" if least == float("inf") else f"{least:g}"
    units = [*_SERVED_BY.get(expect.runtime, ()), *_SERVED_BY.get(expect.scheduler, ())]
    known = node.units or {}
    if expect.runtime == "docker" and not any(unit in known for unit in units):
        # The daemon's limits are all that is left of it to see.
        default = ((node.daemon or {}).get("default-ulimits") or {}).get(name)
        if not default:
            raise Unknown(node.why.get("units", "systemctl knows no docker or containerd"))
        soft = default.get("Soft", 0)
        if soft != -1 and soft < least:
            yield Finding((node.name,), f"daemon.json gives containers {name} {soft}", shown)
        return
    for unit in (item for item in units if item in known):
        text = known[unit].get(f"Limit{name.upper()}", "infinity")
        if text.isdigit() and int(text) < least:
            yield Finding(
                (node.name,), f"{unit} has Limit{name.upper()}={text}", "infinity" if shown[0] == "u" else shown
            )
    if expect.runtime != "docker":
        system = node.know("system")
        value = system.limit(name, hard=expect.runtime == "podman")
        if value < least:
            yield Finding((node.name,), f"{name} is {value:g} for this user", shown)


def _memlock(expect: Expect, node: Node) -> Iterator[Finding]:
    return _limit(expect, node, "memlock", float("inf"))


def _nofile(expect: Expect, node: Node) -> Iterator[Finding]:
    return _limit(expect, node, "nofile", NOFILE)


def _store(_: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    def store(node: Node) -> str:
        info = node.know("docker")
        containerd = "io.containerd.snapshotter" in json.dumps(info.get("DriverStatus"))
        return f"{info.get('Driver')}{' of containerd' if containerd else ''}"

    known = [node for node in nodes if node.docker is not None]
    for node, found, wanted in differing(known, store):
        yield Finding((node.name,), f"keeps images in {found}", f"{wanted}, as most nodes")
    yield from (_unread(node, "docker") for node in nodes if node.docker is None)


def _unread(node: Node, name: str) -> Finding:
    return Finding((node.name,), node.why.get(name, f"{name} was not read"), status="unknown")


def _docker_nvidia(expect: Expect, node: Node) -> Iterator[Finding]:
    with_gpus(expect, node)
    if node.cdi is not None and node.cdi.ok and "nvidia.com/gpu" in node.cdi.out:
        return
    runtimes = (node.docker or node.daemon or {}).get("Runtimes" if node.docker else "runtimes") or {}
    if node.docker is None and node.daemon is None:
        raise Unknown(node.why.get("docker", "docker was not asked"))
    if "nvidia" not in runtimes:
        yield Finding(
            (node.name,), f"runtimes: {', '.join(sorted(runtimes)) or 'none'}; no CDI device", "nvidia, or CDI"
        )


def _image_digests(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    yield from (_unread(node, "images") for node in nodes if node.images is None)
    known = [node for node in nodes if node.images is not None]
    for image in expect.images:
        reference = image["reference"]
        have = [node for node in known if _has(node, reference)]
        for node in known:
            if node not in have:
                yield Finding((node.name,), f"{reference} is not there", "pulled, or loaded")
        yield from _other_bytes(reference, have)


def _has(node: Node, reference: str) -> bool:
    found = (node.images or {}).get(reference)
    return found is not None and ("file" not in found or found["bytes"] is not None)


def _other_bytes(reference: str, nodes: Sequence[Node]) -> Iterator[Finding]:
    """By digest where all have one, else by layers: an id is the config's or the manifest's, as the store has it."""
    seen: dict[str, Any] = {node.name: (node.images or {})[reference] for node in nodes}
    pinned = reference.partition("@")[2]
    if all("file" in item for item in seen.values()):
        identity = {name: f"{item['bytes']} bytes, SHA-256 {item['sha256']}" for name, item in seen.items()}
    elif all(item["digests"] for item in seen.values()):
        digests = {name: {text.partition("@")[2] for text in item["digests"]} for name, item in seen.items()}
        identity = {name: pinned if pinned in found else " ".join(sorted(found)) for name, found in digests.items()}
    else:
        layers = {name: json.dumps(item["layers"]).encode() for name, item in seen.items()}
        identity = {name: f"layers {hashlib.sha256(text).hexdigest()[:12]}" for name, text in layers.items()}
        pinned = ""  # loaded from a file, it has no digest to compare
    for node, found, most in differing(nodes, lambda item: identity[item.name], pinned or None):
        yield Finding((node.name,), f"{reference} is {found}", f"{most}{'' if pinned else ', as most nodes'}")


def _rdma_lib(_: Expect, node: Node) -> Iterator[Finding]:
    for reference, done in node.know("inside").items():
        lines = done.out.split()
        if len(lines) < 3:
            yield Finding((node.name,), f"{reference} could not be run: {done.why}", status="unknown")
        elif lines[-1] == "0":
            yield Finding((node.name,), f"no libibverbs in {reference}", "libibverbs")


def _weights(_: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    yield from (_unread(node, "model") for node in nodes if node.model is None)
    models = {node.name: node.model for node in nodes if node.model is not None}
    for name, model in models.items():
        yield from (Finding((name,), found, wanted) for found, wanted in _weights_of(model))
    whole = [node for node in nodes if node.name in models and not list(_weights_of(models[node.name]))]
    for key, file in (("config", "config.json"), ("manifest", "MANIFEST.sha256")):
        same = {node.name: models[node.name][key] for node in whole}
        for node, found, wanted in differing(whole, lambda item, same=same: same[item.name]):  # type: ignore[misc]
            said = f"{file} has the SHA-256 {found[:12]}" if found else f"no {file}"
            yield Finding((node.name,), said, f"{str(wanted)[:12]}, as most nodes")
    hashes = {node.name: (models[node.name]["deep"] or {}).get("sha256", "") for node in whole}
    for node, found, wanted in differing(whole, lambda item: hashes[item.name]):
        yield Finding((node.name,), f"the files hash to {found[:12]}", f"{wanted[:12]}, as most nodes")


def _weights_of(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    path = model["path"]
    if not model["there"]:
        yield f"there is no {path}", "the model's folder"
        return
    for key, what in (("dangling", "links to nothing"), ("missing", "shards are missing"), ("cut", "shards are cut")):
        if model[key]:
            more = f" and {len(model[key]) - 3} more" if len(model[key]) > 3 else ""
            yield f"{path}: {what}: {', '.join(model[key][:3])}{more}", "every file whole"
    deep = model["deep"]
    if deep and deep["bad"] and not model["dangling"] and not model["missing"]:
        yield f"{path}: other bytes than the manifest's: {', '.join(deep['bad'][:3])}", "as MANIFEST.sha256 says"


def _disk(expect: Expect, node: Node) -> Iterator[Finding]:
    for path, least in expect.disk.items():
        seen = node.know("disk").get(path, {})
        if "bytes" not in seen:
            yield Finding((node.name,), f"{path}: {seen.get('error', 'was not read')}", status="unknown")
        elif seen["bytes"] < least:
            yield Finding((node.name,), f"{_gib(seen['bytes'])} free for {path}", _gib(least))
        elif seen["inodes"] is not None and seen["inodes"] < _INODES:
            yield Finding((node.name,), f"{seen['inodes']} inodes free for {path}", str(_INODES))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _ports(expect: Expect, node: Node) -> Iterator[Finding]:
    taken = node.know("ports")
    for port in expect.ports:
        if port in taken:
            yield Finding((node.name,), f"something listens on {port}", f"{port} free")
    free = sum(port not in taken for port in range(_FIRST_PORT, _LAST_PORT + 1))
    if free < expect.port_count:
        yield Finding((node.name,), f"{free} ports free of {_FIRST_PORT}-{_LAST_PORT}", str(expect.port_count))


def _pyxis(_: Expect, node: Node) -> Iterator[Finding]:
    told = node.know("srun")
    if told.rc is None:
        raise Unknown(f"srun: {told.why}")
    if "--container-image" not in told.out + told.err:
        yield Finding((node.name,), "srun knows no --container-image", "pyxis")


def _enroot_ns(_: Expect, node: Node) -> Iterator[Finding]:
    found = node.know("system").sysctl
    if node.enroot is None or not node.enroot.ok:
        yield Finding((node.name,), f"enroot: {node.enroot.why if node.enroot else 'was not asked'}", "enroot")
    if found.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        yield Finding(
            (node.name,), "kernel.apparmor_restrict_unprivileged_userns is 1", "0, or enroot's AppArmor profile"
        )
    if found.get("user.max_user_namespaces") == "0":
        yield Finding((node.name,), "user.max_user_namespaces is 0", "more than 0")


def _enroot_rdma(expect: Expect, node: Node) -> Iterator[Finding]:
    conf = node.know("enroot_conf")
    restricted = re.findall(r"^\s*ENROOT_RESTRICT_DEV\s+(\w+)", conf, re.MULTILINE)
    if (
        restricted
        and restricted[-1].lower() in ("y", "yes", "true", "1")
        and "MELLANOX_VISIBLE_DEVICES" not in expect.env
    ):
        yield Finding((node.name,), "ENROOT_RESTRICT_DEV hides RDMA devices", "MELLANOX_VISIBLE_DEVICES: all in env")


def _on_gpus(expect: Expect) -> bool:
    return expect.device == "gpu" or (expect.device is None and bool(expect.rdma))


def _runtime(*names: str) -> Any:
    return lambda expect: expect.runtime in names and expect.device != "cpu"


CHECKS = (
    Check(
        "LIMIT.MEMLOCK", "node", "error",
        "memlock is unlimited where engines run",
        "ENOMEM in ibv_reg_mr",
        "systemctl show (docker, containerd, slurmd), ulimit -l, daemon.json",
        "a service: LimitMEMLOCK=infinity in a drop-in (limits.d does not reach it), daemon-reload, restart; "
        "a login (ssh, podman): memlock unlimited in /etc/security/limits.d",
        ("system", "units", "docker"), lambda expect: expect.rdma, node=_memlock, bind=True,
        source="https://github.com/NVIDIA/nccl-tests/issues/206",
    ),
    Check(
        "LIMIT.NOFILE", "node", "error",
        f"{NOFILE} files may be open where engines run",
        "Errno 24 while shards are loaded",
        "systemctl show (docker, containerd, slurmd), ulimit -n, daemon.json",
        "a service: LimitNOFILE=1048576 in a drop-in, default-ulimits in daemon.json, daemon-reload, restart; "
        "a login (ssh, podman): nofile 1048576 in /etc/security/limits.d",
        ("system", "units", "docker"), _on_gpus, node=_nofile, bind=True,
        source="https://github.com/moby/moby/issues/51485",
    ),
    Check(
        "DOCKER.STORE", "fleet", "warning",
        "docker keeps images the same way on all nodes",
        "image ids that differ for the same image",
        "docker info (Driver, DriverStatus)",
        "set features.containerd-snapshotter in daemon.json, the same on all nodes",
        ("docker",), _runtime("docker"), fleet=_store, bind=True,
        source="https://github.com/spark-arena/sparkrun/issues/152",
    ),
    Check(
        "DOCKER.NVIDIA", "node", "error",
        "docker can give GPUs to containers: the runtime nvidia, or CDI",
        "no GPU in the container",
        "docker info (Runtimes), /etc/docker/daemon.json, nvidia-ctk cdi list",
        "nvidia-ctk runtime configure --runtime=docker, then restart docker",
        ("driver", "docker"), _runtime("docker"), node=_docker_nvidia, bind=True,
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    ),
    Check(
        "IMAGE.DIGEST", "fleet", "error",
        "every node has the recipe's image, with the same bytes",
        "one tag, two builds: ranks that disagree",
        "image inspect (RepoDigests, layers), or the file's size (deep: SHA-256)",
        "pull by @sha256: on every node, or copy the image from one to the others",
        ("images",), lambda expect: bool(expect.images), fleet=_image_digests,
        source="https://github.com/eugr/spark-vllm-docker/issues/327",
    ),
    Check(
        "RDMA.LIB", "node", "error",
        "the image holds libibverbs",
        "NCCL takes TCP and says nothing",
        "docker run --rm IMAGE ldconfig -p (deep)",
        "install libibverbs1 and ibverbs-providers in the image",
        ("images", "inside"), lambda expect: expect.rdma and any(item["engine"] for item in expect.images),
        node=_rdma_lib, deep=True,
        source="https://github.com/sgl-project/sglang/pull/1427",
    ),
    Check(
        "WEIGHTS.MANIFEST", "fleet", "error",
        "the model is the same on all nodes and whole: no dangling link, each shard there, sizes as headers say",
        "a rank that answers garbage, or an engine that ends while it loads",
        "the model's folder, config.json, MANIFEST.sha256 (deep: every file hashed again)",
        "copy the model again from a node that has it: rsync --checksum",
        ("model",), lambda expect: expect.model is not None, fleet=_weights, bind=True,
    ),
    Check(
        "DISK.FREE", "node", "error",
        "there is room for runs (1 GiB), and what check.disk of the profile asks for",
        "half a model, results that cannot be written",
        "statvfs (bytes, inodes)",
        "make room; old images: docker system df",
        ("disk",), lambda expect: bool(expect.disk), node=_disk, bind=True,
    ),
    Check(
        "PORT.FREE", "node", "error",
        "nothing listens on check.ports of the profile, and enough ports are free for the run",
        "Errno 98, or a stale server's answer taken for ours",
        "/proc/net/tcp, /proc/net/tcp6",
        "`ss -ltnp` names the process: end it",
        ("ports",), lambda expect: bool(expect.ports or expect.port_count), node=_ports, bind=True,
    ),
    Check(
        "SLURM.PYXIS", "node", "error",
        "srun knows pyxis' --container-image",
        "the job runs on the host, silently",
        "srun --help",
        "build pyxis for this Slurm, and name it in plugstack.conf on login and compute nodes",
        ("slurm",), _runtime("pyxis"), node=_pyxis, bind=True,
        source="https://github.com/NVIDIA/pyxis/issues/95",
    ),
    Check(
        "ENROOT.NS", "node", "error",
        "enroot is there, and users may make user namespaces",
        "enroot start fails on Ubuntu 24.04",
        "enroot version, sysctl",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or enroot's AppArmor profile",
        ("system", "slurm"), _runtime("enroot", "pyxis"), node=_enroot_ns, bind=True,
        source="https://github.com/NVIDIA/enroot/blob/master/doc/requirements.md",
    ),
    Check(
        "ENROOT.RDMA", "node", "error",
        "enroot does not hide the RDMA devices",
        "NCCL takes TCP and says nothing",
        "/etc/enroot",
        "MELLANOX_VISIBLE_DEVICES: all in the profile's env, or ENROOT_RESTRICT_DEV no",
        ("slurm",), lambda expect: expect.rdma and expect.runtime in ("enroot", "pyxis"), node=_enroot_rdma, bind=True,
        source="https://github.com/NVIDIA/pyxis/issues/117",
    ),
)  # fmt: skip
