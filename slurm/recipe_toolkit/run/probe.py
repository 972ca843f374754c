"""What a preflight reads of a node: the standard library alone, nothing changed.

It is run as it is by the agent of a job, and piped into ``python3`` where a node is reached by ssh: so it
imports nothing of this package but what is piped with it (:data:`PARTS`). A request (a JSON object) names
sections, and what each must look at; the answer holds each section's raw findings, or ``{"error": TEXT}``.
What they mean is decided elsewhere.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recipe_toolkit.run.probe_programs import COMMAND_S, HELP_S, read, run

PARTS = (run.__module__, __name__)  # in the order in which they import each other
MARK = "RECIPE-PROBE "  # what a login prints before it is no answer
HASH_BYTES = 1 << 20
# A file system that hangs holds whoever looks at it, for ever. Nothing is timed where all is hashed (deep).
STALL_S = {"images": 90.0, "model": 90.0, "disk": 20.0}
_GPU_ERROR = re.compile("NVRM: Xid|NV_ERR_NO_MEMORY")
# What a program did wrong, or what comes of killing it: the GPU is well. NVIDIA's device plugin for Kubernetes says so.
_OF_PROGRAMS = re.compile(r"Xid \([^)]*\): (13|31|43|45|68|109)\b")
_INFINIBAND = "/sys/class/infiniband"
MAX_HEADER = 100 << 20  # bytes of a safetensors header, as the format's own reader bounds it

_SYSCTLS = ["kernel.apparmor_restrict_unprivileged_userns", "user.max_user_namespaces", "net.ipv4.ip_forward"]
Want = dict[str, Any]


def _names(folder: str | Path) -> list[str]:
    try:
        return sorted(path.name for path in Path(folder).iterdir())
    except OSError:
        return []


def _sha256(path: Path) -> str | None:
    made = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(HASH_BYTES), b""):
                made.update(block)
    except OSError:
        return None
    return made.hexdigest()


def system(_: Want) -> Any:
    """Kernel, release, memory, sysctls and this process's own limits: /proc, /etc/os-release, /etc/dgx-release."""
    uname = os.uname()
    limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper())) for name in ("nofile", "memlock")}
    target = Path("/etc/systemd/system/default.target")
    return {
        "host": uname.nodename,
        "kernel": uname.release,
        "machine": uname.machine,
        "os_release": read("/etc/os-release"),
        "dgx_release": read("/etc/dgx-release"),
        "cmdline": read("/proc/cmdline"),
        "meminfo": read("/proc/meminfo"),
        "swaps": read("/proc/swaps"),
        "target": target.resolve().name if target.is_symlink() else "",
        "sysctl": {name: read("/proc/sys/" + name.replace(".", "/")) for name in _SYSCTLS},
        "limits": {name: [None if n == resource.RLIM_INFINITY else n for n in pair] for name, pair in limits.items()},
    }


def units(_: Want) -> Any:
    """Limits and state of the services: systemctl show."""
    return run("units")


def driver(_: Want) -> Any:
    """The NVIDIA driver: /proc/driver/nvidia/version, modinfo, nvidia-smi, what apt holds."""
    apt = run("apt")
    apt["out"] = "\n".join(line for line in apt["out"].splitlines() if "Package-Blacklist" in line)
    return {
        "loaded": read("/proc/driver/nvidia/version"),
        "modinfo": run("modinfo"),
        "gpus": run("gpus", timeout=60),
        "peermem": Path("/sys/module/nvidia_peermem").is_dir(),
        "holds": run("holds"),
        "apt": apt,
        "dpkg": run("dpkg"),
    }


def fabric(_: Want) -> Any:
    """NVLink's fabric as each GPU reports it: nvidia-smi -q."""
    found = run("smi", timeout=60)
    lines = found["out"].splitlines()
    at = [index for index, line in enumerate(lines) if line.strip() == "Fabric"]
    return {**found, "out": "\n".join(line for index in at for line in lines[index : index + 4])}


def imex(_: Want) -> Any:
    """IMEX: nvidia-imex-ctl -N, its nodes_config.cfg, its channel."""
    return {
        "ctl": run("imex"),
        "config": _sha256(Path("/etc/nvidia-imex/nodes_config.cfg")),
        "channel": Path("/dev/nvidia-caps-imex-channels/channel0").exists(),
    }


def klog(_: Want) -> Any:
    """Errors of the GPUs in the kernel's log: journalctl -k -b."""
    found = run("journal", most=None)  # a firewall fills half a megabyte of it in a day
    lines = found["out"].splitlines()
    bad = [line[:300] for line in lines if _GPU_ERROR.search(line) and not _OF_PROGRAMS.search(line)]
    return {"rc": found["rc"], "err": found["err"], "lines": len(lines), "bad": bad[-10:]}


def power(_: Want) -> Any:
    """Power and clocks of the GPUs: nvidia-smi."""
    return run("power")


