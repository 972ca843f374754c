"""Checks of a node's system, driver and GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from recipe_toolkit.check.facts import Node, System
from recipe_toolkit.check.model import Check, Finding, Skip
from recipe_toolkit.plan.expect import Expect

_CLOCK_S = 1.0  # clocks further apart break the order of logs and the life of tokens
_SWITCHED = re.compile(r"\b(G?B[23]00|H[12]00)\b")
_RACK = re.compile(r"\bGB[23]00\b")
_SPARK = re.compile(r"\bGB10\b")


def gpus_wanted(expect: Expect) -> bool:
    """Whether GPUs are used, or nothing is said of it."""
    return expect.device != "cpu"


def with_gpus(expect: Expect, node: Node) -> None:
    """Raise Skip where a node has no NVIDIA GPU and nobody asks for one."""
    if expect.device is None and node.gpus is None and node.driver_loaded is None:
        raise Skip("no NVIDIA driver, and no recipe asks for GPUs")


def differing(
    nodes: Sequence[Node], value: Callable[[Node], Any], wanted: Any = None
) -> Iterator[tuple[Node, Any, Any]]:
    """(node, its value, what it should be: ``wanted``, else what most nodes have) for each that differs."""
    values = [(node, value(node)) for node in nodes]
    if wanted is None:
        counted = Counter(found for _, found in values)
        wanted = max(counted, key=lambda item: counted[item]) if counted else None
    for node, found in values:
        if found != wanted:
            yield node, found, wanted


def _os_same(_: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    def shown(node: Node) -> str:
        system: System = node.know("system")
        return f"{system.release}, kernel {system.kernel}, {system.machine}"

    for node, found, wanted in differing(nodes, shown):
        yield Finding((node.name,), found, f"{wanted}, as most nodes")


def _kho(_: Expect, node: Node) -> Iterator[Finding]:
    system: System = node.know("system")
    total, free = system.memory.get("CmaTotal", 0), system.memory.get("CmaFree", 0)
    if free > total:
        yield Finding(
            (node.name,), f"CmaFree {free >> 20} MiB of CmaTotal {total >> 20} MiB", "CmaFree within CmaTotal"
        )
    elif system.kernel.startswith("7.0.0-1019") and "kho=off" not in system.cmdline:
        yield Finding((node.name,), f"kernel {system.kernel} without kho=off", "another kernel, or kho=off")


def _driver(node: Node) -> str | None:
    if node.gpus:
        return ", ".join(sorted({gpu.driver for gpu in node.gpus}))
    return node.driver_loaded


def _driver_pin(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    if expect.device is None and not expect.driver and not any(map(_driver, nodes)):
        raise Skip("no node has an NVIDIA driver")
    known = [node for node in nodes if _driver(node)]
    for node, found, wanted in differing(known, _driver, expect.driver):
        yield Finding((node.name,), f"driver {found}", f"{wanted}{'' if expect.driver else ', as most nodes'}")
    yield from (_unknown(node, "gpus") for node in nodes if not _driver(node))


def _unknown(node: Node, name: str) -> Finding:
    return Finding((node.name,), node.why.get(name, f"{name} was not read"), status="unknown")


def _driver_loaded(expect: Expect, node: Node) -> Iterator[Finding]:
    with_gpus(expect, node)
    loaded, installed = node.know("driver_loaded"), node.know("driver_installed")
    if loaded != installed:
        yield Finding((node.name,), f"{loaded} is loaded", f"{installed}, as installed")


def _driver_held(expect: Expect, node: Node) -> Iterator[Finding]:
    with_gpus(expect, node)
    if node.know("driver_packages") and not node.know("held"):
        yield Finding((node.name,), "no nvidia package is held", "held, or in unattended-upgrades' Package-Blacklist")


def _gpu_count(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    if expect.gpus is None and not any(node.gpus for node in nodes):
        raise Skip("no node has an NVIDIA GPU, and no recipe asks for any")
    counts = {node.name: len(node.gpus) for node in nodes if node.gpus is not None}
    wanted = expect.gpus or max(counts.values())
    for node in nodes:
        if node.gpus is None:
            yield _unknown(node, "gpus")
        elif len(node.gpus) < wanted:
            yield Finding((node.name,), f"{len(node.gpus)} GPUs", f"{wanted}{'' if expect.gpus else ', as others'}")


def _gpu_fabric(expect: Expect, node: Node) -> Iterator[Finding]:
    if not _SWITCHED.search(expect.gpu or node.gpu_kind):
        raise Skip("its GPUs have no NVSwitch")
    for index, (state, status) in enumerate(node.know("fabric")):
        if state == "N/A" and not re.search("B[23]00", expect.gpu or node.gpu_kind):
            continue  # the PCIe cards of that name
        if state != "Completed" or status not in ("Success", "-"):
            yield Finding((node.name,), f"GPU {index}: state {state}, status {status}", "Completed, Success")


def _imex(_: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    for node in nodes:
        if node.imex is None:
            yield _unknown(node, "imex")
            continue
        told = node.imex["ctl"]
        if told.rc is None:
            yield Finding((node.name,), told.why, status="unknown")
        elif not told.ok:
            found = " ".join(told.out.split())[:200] or told.why
            yield Finding((node.name,), f"nvidia-imex-ctl -N: {found}", "all READY")
        elif bad := list(_not_ready(told.out)):
            more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
            yield Finding(
                (node.name,), f"nvidia-imex-ctl -N: {', '.join(bad[:4])}{more}", "all READY, and the domain UP"
            )
        if not node.imex["channel"]:
            yield Finding((node.name,), "no /dev/nvidia-caps-imex-channels/channel0", "the channel")
    read = [node for node in nodes if node.imex is not None]
    for node, found, _ in differing(read, lambda item: item.imex and item.imex["config"]):
        yield Finding((node.name,), f"nodes_config.cfg has the SHA-256 {str(found)[:12]}", "the same file on all nodes")


def _not_ready(text: str) -> Iterator[str]:
    """What is not as it must be in what ``nvidia-imex-ctl -N`` prints: the domain, and each node that is not READY."""
    domain = re.search(r"^\s*Domain State:\s*(\S+)", text, re.MULTILINE)
    if domain and domain[1] != "UP":
        yield f"the domain is {domain[1]}"
    for line in re.findall(r"^Node #\d.*", text, re.MULTILINE):
        if not re.search(r"(?<!NOT )\bREADY\b", line):
            yield " ".join(line.split())


def _klog(expect: Expect, node: Node) -> Iterator[Finding]:
    with_gpus(expect, node)
    bad = node.know("klog")
    if bad:
        yield Finding((node.name,), f"{bad[-1]} ({len(bad)} such lines)", "no Xid since boot")


def _low_power(expect: Expect, node: Node) -> Iterator[Finding]:
    if not _SPARK.search(expect.gpu or node.gpu_kind):
        raise Skip("no GB10")
    busy = [row for row in node.know("power") if len(row) > 3 and row[3].isdigit() and int(row[3]) >= 80]
    if not busy:
        raise Skip("the GPU is idle; look again under load")
    for row in busy:
        if not row[2].isdigit():
            yield Finding((node.name,), f"nvidia-smi does not say how fast GPU {row[0]} runs", status="unknown")
        elif int(row[2]) < 1000:
            yield Finding((node.name,), f"{row[2]} MHz and {row[1]} W at {row[3]} % use", "above 1000 MHz under load")


def _memory(expect: Expect, node: Node) -> Iterator[Finding]:
    share = expect.memory
    if share is None:
        raise Skip("the recipe says no gpu-memory-utilization")
    shared, gpus = False, node.know("gpus")
    # A neighbour may fill the others. Ids that are no numbers are not found among these: then all count.
    for gpu in [gpu for gpu in gpus if gpu.index in node.taken] or gpus:
        if gpu.memory is None and _SPARK.search(gpu.name):
            shared = True
        elif gpu.memory is None or gpu.free is None:
            yield Finding((node.name,), f"nvidia-smi does not say what GPU {gpu.index} has free", status="unknown")
        elif gpu.free < share * gpu.memory:
            yield Finding((node.name,), f"GPU {gpu.index}: {gpu.free} of {gpu.memory} MiB free", f"{share:.0%} of it")
    if shared:
        memory = node.know("system").memory
        total, free, could = (memory.get(key, 0) >> 20 for key in ("MemTotal", "MemFree", "MemAvailable"))
        if free < share * total:
            yield Finding((node.name,), f"{free} of {total} MiB free ({could} available)", f"{share:.0%} of it free")


def _guard(expect: Expect, node: Node) -> Iterator[Finding]:
    if not _SPARK.search(expect.gpu or node.gpu_kind):
        raise Skip("no GB10: its GPUs have memory of their own")
    system = node.know("system")
    if system.swap:
        yield Finding((node.name,), "swap is on", "swap off")
    if system.target == "graphical.target":
        yield Finding((node.name,), "boots into graphical.target", "multi-user.target")
    if node.know("units").get("earlyoom", {}).get("ActiveState") != "active":
        yield Finding((node.name,), "earlyoom does not run", "earlyoom active")


def _clocks(_: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    timed = [(sum(node.clock) / 2, node.clock) for node in nodes if node.clock]
    if not timed:
        raise Skip("nobody has compared the clocks")
    ordered = sorted([(0.0, (0.0, 0.0)), *timed])  # the asker's has a voice too
    low, high = ordered[len(ordered) // 2][1]
    for node in nodes:
        if node.clock and (node.clock[0] - high > _CLOCK_S or low - node.clock[1] > _CLOCK_S):
            ahead = node.clock[0] - high if node.clock[0] > high else node.clock[1] - low
            which = "ahead of" if ahead > 0 else "behind"
            yield Finding((node.name,), f"its clock is {abs(ahead):.1f} s {which} the others", f"within {_CLOCK_S:g} s")


def _gdr(expect: Expect, node: Node) -> Iterator[Finding]:
    kind = expect.gpu or node.gpu_kind
    if _SPARK.search(kind):
        if node.know("peermem"):
            yield Finding((node.name,), "nvidia-peermem is loaded", "not loaded: GB10 has no GPUDirect RDMA")
    elif not _SWITCHED.search(kind):
        raise Skip("nothing is known of these GPUs")
    elif not node.know("peermem") and not node.know("driver_open"):
        yield Finding((node.name,), "neither nvidia-peermem nor the open kernel module (DMA-BUF)", "one of them")


def _rack(expect: Expect) -> bool:
    return bool(_RACK.search(expect.gpu or ""))


def _fabric_asked(expect: Expect) -> bool:
    return gpus_wanted(expect) and (expect.gpu is None or bool(_SWITCHED.search(expect.gpu)))


def _spark_asked(expect: Expect) -> bool:
    return gpus_wanted(expect) and (expect.gpu is None or bool(_SPARK.search(expect.gpu)))


def _rdma_gpus(expect: Expect) -> bool:
    return gpus_wanted(expect) and expect.rdma


def _memory_asked(expect: Expect) -> bool:
    return expect.memory is not None and expect.device == "gpu"


CHECKS = (
    Check(
        "OS.SAME", "fleet", "warning",
        "kernel, release and architecture are the same on all nodes",
        "kernels that behave differently under one job",
        "uname, /etc/os-release, /etc/dgx-release",
        "bring the nodes to one release, or leave the odd one out",
        ("system",), fleet=_os_same, bind=True,
        source="https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14",
    ),
    Check(
        "KERNEL.KHO", "node", "error",
        "kexec handover does not hold the contiguous memory (kernel 7.0.0-1019)",
        "NCCL ends with ENOMEM in ibv_reg_mr at every start",
        "/proc/meminfo (CmaFree, CmaTotal), /proc/cmdline",
        "boot with kho=off, or kernel 6.17.0-1032",
        ("system",), node=_kho, bind=True,
        source="https://github.com/eugr/spark-vllm-docker/issues/389",
    ),
    Check(
        "DRIVER.PIN", "fleet", "error",
        "the NVIDIA driver is the one of the profile (check.driver), or at least the same on all nodes",
        "a node that an update has moved; NCCL between drivers hangs or fails",
        "nvidia-smi, /proc/driver/nvidia/version",
        "install the same driver version there and hold it",
        ("driver",), gpus_wanted, fleet=_driver_pin, bind=True,
        source="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
    ),
    Check(
        "DRIVER.LOADED", "node", "error",
        "the loaded kernel module is the installed one",
        "Driver/library version mismatch in every container",
        "/proc/driver/nvidia/version, modinfo",
        "reboot the node",
        ("driver",), gpus_wanted, node=_driver_loaded, bind=True,
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/394",
    ),
    Check(
        "DRIVER.HELD", "node", "warning",
        "apt does not change the driver by itself",
        "an unattended upgrade breaks NVML under running jobs",
        "apt-mark, apt-config, dpkg-query",
        "apt-mark hold the driver's packages",
        ("driver",), gpus_wanted, node=_driver_held,
        source="https://github.com/pando85/homelab/pull/4110",
    ),
    Check(
        "GPU.COUNT", "fleet", "error",
        "each node has as many GPUs as the recipe's gpus_per_node, or as the others",
        "a GPU that has fallen off the bus",
        "nvidia-smi",
        "look for Xid in the kernel's log; reboot the node, or drain it",
        ("driver",), gpus_wanted, fleet=_gpu_count, bind=True,
        source="https://github.com/Azure/azurehpc-health-checks",
    ),
    Check(
        "GPU.FABRIC", "node", "error",
        "NVLink's fabric is up on every GPU behind NVSwitches",
        "CUDA error 802 while nvidia-smi looks healthy",
        "nvidia-smi -q (Fabric)",
        "start nvidia-fabricmanager (and NVLSM) at exactly the driver's version; load ib_umad and mlx5_ib",
        ("driver", "fabric"), _fabric_asked, node=_gpu_fabric, after=("DRIVER.LOADED",), bind=True,
        source="https://github.com/NVIDIA/gpu-operator/issues/2781",
    ),
    Check(
        "IMEX.READY", "fleet", "error",
        "IMEX is ready on every tray of a rack, with one nodes_config.cfg and its channel",
        "NVLink between trays fails to start",
        "nvidia-imex-ctl -N, /etc/nvidia-imex/nodes_config.cfg, /dev/nvidia-caps-imex-channels",
        "the same nodes_config.cfg on all trays, then restart nvidia-imex",
        ("imex",), _rack, fleet=_imex, bind=True,
        source="https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/deployment.html",
    ),
    Check(
        "GPU.KLOG", "node", "error",
        "the kernel has logged no GPU error since boot, but those that programs cause (Xid 13, 31, 43, 45, 68, 109)",
        "serving on a wounded GPU",
        "journalctl -k -b (NVRM: Xid, NV_ERR_NO_MEMORY); needs root or the group systemd-journal",
        "reboot the node, and look up the Xid",
        ("driver", "klog"), gpus_wanted, node=_klog,
        source="https://github.com/NVIDIA/dgx-spark-playbooks/issues/97",
    ),
    Check(
        "GPU.LOWPOWER", "node", "warning",
        "a GB10 under load is not stuck at low power",
        "a node of a fraction of its speed, which holds up all others",
        "nvidia-smi (power, clocks, use)",
        "take the node off its power supply for a minute",
        ("driver", "power"), _spark_asked, node=_low_power,
        source="https://github.com/Blackwellboy/model-serving-minefield/pull/55",
    ),
    Check(
        "GDR.EXPECT", "node", "warning",
        "GPUDirect RDMA is where it can be: never on GB10, by DMA-BUF or nvidia-peermem on B300 and GB300",
        "KV and collectives through host memory, or a module that GB10 refuses",
        "/sys/module/nvidia_peermem, /proc/driver/nvidia/version",
        "B300, GB300: the open kernel module; GB10: remove nvidia-peermem from /etc/modules-load.d",
        ("driver",), _rdma_gpus, node=_gdr, bind=True,
        source="https://forums.developer.nvidia.com/t/dgx-spark-gpudirect-rdma/348787/6",
    ),
    Check(
        "MEM.FREE", "node", "error",
        "as much GPU memory is free as gpu-memory-utilization takes (GB10: MemFree)",
        "vLLM refuses to start, or the host hangs",
        "nvidia-smi, /proc/meminfo",
        "end what holds the memory; after a copy of weights, drop the page cache",
        ("driver", "system"), _memory_asked, node=_memory, bind=True,
        source="https://github.com/vllm-project/vllm/issues/48140",
    ),
    Check(
        "MEM.GUARD", "node", "warning",
        "on GB10, something ends a process before the whole host hangs: earlyoom, no swap, no desktop",
        "the whole node freezes when memory runs out",
        "/proc/swaps, systemctl (earlyoom, default.target)",
        "install earlyoom; swapoff -a; systemctl set-default multi-user.target",
        ("driver", "system", "units"), _spark_asked, node=_guard,
        source="https://github.com/AEON-7/vllm-ultimate-dgx-spark/issues/9",
    ),
    Check(
        "CLOCK.SAME", "fleet", "warning",
        "the nodes' clocks are within a second of each other",
        "logs out of order, tokens and certificates that are not valid yet",
        "the clock of each node while it is asked",
        "start chrony or systemd-timesyncd there",
        (), fleet=_clocks, bind=True,
    ),
)  # fmt: skip
