"""How modules, RDMA devices, limits and kernel settings are now, whatever files say. Reads; changes nothing.

``main`` is called with a JSON document, by the role, after this text; it prints one.
"""

from __future__ import annotations

import grp
import json
import shutil
import subprocess
from pathlib import Path

UNLIMITED = -1


def run(*argv: str) -> str:
    """What a command prints; nothing where it is not here or fails."""
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def modules(wanted: list) -> list:
    """The modules that are neither loaded nor built in."""
    return [name for name in wanted if not Path("/sys/module", name.replace("-", "_")).is_dir()]


def devices(folder: Path, mode: str, group: str) -> list:
    """What is wrong with the devices: missing, or not open to those who are to use them."""
    found = []
    numbers = sorted(folder.glob("uverbs*"))
    if not numbers:
        found.append(f"no {folder}/uverbs*")
    for path in [*numbers, folder / "rdma_cm"]:
        if not path.exists():
            found.append(f"no {path}")
            continue
        stat = path.stat()
        if stat.st_mode & 0o777 != int(mode, 8):
            found.append(f"{path} has mode {stat.st_mode & 0o777:04o}, not {mode}")
        elif stat.st_gid != grp.getgrnam(group).gr_gid:
            found.append(f"{path} is not of the group {group}")
    return found


def settings(wanted: dict) -> list:
    """Kernel settings that differ."""
    found = []
    for key, value in wanted.items():
        path = Path("/proc/sys", *key.split("."))
        now = path.read_text().split() if path.exists() else ["not there"]
        if now != str(value).split():
            found.append(f"{key} is {' '.join(now)}, not {value}")
    return found


def limits(text: str) -> dict:
    """Soft limits in ``/proc/PID/limits``: name -> number, -1 where there is none."""
    found = {}
    for line in text.splitlines():
        for title, name in (("Max locked memory", "memlock"), ("Max open files", "nofile")):
            if line.startswith(title):
                soft = line[len(title) :].split()[0]
                found[name] = UNLIMITED if soft == "unlimited" else int(soft)
    return found


def services(names: list, memlock: str, nofile: int) -> dict:
    """Service -> how what runs differs from what is wanted; those that do not run are as their files say."""
    wanted = {"memlock": UNLIMITED if memlock == "unlimited" else int(memlock) * 1024, "nofile": nofile}
    found = {}
    for name in names:
        pid = run("systemctl", "show", "--property=MainPID", "--value", name).strip()
        try:
            now = limits(Path("/proc", pid, "limits").read_text()) if pid not in ("", "0") else wanted
        except OSError:
            continue
        differ = [
            f"{name} runs with {key} {'unlimited' if now[key] == UNLIMITED else now[key]}, not "
            f"{'unlimited' if value == UNLIMITED else value}"
            for key, value in wanted.items()
            if now[key] != value
        ]
        if differ:
            found[name] = differ
    return found


def refused(wanted: list) -> list:
    """Modules that this node must not have."""
    if not {"nvidia_peermem", "nvidia-peermem"} & set(wanted):
        return []
    if "GB10" not in run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"):
        return []
    return ["nvidia_peermem is in rdma_devices_modules, and a GB10 has no GPUDirect RDMA: take it out"]


def main(text: str) -> None:
    """Print what is absent, wrong or different: modules, devices, sysctl, all as ``drift``; services, containers."""
    ask = json.loads(text)
    absent = modules(ask["modules"])
    wrong = devices(Path("/dev/infiniband"), ask["mode"], ask["group"]) if ask["modules"] else []  # none: no RDMA here
    differ = settings(ask["sysctl"])
    names = run("docker", "ps", "--format", "{{.Names}}").split()
    told = {
        "modules": absent,
        "devices": wrong,
        "sysctl": differ,
        "drift": [f"module {name} is not loaded" for name in absent] + wrong + differ,
        "services": services(ask["services"], ask["memlock"], ask["nofile"]),
        "containers": [f"container {name} runs" for name in names],
        "refused": refused(ask["modules"]),
    }
    print(json.dumps(told))