def net(_: Want) -> Any:
    """Network interfaces: /sys/class/net, ip address, ip route."""
    interfaces = {}
    for name in _names("/sys/class/net"):
        base = f"/sys/class/net/{name}"
        found: dict[str, Any] = {key: read(f"{base}/{key}") for key in ("operstate", "carrier", "speed", "mtu")}
        found["wireless"] = Path(f"{base}/wireless").is_dir()
        interfaces[name] = found
    return {"interfaces": interfaces, "addresses": run("addresses"), "routes": run("routes")}


def rdma(want: Want) -> Any:
    """RDMA devices: /sys/class/infiniband, /dev/infiniband, ibv_devinfo."""
    root = _INFINIBAND
    named = tuple(want["hcas"]) or ("",)  # NCCL takes names as beginnings; without any, lanes say which
    devices = {}
    for name in _names(root):
        ports = {}
        for port in _names(f"{root}/{name}/ports"):
            base = f"{root}/{name}/ports/{port}"
            found: dict[str, Any] = {
                key: read(f"{base}/{key}") for key in ("state", "phys_state", "link_layer", "rate")
            }
            ports[port] = {**found, "gids": list(_gids(base))}
        netdevs = _names(f"{root}/{name}/device/net")
        devices[name] = {
            "ports": ports,
            "netdevs": netdevs,
            "ibv": run("ibv", name) if name.startswith(named) else None,
        }
    nodes = {str(path): os.access(path, os.R_OK | os.W_OK) for path in sorted(Path("/dev/infiniband").glob("*"))}
    return {"devices": devices, "dev": nodes}


def _gids(base: str) -> Iterator[dict[str, Any]]:
    """The GIDs that are set; reading the type of an empty slot fails with EINVAL."""
    for index in sorted((name for name in _names(f"{base}/gids") if name.isdigit()), key=int):
        gid = read(f"{base}/gids/{index}")
        if gid and gid.replace(":", "").strip("0"):
            kind, ndev = (read(f"{base}/gid_attrs/{key}/{index}") for key in ("types", "ndevs"))
            yield {"index": int(index), "gid": gid, "type": kind, "ndev": ndev}


def docker(_: Want) -> Any:
    """Docker: docker info, /etc/docker/daemon.json, nvidia-ctk cdi list."""
    return {"info": run("docker"), "daemon": read("/etc/docker/daemon.json"), "cdi": run("cdi")}


def images(want: Want) -> Any:
    """Container images: image inspect, or the file's size (and SHA-256, when asked to look deep)."""
    found = {}
    for item in want["images"]:
        if item["file"]:
            path = Path(item["file"])
            there = path.is_file()
            size, digest = path.stat().st_size if there else None, _sha256(path) if there and want["deep"] else None
            found[item["reference"]] = {"file": str(path), "bytes": size, "sha256": digest}
        else:
            found[item["reference"]] = run("image", item["engine"], item["reference"])
    return found


def inside(want: Want) -> Any:
    """Limits and libraries inside the images: docker run --rm (deep only)."""
    wanted = [item for item in want["images"] if not item["file"]]
    return {item["reference"]: run("inside", item["engine"], item["reference"], timeout=120) for item in wanted}


def vllm(want: Want) -> Any:
    """vLLM's own words, in the recipe's image or where the profile has it: vllm --version, vllm serve --help=all."""
    asked = want["vllm"]
    with contextlib.ExitStack() as held:
        if "{rc}" in asked["head"]:  # what enroot runs in place of an image's entrypoint; gone when this ends
            rc = held.enter_context(tempfile.NamedTemporaryFile("w", prefix="recipe-check-"))
            print('exec "$@"', file=rc, flush=True)
            asked = {**asked, "head": [rc.name if word == "{rc}" else word for word in asked["head"]]}
        pool = held.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        version, shown = pool.map(lambda name: _said(asked, name), ("version", "help"))
    shown["out"] = "\n".join(line for line in shown["out"].splitlines() if line.startswith("  -"))
    return {"version": version, "help": shown}


def _said(asked: Want, what: str) -> dict[str, Any]:
    name = f"recipe-check-{os.getpid()}-{what}"
    head = [name if word == "{name}" else word for word in asked["head"]]
    head[0] = shutil.which(head[0], path=str(Path(sys.executable).parent)) or head[0]  # as agents look for programs
    found = run(what, head, timeout=HELP_S, env={**asked["env"], "COLUMNS": "80"})
    if asked["remove"] and found["rc"] is None:  # what it started may run on
        subprocess.run([*asked["remove"], name], stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S)
    return found


def model(want: Want) -> Any:
    """The model's folder: links, shards that its index names, sizes that headers tell, the manifest (deep: hashes)."""
    root = Path(want["model"])
    if not root.is_dir():
        return {"path": str(root), "there": False}
    files: list[Path] = []
    dangling = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in names):
            if path.exists():
                files.append(path)
            else:
                dangling.append(str(path.relative_to(root)))
    return {
        "path": str(root),
        "there": True,
        "files": len(files),
        "dangling": sorted(dangling),
        "missing": sorted(_missing_shards(root, files)),
        "cut": sorted(_cut(root, files)),
        "config": _sha256(root / "config.json"),
        "manifest": _sha256(root / want["manifest"]),
        "deep": _verify(root, root / want["manifest"], files) if want["deep"] else None,
    }


