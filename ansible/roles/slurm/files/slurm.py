"""What a node's Slurm is now, and what a new configuration would mean for it. Reads; only ``key`` may write.

``main`` is called with a JSON document, by the role, after this text; it prints one.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
import re
import shutil
import subprocess
import time
from pathlib import Path

# What slurmctld and slurmd read as they start and never again (slurm.conf(5), and scontrol(1) of reconfigure).
# All that is said of nodes is among it, and the whole of gres.conf and cgroup.conf.
AT_START = {
    "AccountingStorageType", "AuthType", "AuthInfo", "ClusterName", "GresTypes", "JobAcctGatherType", "JobCompType",
    "NodeName", "PreemptType", "PriorityType", "ProctrackType", "SchedulerType", "SelectType", "SelectTypeParameters",
    "SlurmctldHost", "SlurmctldPort", "SlurmdPort", "SlurmdSpoolDir", "SlurmUser", "StateSaveLocation", "SwitchType",
    "TaskPlugin",
}  # fmt: skip
PENDING = ".recipe-restart"  # what the daemons have still to start anew for, beside slurm.conf
READY = {"idle", "mixed", "allocated", "completing", "reserved", "planned"}
# Reasons that Slurm gives by itself: a node that a person has drained is that person's.
OWN = ("Not responding", "Node unexpectedly", "Low ", "gres/", "batch job", "Prolog", "Epilog", "none", "invalid")


def lines(text: str) -> dict:
    """What each line of a configuration says, by what it is about (``NodeName=a``, ``KillWait``)."""
    found = {}
    for line in text.splitlines():
        line = " ".join(line.split("#", 1)[0].split())
        key, _, value = line.partition("=")
        if line and " Name=" in line:  # of gres.conf: a node has as many lines as it likes
            found[line] = value
        elif line:
            found[f"{key}={value.split()[0]}" if key in ("NodeName", "PartitionName") else key] = value
    return found


def differs(file: str, old: str, new: str) -> tuple:
    """(names of what changes, whether the daemons have to start anew for it)."""
    before, after = lines(old), lines(new)
    names = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    restart = [name for name in names if file != "slurm.conf" or name.split("=")[0] in AT_START]
    return names, restart


def compare(folder: str, files: dict) -> dict:
    """What changes where ``files`` (name -> text) are to lie: ``new`` where there is no slurm.conf yet.

    A change that was written, and for which the daemons have not started anew, counts still.
    """
    if not Path(folder, "slurm.conf").exists():
        return {"kind": "new", "why": []}
    left = Path(folder, PENDING)
    why, restart = [], left.read_text().split("\n")[:-1] if left.exists() else []
    for file, text in files.items():
        path = Path(folder, file)
        names, needing = differs(file, path.read_text() if path.exists() else "", text)
        why += [f"{file}: {name}" for name in names]
        restart += [line for line in (f"{file}: {name}" for name in needing) if line not in restart]
    return {"kind": "restart" if restart else "reconfigure" if why else "none", "why": restart or why}


def run(*argv: str) -> str:
    """What a command prints; nothing where it is not here or fails."""
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=40, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def look(ask: dict) -> dict:
    """The hardware as slurmd sees it (memory in MB), and the jobs of the cluster."""
    found = dict(re.findall(r"(\w+)=(\S+)", (run("slurmd", "-C").splitlines() or [""])[0]))
    keys = ("CPUs", "Boards", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore")
    hardware = {key: int(found[key]) for key in keys if key in found}
    hardware = hardware or {"CPUs": ask["cpus"]}
    # A new kernel may leave a little less; in whole quarters of a GiB it is the same.
    hardware["RealMemory"] = int(found.get("RealMemory", ask["memory_mb"])) * ask["percent"] // 100 // 256 * 256
    return {
        "version": run("slurmd", "-V").partition(" ")[2].strip() or run("slurmctld", "-V").partition(" ")[2].strip(),
        "hardware": hardware,
        "jobs": run("squeue", "--noheader", "--states=RUNNING,COMPLETING,SUSPENDED", "--format=%i").split(),
    }


def key(ask: dict) -> dict:
    """Make munge's key as it is to be: the one given, or one of its own where there is none; 0400, of munge's.

    Returns ``{"key": base64, "changed": bool, "stale": whether munged runs with an older one}``; with ``dry`` nothing
    is written.
    """
    path = Path("/etc/munge/munge.key")
    have = path.read_bytes() if path.exists() else b""
    want = base64.b64decode(ask.get("key") or "") or have or os.urandom(1024)
    owner = pwd.getpwnam("munge") if path.parent.exists() else None
    stat = path.stat() if path.exists() else None
    kept = have == want and stat and owner and (stat.st_mode & 0o777, stat.st_uid) == (0o400, owner.pw_uid)
    if not kept and not ask["dry"]:
        if not owner:
            raise SystemExit("no account munge: is the package munge installed?")
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
            file.write(want)
        os.chown(new, owner.pw_uid, owner.pw_gid)
        new.rename(path)
    return {"key": base64.b64encode(want).decode(), "changed": not kept, "stale": older("munge", path)}


def older(unit: str, path: Path) -> bool:
    """Whether a service has run since before a file that it reads as it starts was written."""
    pid = run("systemctl", "show", "--property=MainPID", "--value", unit).strip()
    try:
        ticks = int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[19])
        boot = re.search(r"btime (\d+)", Path("/proc/stat").read_text())
        # When the machine booted is told in whole seconds.
        return path.stat().st_mtime > float(boot[1]) + ticks / os.sysconf("SC_CLK_TCK") + 1
    except (OSError, ValueError):
        return False


def judge(text: str, nodes: list) -> tuple:
    """(problems, notes) of nodes, by what ``sinfo --Node --format='%N|%T|%E'`` prints."""
    seen = {}
    for line in text.splitlines():
        name, state, reason = line.split("|", 2)
        seen[name] = (state.rstrip("*~#!%$@^-+").lower(), reason, state)
    problems = [f"{name}: unknown to slurmctld" for name in nodes if name not in seen]
    notes = []
    for name, (state, reason, shown) in seen.items():
        if name in nodes and (state not in READY or "*" in shown):
            own = "drain" not in state or reason.startswith(OWN)
            (problems if own else notes).append(f"{name} is {shown}: {reason}")
    return problems, notes


def wait(ask: dict) -> dict:
    """Wait until every node is ready, at the longest ``patience`` seconds; what is not, is told."""
    deadline = time.monotonic() + ask["patience"]
    while True:
        text = run("sinfo", "--noheader", "--Node", "--format=%N|%T|%E")
        problems, notes = judge(text, ask["nodes"]) if text else (["slurmctld does not answer"], [])
        if not problems or time.monotonic() > deadline:
            return {"problems": problems, "notes": notes}
        time.sleep(0.5)


def hashed(ask: dict) -> dict:
    """Whether slurmctld has read the slurm.conf that lies here; true where it cannot be asked."""
    deadline = time.monotonic() + ask["patience"]
    while not (told := run("scontrol", "show", "config")) and time.monotonic() < deadline:
        time.sleep(0.5)
    return {"same": not re.search(r"HASH_VAL\s*=\s*Different", told), "answers": bool(told)}


def main(text: str) -> None:
    """Do what is asked: ``look``, ``compare``, ``key``, ``wait`` or ``hashed``."""
    ask = json.loads(text)
    verbs = {"look": look, "key": key, "wait": wait, "hashed": hashed}
    verbs["compare"] = lambda ask: compare(ask["folder"], ask["files"])
    print(json.dumps(verbs[ask["do"]](ask)))
