"""The programs that a probe starts, and files that it reads: the standard library alone, nothing changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

COMMAND_S, HELP_S = 20.0, 150.0  # vLLM imports PyTorch to show its help: a cold disk takes a minute
MAX_TEXT = 500_000  # characters of one file or command that are kept

_UNITS = "docker containerd slurmd earlyoom nvidia-imex"
_INSPECT = '{"id":"{{.Id}}","digests":{{json .RepoDigests}},"layers":{{json .RootFS.Layers}}}'
_INFO = '{"Driver":{{json .Driver}},"DriverStatus":{{json .DriverStatus}},"Runtimes":{{json .Runtimes}}}'
_CSV = "--format=csv,noheader,nounits"
COMMANDS: dict[str, list[str]] = {  # every program that a probe starts; {}: a word, or words, of the request
    "units": f"systemctl show {_UNITS} --no-pager -p Id,LoadState,ActiveState,LimitMEMLOCK,LimitNOFILE".split(),
    "modinfo": ["modinfo", "-F", "version", "nvidia"],
    "gpus": f"nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.free {_CSV}".split(),
    "smi": ["nvidia-smi", "-q"],
    "power": f"nvidia-smi --query-gpu=index,power.draw,clocks.sm,utilization.gpu {_CSV}".split(),
    "holds": ["apt-mark", "showhold"],
    "apt": ["apt-config", "dump"],
    "dpkg": ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", "*nvidia*"],
    "imex": ["nvidia-imex-ctl", "-N"],
    "journal": ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "cat", "-n", "200000"],
    "addresses": ["ip", "-j", "-4", "address", "show"],
    "routes": ["ip", "-j", "-4", "route", "show", "default"],
    "ibv": ["ibv_devinfo", "-d", "{}"],
    "docker": ["docker", "info", "--format", _INFO],
    "cdi": ["nvidia-ctk", "cdi", "list"],
    "image": ["{}", "image", "inspect", "--format", _INSPECT, "{}"],
    "srun": ["srun", "--help"],
    "enroot": ["enroot", "version"],
    "firewall": ["iptables", "-w", "2", "-S", "DOCKER-USER"],
    "ping": ["ping", "-n", "-q", "-c", "1", "-W", "2", "-M", "do", "-s", "{}", "-I", "{}", "{}"],
    "version": ["{}", "--version"],
    "help": ["{}", "serve", "--help=all"],
    "inside": [
        *["{}", "run", "--rm", "--network", "none", "--entrypoint", "sh", "{}", "-c"],
        "ulimit -n; ulimit -l; ldconfig -p | grep -c libibverbs",
    ],
}

# Programs that outlived a SIGKILL, and what is said of them: the kernel holds them, and would hold the next.
_held: dict[str, tuple[subprocess.Popen[bytes], str]] = {}


def run(
    name: str,
    *words: str | list[str],
    timeout: float = COMMAND_S,
    env: dict[str, Any] | None = None,
    most: int | None = MAX_TEXT,
) -> dict[str, Any]:
    """One of :data:`COMMANDS`: ``rc`` (None: it is not there, or did not end), ``out``, ``err``.

    A program that does not end is killed, and not waited for: a driver that hangs holds it in the kernel.
    """
    rest = iter(words)
    argv: list[str] = []
    for word in COMMANDS[name]:
        item = next(rest) if word == "{}" else word
        argv += [item] if isinstance(item, str) else item
    path = shutil.which(argv[0], path=os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        return {"rc": None, "out": "", "err": f"no {argv[0]} on PATH"}
    if path in _held:
        return {"rc": None, "out": "", "err": _held[path][1]}
    env, argv[0] = {**os.environ, "LC_ALL": "C", **(env or {})}, path
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env)
    except OSError as error:
        return {"rc": None, "out": "", "err": str(error)}
    try:
        out, err = (text.decode("utf-8", "replace") for text in process.communicate(timeout=timeout))
    except subprocess.TimeoutExpired:
        return {"rc": None, "out": "", "err": _give_up(process, path, timeout)}
    return {"rc": process.returncode, "out": out[-most:] if most else out, "err": err[-2000:].strip()}


def _give_up(process: subprocess.Popen[bytes], path: str, waited: float) -> str:
    """Kill a program that does not end; what is to be said of it."""
    process.kill()
    for stream in (process.stdout, process.stderr):
        stream.close() if stream else None
    told = f"{path} did not end in {waited:g} s"
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        told = f"{told}, and cannot be killed: the kernel holds it (process {process.pid})"
        _held[path] = process, told
    return told


def read(path: str | Path, most: int = MAX_TEXT) -> str | None:
    """The text of a file, stripped; None where it cannot be read (an empty GID slot answers EINVAL)."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(most).strip()
    except OSError:
        return None