def _missing_shards(root: Path, files: list[Path]) -> set[str]:
    missing = set()
    for index in (path for path in files if path.name.endswith(".index.json")):
        try:
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
            missing |= {str((index.parent / name).relative_to(root)) for name in shards if not _there(index, name)}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            missing.add(f"{index.relative_to(root)} (it cannot be read)")
    return missing


def _there(index: Path, name: str) -> bool:
    path = index.parent / name
    return path.exists() or path.is_symlink()  # a link to nothing is told of as such


def _cut(root: Path, files: list[Path]) -> Iterator[str]:
    """Shards whose size is not what their own header says: eight bytes of length, the header, the tensors."""
    for path in (item for item in files if item.suffix == ".safetensors"):
        name = path.relative_to(root)
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = struct.unpack("<Q", file.read(8))[0]
                header: dict[str, Any] = json.loads(file.read(min(length, MAX_HEADER)))
            ends = [value["data_offsets"][1] for key, value in header.items() if key != "__metadata__"]
            if size != 8 + length + max(ends, default=0):
                yield f"{name} ({size} bytes, but {8 + length + max(ends, default=0)} by its header)"
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
            yield f"{name} (its header cannot be read)"


def _verify(root: Path, manifest: Path, files: list[Path]) -> dict[str, Any]:
    """Every file hashed again: what differs from the manifest, and all hashes' hash for a comparison of nodes."""
    listed = {}
    for line in (read(manifest, -1) or "").splitlines():
        digest, _, name = line.partition(" ")
        if name:
            listed[name.lstrip(" *").removeprefix("./")] = digest
    names = sorted(listed or (str(path.relative_to(root)) for path in files))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # hashlib releases the lock
        found = dict(zip(names, pool.map(lambda name: _sha256(root / name), names), strict=True))
    bad = [name for name in names if found[name] != listed[name]] if listed else []
    whole = hashlib.sha256("".join(f"{found[name]}  {name}\n" for name in names).encode()).hexdigest()
    return {"against": "manifest" if listed else None, "bad": bad, "hashed": len(names), "sha256": whole}


def disk(want: Want) -> Any:
    """Free bytes and inodes of the file systems that hold some folders: statvfs."""
    found: dict[str, Any] = {}
    for path in want["disk"]:
        there = next(item for item in (Path(path), *Path(path).parents) if item.exists())
        try:
            seen = os.statvfs(there)
            found[path] = {"bytes": seen.f_bavail * seen.f_frsize, "inodes": seen.f_favail if seen.f_files else None}
        except OSError as error:
            found[path] = {"error": str(error)}
    return found


def ports(_: Want) -> Any:
    """TCP ports that something listens on: /proc/net/tcp, /proc/net/tcp6."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in (read(f"/proc/net/{name}", -1) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == "0A":
                found.add(int(words[1].rpartition(":")[2], 16))
    return sorted(found)


def slurm(_: Want) -> Any:
    """Slurm and enroot: srun --help, enroot version, /etc/enroot."""
    confs = [*sorted(Path("/etc/enroot/enroot.conf.d").glob("*.conf")), Path("/etc/enroot/enroot.conf")]
    return {"srun": run("srun"), "enroot": run("enroot"), "conf": "\n".join(read(path) or "" for path in confs)}


def forward(_: Want) -> Any:
    """Whether this node hands packets on, as a ring without a switch needs: iptables -S DOCKER-USER."""
    return run("firewall")


def pings(want: Want) -> Any:
    """Pings that may not be split, over the lanes: ping -M do."""
    asked = want["pings"]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        done = pool.map(lambda p: run("ping", str(p["bytes"]), p["interface"], p["peer"], timeout=10), asked)
        return [{**ping, "rc": found["rc"], "err": found["err"]} for ping, found in zip(asked, done, strict=True)]


_READERS: tuple[Callable[[Want], Any], ...] = (
    *(system, units, driver, fabric, imex, klog, power, net, rdma, docker),
    *(images, inside, vllm, model, disk, ports, slurm, forward, pings),
)
SECTIONS = {reader.__name__: reader for reader in _READERS}


def answer(request: Want) -> dict[str, Any]:
    """The sections that a request names, and the node's clock before and after, in seconds."""
    began = time.time()
    found = {}
    for name in request["sections"]:
        found[name] = _section(name, request)
    return {"host": os.uname().nodename, "began": began, "ended": time.time(), "sections": found}


def _section(name: str, request: Want) -> Any:
    """One section; or why not: it failed, or a file system held it. One section less, never a probe less."""
    told: list[Any] = []

    def look() -> None:
        try:
            told.append(SECTIONS[name](request))
        except Exception as error:
            told.append({"error": f"{type(error).__name__}: {error}"})

    limit = None if request.get("deep") else STALL_S.get(name)
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(limit)
    return told[0] if told else {"error": f"not read in {limit:g} s: does a file system hang?"}


def serve() -> None:
    """Answer requests, a line each, until stdin ends."""
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin.buffer:
            if line.strip():
                sys.stdout.write("\n" + MARK + json.dumps(answer(json.loads(line))) + "\n")
                sys.stdout.flush()
