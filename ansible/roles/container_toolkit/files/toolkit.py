"""What there is of docker, the NVIDIA Container Toolkit, enroot and pyxis on a node, and what daemon.json is to hold.

``main`` is called with a JSON document, by the role, after this text; it prints one. Reads; changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

CONTAINERD = {"overlay2": False, "containerd": True}
SPECS = (Path("/etc/cdi/nvidia.yaml"), Path("/var/run/cdi/nvidia.yaml"))
INFO = '{"Driver":{{json .Driver}},"DriverStatus":{{json .DriverStatus}},"Runtimes":{{json .Runtimes}}}'


def run(*argv: str) -> str:
    """What a command prints; nothing where it is not here or fails."""
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_daemon(path: Path) -> tuple:
    """(what daemon.json holds, why it could not be read)."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if text.strip() else {}
    except FileNotFoundError:
        return {}, ""
    except ValueError as error:
        return {}, f"{path} is not JSON: {error}"
    return (found, "") if isinstance(found, dict) else ({}, f"{path} is no JSON object")


def merge(have: dict, wanted: dict) -> dict:
    """``have`` with ``wanted`` in it, key by key, to any depth; nothing else of ``have`` changes."""
    made = dict(have)
    for key, value in wanted.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = merge(made[key], value) if both else value
    return made


def complete(have: dict, wanted: dict, store: str) -> dict:
    """What daemon.json is to hold. ``store``: how images are kept; nothing is said of it where it is empty."""
    made = merge(have, wanted)
    if store in CONTAINERD:
        made = merge(made, {"features": {"containerd-snapshotter": CONTAINERD[store]}})
    if "log-driver" not in have and "log-opts" not in have:
        made = merge({"log-driver": "json-file", "log-opts": {"max-size": "100m", "max-file": "3"}}, made)
    return made


def read_store(info: dict) -> str:
    """How docker keeps images now."""
    if not info:
        return ""
    if "io.containerd.snapshotter" in json.dumps(info.get("DriverStatus")):
        return "containerd"
    return info.get("Driver") or ""


def started(pid: str) -> float:
    """When a process began, in seconds since 1970."""
    ticks = int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[19])
    boot = re.search(r"btime (\d+)", Path("/proc/stat").read_text())
    return float(boot[1]) + ticks / os.sysconf("SC_CLK_TCK")


def pending(path: Path, daemon: dict, info: dict, store: str) -> list:
    """Why docker has to be restarted: how it runs is not how daemon.json says."""
    pid = run("systemctl", "show", "--property=MainPID", "--value", "docker").strip()
    if not info:
        return ["docker does not run"]
    found = [
        f"it knows no runtime {name}" for name in daemon.get("runtimes", {}) if name not in info.get("Runtimes", {})
    ]
    if store in CONTAINERD and CONTAINERD[store] != (read_store(info) == "containerd"):
        found.append(f"it keeps images in {read_store(info)}, not {store}")
    try:
        if path.stat().st_mtime > started(pid) + 1:
            found.append(f"{path} has changed since it started")
    except (OSError, ValueError):
        pass
    return found


def describe(driver: str) -> str:
    """What is wrong with CDI's description of the GPUs."""
    if "nvidia.com/gpu" not in run("nvidia-ctk", "cdi", "list"):
        return "no CDI file describes the GPUs (nvidia.com/gpu)"
    for path in SPECS:
        named = set(re.findall(r"libcuda\.so\.(\d+\.[\d.]+\d)", path.read_text())) if path.exists() else set()
        if named - {driver}:
            return f"{path} describes the driver {', '.join(sorted(named))}, and {driver} is loaded"
    return ""


def main(text: str) -> None:
    """Print what there is."""
    ask = json.loads(text)
    path = Path(ask["file"])
    daemon, unread = read_daemon(path)
    info = json.loads(run("docker", "info", "--format", INFO) or "{}")
    store = ask["store"] or read_store(info)
    drivers = run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    version = re.search(r"(\d+\.\d+\.\d+)", run("nvidia-ctk", "--version"))
    shown = run("dpkg-query", "--show", "--showformat=${Package} ${Version}\\n")
    built = Path(ask["plugin"] + ".built")
    told = {
        "dgx": Path("/etc/dgx-release").exists(),
        "docker": shutil.which("dockerd") or "",
        "toolkit": version[1] if version else "",
        "packages": shown.splitlines(),
        "daemon": daemon,
        "unread": unread,
        "merged": complete(daemon, ask["daemon"], store),
        "store": read_store(info),
        "pending": pending(path, daemon, info, ask["store"]),
        "containers": [f"container {name} runs" for name in run("docker", "ps", "--format", "{{.Names}}").split()],
        "driver": drivers[0] if drivers else "",
        "cdi": describe(drivers[0]) if drivers and version else "",
        "refresh": Path("/usr/lib/systemd/system/nvidia-cdi-refresh.service").exists(),
        "enroot": next((line.split()[1] for line in shown.splitlines() if line.startswith("enroot ")), ""),
        "slurm": run("srun", "--version").strip(),
        "built": built.read_text().strip() if built.exists() and Path(ask["plugin"]).exists() else "",
    }
    print(json.dumps(told))
