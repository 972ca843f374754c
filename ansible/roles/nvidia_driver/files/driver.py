"""Which driver of NVIDIA a node has loaded, whether DGX OS brings it, what Slurm says of the node. Changes nothing.

``main`` is called with a JSON document, by the role, after this text; it prints one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

NOBODYS = {"known": False, "drained": False, "reason": "", "jobs": [], "why": ""}


def text_of(path: Path) -> str:
    """The text of a file; nothing where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def look(root: str = "/") -> dict:
    """``{"dgx": name or "", "loaded": version or "", "closed": the module is not the open one, "stale"}``."""
    release = text_of(Path(root, "etc/dgx-release"))
    name = re.search(r'DGX_(?:PRETTY_)?NAME="?([^"\n]+)', release)
    module = text_of(Path(root, "proc/driver/nvidia/version"))
    return {
        "dgx": (name[1] if name else "DGX OS") if Path(root, "etc/dgx-release").exists() else "",
        "loaded": text_of(Path(root, "sys/module/nvidia/version")),
        "closed": bool(module) and "Open Kernel Module" not in module,
        # IMEX has not read who is in its domain: an earlier play ended before it was started anew.
        "stale": older("nvidia-imex", Path(root, "etc/nvidia-imex/nodes_config.cfg")),
    }


def older(unit: str, path: Path) -> bool:
    """Whether a service has run since before a file that it reads as it starts was written."""
    pid = run("systemctl", "show", "--property=MainPID", "--value", unit)[0].strip()
    try:
        ticks = int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[19])
        boot = re.search(r"btime (\d+)", Path("/proc/stat").read_text())
        # When the machine booted is told in whole seconds.
        return path.stat().st_mtime > float(boot[1]) + ticks / os.sysconf("SC_CLK_TCK") + 1
    except (OSError, ValueError):
        return False


def ask_slurm(node: str) -> dict:
    """What Slurm says of a node: ``{"known", "drained", "reason", "jobs", "why"}``; ``why``: it cannot be asked.

    A node of no cluster is not known: Slurm is not there, or not set up yet, or has no node of that name.
    """
    if not node or not shutil.which("scontrol"):
        return NOBODYS
    shown, why = run("scontrol", "--oneliner", "show", "node", node)
    if "not found" in why or "configuration source" in why:
        return NOBODYS
    state, reason = re.search(r"\bState=(\S+)", shown), re.search(r"\bReason=(.*?)(?: \[[^\]]*\])?\s*$", shown)
    if not state:
        return {**NOBODYS, "why": why or "scontrol prints no state"}
    jobs, why = run(
        "squeue", "--noheader", f"--nodelist={node}", "--states=RUNNING,COMPLETING,SUSPENDED", "--format=%i"
    )
    said = {"known": True, "drained": "DRAIN" in state[1], "reason": reason[1] if reason else ""}
    return {**said, "jobs": jobs.split(), "why": why}


def run(*argv: str) -> tuple:
    """What a command prints, and why that is nothing worth."""
    try:
        done = subprocess.run(
            argv, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return done.stdout, " ".join((done.stderr or done.stdout).split())[-300:] if done.returncode else ""


def main(text: str) -> None:
    """Print what ``look`` finds, with what Slurm says of the ``node`` that is named."""
    print(json.dumps({**look(), "slurm": ask_slurm(json.loads(text)["node"])}))
