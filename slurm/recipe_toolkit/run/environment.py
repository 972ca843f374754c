"""Where this agent is: node, job, attempt, address; and what its programs inherit."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recipe_toolkit.errors import RunError

NO_PROXY = ("NO_PROXY", "no_proxy")
# srun finds its cluster by it, and no program takes it for a sign of a task.
_INHERITED = ("SLURM_CONF",)
_NOT_INHERITED = ("RECIPE_SSH_", "SLURM_", "SLURMD_", "SBATCH_", "SUBMITIT_", "PMI_", "PMIX_", "PMI2_")
_SIOCGIFCONF = 0x8912
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Place:
    """``index`` of ``count`` nodes in ``attempt`` of the job; ``scheduler``: ``slurm``, ``ssh`` or ``local``.

    ``node_name``: what the scheduler calls this node.
    """

    scheduler: str
    index: int
    count: int
    attempt: int
    job_id: str
    nodelist: str = ""
    node_name: str = ""


def place(environ: Mapping[str, str]) -> Place:
    """Read the place from what the scheduler, submitit's local executor or :mod:`seat` set.

    Raises RunError if none did.
    """
    if "RECIPE_SSH_INDEX" in environ:
        return Place(
            scheduler="ssh",
            index=int(environ["RECIPE_SSH_INDEX"]),
            count=int(environ["RECIPE_SSH_COUNT"]),
            attempt=0,
            job_id=environ["RECIPE_SSH_JOB"],
        )
    executor = environ.get("SUBMITIT_EXECUTOR", "")
    if executor == "local" or (not executor and "SUBMITIT_LOCAL_GLOBALID" in environ):
        # A local "node" is a task: the executor knows one node only.
        return Place(
            scheduler="local",
            index=int(environ.get("SUBMITIT_LOCAL_GLOBALID", "0")),
            count=int(environ.get("SUBMITIT_LOCAL_NTASKS", "1")),
            attempt=0,
            job_id=environ.get("SUBMITIT_LOCAL_JOB_ID", ""),
        )
    if "SLURM_JOB_ID" in environ:
        return Place(
            scheduler="slurm",
            index=int(environ.get("SLURM_NODEID", "0")),
            count=int(environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES", "1")),
            attempt=int(environ.get("SLURM_RESTART_COUNT") or 0),
            job_id=environ["SLURM_JOB_ID"],
            nodelist=environ.get("SLURM_JOB_NODELIST", ""),
            node_name=environ.get("SLURMD_NODENAME", ""),
        )
    raise RunError(
        "neither SLURM_JOB_ID nor SUBMITIT_LOCAL_GLOBALID is set, so this agent does not know its node",
        hint="start runs with `recipe submit`",
    )


def child_environment(base: Mapping[str, str], given: Mapping[str, str], unset: Iterable[str] = ()) -> dict[str, str]:
    """What a program inherits: the agent's environment without the scheduler's variables.

    vLLM and MPI libraries that find ``SLURM_*`` or ``PMI*`` believe that they are tasks of the job.
    Exceptions from a proxy add up.
    """
    left = {key: value for key, value in base.items() if key in _INHERITED or not key.startswith(_NOT_INHERITED)}
    if left.get("CUDA_VISIBLE_DEVICES") == "":
        # submitit's local executor sets it so; programs would take it as "no GPU".
        del left["CUDA_VISIBLE_DEVICES"]
    for key in unset:
        left.pop(key, None)
    joined = {key: f"{left[key]},{given[key]}" for key in NO_PROXY if left.get(key) and given.get(key)}
    return {**left, **given, **joined}


def node_address(where: Place, interface: str | None) -> tuple[str, str]:
    """The address that this node advertises, and the interface that holds it.

    Raises RunError if the interface has none, or if all that is found on a node of several is loopback.
    """
    if where.scheduler == "local":
        if interface and where.count == 1:
            return _interface_address(interface), interface
        # The whole 127/8 is this host's, so every local node has an address of its own.
        return f"127.0.0.{where.index + 1}", "lo"
    if interface:
        return _interface_address(interface), interface
    address = _host_address() or _routed_address()
    if address.startswith("127.") and where.count > 1:
        raise RunError(
            f"node {where.index} ({socket.gethostname()}) has no address but loopback's that the others could reach",
            hint="name the network interface in the profile: interface: eth0",
        )
    return address, interface_of(address)


def _interface_address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise RunError(
                f"interface {interface!r} of {socket.gethostname()} has no IPv4 address ({error.strerror})",
                hint=f"the profile's interface must be one of: {names}",
            ) from error
    return socket.inet_ntoa(answer[20:24])


def _host_address() -> str | None:
    """The address of the host's own name, if it is not loopback and really is on this host."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return None
    return next((str(item[4][0]) for item in found if _is_ours(str(item[4][0]))), None)


def _is_ours(address: str) -> bool:
    if address.startswith("127."):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _routed_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # TEST-NET-1: connecting a datagram socket sends nothing, it only asks for the route.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The name of the interface that holds ``address``. Raises RunError."""
    if address.startswith("127."):
        return "lo"
    for name, held in addresses():
        if held == address:
            return name
    raise RunError(f"no interface of {socket.gethostname()} holds {address}")


def addresses() -> list[tuple[str, str]]:
    """(interface, IPv4 address) of this host, secondary addresses included."""
    size = 256 * 40  # bytes: a struct ifreq is 40 on 64-bit Linux
    buffer = bytearray(size)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        address = _address_of(buffer)
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iL", size, address))
    used = struct.unpack("iL", answer)[0]
    found = []
    for start in range(0, used, 40):
        name = bytes(buffer[start : start + 16]).split(b"\0", 1)[0].decode()
        # An alias of old tools is called eth0:1; the interface is what comes before the colon.
        found.append((name.partition(":")[0], socket.inet_ntoa(bytes(buffer[start + 20 : start + 24]))))
    return found


def _address_of(buffer: bytearray) -> int:
    import ctypes  # here: only this needs it

    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def kill_wait_s(environ: Mapping[str, str]) -> float:
    """Seconds that the scheduler leaves between TERM and KILL (Slurm's KillWait).

    Slurm does not tell jobs; its default is 30. ``RECIPE_KILL_WAIT`` says otherwise, and 20 is
    assumed without it.
    """
    text = environ.get("RECIPE_KILL_WAIT", "")
    return float(text) if text else 20.0


def hostname() -> str:
    """This host's short name."""
    return os.uname().nodename.partition(".")[0]
