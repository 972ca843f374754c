"""The catalogue of checks, the probe on this machine, what is expected of a plan."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import recipe_toolkit
from checkkit import HCAS, SPARKS
from plankit import RECIPES, plan_of
from recipe_toolkit.check.build import request
from recipe_toolkit.check.catalog import CATALOG, select
from recipe_toolkit.check.parse import parse
from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.expect import MANIFEST, Expect, expect_from_json
from recipe_toolkit.run import probe, probe_programs
from recipe_toolkit.submit.probing import script

PACKAGE = Path(recipe_toolkit.__file__).parent
IDS = set(
    """
    SSH.BATCH OS.SAME KERNEL.KHO DRIVER.PIN DRIVER.LOADED DRIVER.HELD GPU.COUNT GPU.FABRIC IMEX.READY GPU.KLOG
    GPU.LOWPOWER LANE.UP LANE.SPEED LANE.MTU LANE.JUMBO LANE.ACTIVE_MTU LANE.ADDR LANE.SUBNETS LANE.NOT_MGMT HCA.SET
    HCA.GID RDMA.DEV RDMA.LIB LIMIT.MEMLOCK LIMIT.NOFILE DOCKER.STORE DOCKER.NVIDIA IMAGE.DIGEST WEIGHTS.MANIFEST
    DISK.FREE MEM.FREE MEM.GUARD PORT.FREE FWD.RING SLURM.PYXIS ENROOT.NS ENROOT.RDMA GDR.EXPECT CLOCK.SAME
    VLLM.FLAGS VLLM.VERSION
    """.split()  # noqa: SIM905
)
READ_ONLY = {
    "apt-config dump",
    "apt-mark showhold",
    "docker info",
    "dpkg-query --show",
    "enroot version",
    "ibv_devinfo -d",
    "ip -j",
    "iptables -w",
    "journalctl -k",
    "modinfo -F",
    "nvidia-ctk cdi",
    "nvidia-imex-ctl -N",
    "nvidia-smi -q",
    "nvidia-smi --query-gpu=",
    "ping -n",
    "srun --help",
    "systemctl show",
    "{} image",
    "{} run",
    "{} --version",
    "{} serve --help=all",
}


def test_ids_never_change():
    """They stand in people's profiles and scripts; a new check is added at the end of this list."""
    assert {check.id for check in CATALOG} == IDS


def test_each_check_is_whole():
    ids = [check.id for check in CATALOG]
    assert len(set(ids)) == len(ids)
    for place, check in enumerate(CATALOG):
        assert all((check.holds, check.breaks, check.reads, check.remedy)), check.id
        assert set(check.sections) <= set(probe.SECTIONS), check.id
        assert set(check.after) <= set(ids[:place]), f"{check.id}: causes are judged first"
        assert check.id == "SSH.BATCH" or (check.node is None) != (check.fleet is None)


def test_the_schema_knows_the_ids():
    schema = json.loads((PACKAGE / "schemas" / "cluster.json").read_text())
    assert schema["$defs"]["check"]["properties"]["skip"]["items"]["enum"] == [check.id for check in CATALOG]


def test_the_probe_starts_only_what_reads():
    for name, words in probe_programs.COMMANDS.items():
        shown = " ".join(words)
        assert any(shown.startswith(known) for known in READ_ONLY), f"{name}: {shown}"
    # Nothing is opened for writing, made, moved or removed.
    text = "".join(Path(sys.modules[name].__file__).read_text() for name in probe.PARTS)
    assert not re.search(
        r"""open\([^)]*["'][waxr]?[wax+]|mkdir|unlink|rename|rmtree|write_text|chmod|os\\.system""", text
    )


def test_the_probe_needs_nothing_of_this_package():
    nodes = [node for name in probe.PARTS for node in ast.walk(ast.parse(Path(sys.modules[name].__file__).read_text()))]
    imported = {item.name for node in nodes if isinstance(node, ast.Import) for item in node.names}
    imported |= {
        f"{node.module}.{item.name}" for node in nodes if isinstance(node, ast.ImportFrom) for item in node.names
    }
    ours = {name for name in imported if name.startswith("recipe_toolkit")}
    assert {name for name in ours if not name.startswith(probe.PARTS)} == set()
    bare = [sys.executable, "-I", "-S", "-c", script()]
    done = subprocess.run(bare, input=b'{"sections": ["system"]}', capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode().partition(probe.MARK)[2])["sections"]["system"]


def test_every_section_of_this_machine_can_be_parsed(tmp_path):
    asked = request(SPARKS, CATALOG, deep=False)
    asked.update(
        sections=[name for name in probe.SECTIONS if name not in ("inside", "vllm", "pings")], model=str(tmp_path)
    )
    answer = json.loads(json.dumps(probe.answer(asked)))
    assert [name for name, raw in answer["sections"].items() if isinstance(raw, dict) and set(raw) == {"error"}] == []
    node = parse("here", [answer])
    assert node.system is not None
    assert node.interfaces is not None
    assert node.interfaces["lo"].up
    assert node.system.memory["MemTotal"] > 1 << 20
    assert node.model is not None
    for field in (name for name, value in vars(node).items() if value is None and name != "clock"):
        assert field in node.why or field in ("inside", "vllm", "pings", "driver_open"), field


def test_one_broken_section_costs_no_other():
    found = probe.answer({"sections": ["model", "ports"]})["sections"]  # the request says no model
    assert "KeyError" in found["model"]["error"]
    assert isinstance(found["ports"], list)
    node = parse("here", [{"host": "here", "began": 0.0, "ended": 0.0, "sections": found}])
    assert node.model is None
    assert "KeyError" in node.why["model"]
    assert node.ports is not None


def shard(path, size=64):
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


@pytest.fixture
def weights(tmp_path):
    """A model of two shards with a manifest."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = ["a.safetensors", "b.safetensors"]
    for name in names:
        shard(folder / name)
    index = {"weight_map": dict(zip(("x", "y"), names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in names]
    (folder / MANIFEST).write_text("\n".join(lines) + "\n")
    return folder


def looked(folder, deep=False):
    return probe.model({"model": str(folder), "manifest": MANIFEST, "deep": deep})


def test_weights_that_are_whole(weights):
    found = looked(weights, deep=True)
    assert (found["dangling"], found["missing"], found["cut"]) == ([], [], [])
    assert found["deep"]["bad"] == []
    assert found["deep"]["hashed"] == 2


def test_weights_with_a_flipped_byte_are_seen_by_a_deep_look_alone(weights):
    data = bytearray((weights / "b.safetensors").read_bytes())
    data[-1] ^= 1
    (weights / "b.safetensors").write_bytes(data)
    assert looked(weights)["cut"] == []
    assert looked(weights, deep=True)["deep"]["bad"] == ["b.safetensors"]


def test_weights_with_a_cut_a_missing_and_a_dangling_shard(weights):
    (weights / "a.safetensors").write_bytes((weights / "a.safetensors").read_bytes()[:-1])
    (weights / "b.safetensors").unlink()
    found = looked(weights)
    assert found["missing"] == ["b.safetensors"]
    assert found["cut"][0].startswith("a.safetensors (")
    (weights / "b.safetensors").symlink_to("../blobs/gone")
    found = looked(weights)
    assert (found["missing"], found["dangling"]) == ([], ["b.safetensors"])


def test_weights_whose_index_cannot_be_read(weights):
    (weights / "model.safetensors.index.json").write_text("{")
    assert looked(weights)["missing"] == ["model.safetensors.index.json (it cannot be read)"]


def test_what_a_plan_expects_comes_from_recipe_and_profile():
    expect = expect_from_json(plan_of("docker").check)
    assert (expect.device, expect.gpu, expect.gpus, expect.runtime) == ("gpu", "H200", 2, "docker")
    assert expect.model == "/shared/models/moe"
    assert [image["reference"] for image in expect.images] == ["vllm/vllm-openai@sha256:0000"]
    assert expect_from_json(json.loads(json.dumps(expect.to_json()))).to_json() == expect.to_json()
    rdma = expect_from_json(plan_of("pd-4p-dp4-1d-dp8").check)
    assert rdma.hcas == ("mlx5_0",)
    assert rdma.rdma


@pytest.mark.parametrize(
    ("env", "hcas", "rdma"),
    [
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1"}, ("mlx5_0", "mlx5_1"), True),
        ({"NCCL_IB_HCA": "^mlx5_3"}, (), False),
        ({"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_DISABLE": "1"}, ("mlx5_0",), False),
        ({"NCCL_IB_HCA": "mlx5_0", "NCCL_NET": "Socket"}, ("mlx5_0",), False),
        ({"NCCL_NET": "IB"}, (), True),
        ({"UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}, ("mlx5_0", "mlx5_1"), True),
        ({"UCX_NET_DEVICES": "eth0"}, (), False),
        ({}, (), False),
    ],
)
def test_devices_are_read_from_the_environment(env, hcas, rdma):
    expect = Expect(env=env)
    assert (expect.hcas, expect.rdma) == (hcas, rdma)


def test_a_job_judges_what_needs_neither_root_nor_hours():
    ids = {check.id for check in select((), deep=False, bind=True)}
    assert not ids & {"GPU.KLOG", "FWD.RING", "RDMA.LIB", "SSH.BATCH", "IMAGE.DIGEST"}
    assert {"LANE.MTU", "HCA.SET", "RDMA.DEV", "LIMIT.MEMLOCK", "WEIGHTS.MANIFEST", "MEM.FREE"} <= ids


def test_a_profile_says_what_nodes_are_held_to(tmp_path):
    path = tmp_path / "spark.yaml"
    text = (RECIPES / "clusters" / "plain.yaml").read_text()
    path.write_text(
        text + "check: {hosts: [a, root@b], lanes: {enp1: 10.0.1.0/24}, disk: {/models: 0.5}, skip: [OS.SAME]}\n"
    )
    cluster = load_profile(path).cluster
    assert cluster.check.hosts == ("a", "root@b")
    assert cluster.check.disk == {"/models": 1 << 29}
    assert cluster.check.mtu == 9000
    path.write_text(
        text + "check: {lanes: {enp1: 10.0.1.1/24}, skip: [OS.SAME, LANE.MUT], hosts: [-oProxyCommand=x]}\n"
    )
    with pytest.raises(InputError) as refused:
        load_profile(path)
    said = str(refused.value)
    assert "LANE.MTU" in said
    assert "-oProxyCommand=x" in said
    path.write_text(text + "check: {lanes: {enp1: 10.0.1.1/24}}\n")
    with pytest.raises(InputError, match="has host bits set"):
        load_profile(path)


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_vllm_is_asked_in_an_image_of_enroot(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "vllm", 'echo "head $VLLM_X"; echo "  --flag of $*"')
    head = ["enroot", "start", "--rc", "{rc}", "image.sqsh", "vllm"]
    asked = {"head": head, "remove": [], "env": {"VLLM_X": "ours"}}
    program(tmp_path, "enroot", f'echo "$3" >> {tmp_path}/rc; rc=$3; shift 4; exec sh "$rc" "$@"')
    found = probe.vllm({"vllm": asked})
    assert found["version"]["out"] == "head ours\n  --flag of --version\n"
    assert found["help"]["out"] == "  --flag of serve --help=all"
    assert not any(Path(name).exists() for name in (tmp_path / "rc").read_text().split())


HELD = """#!{python}
# Traced by another process, so that it cannot be reaped though it is killed: as one that a driver holds in the kernel.
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(0x59616D61, ctypes.c_ulong(-1 & (2**64 - 1)))
if os.fork() == 0:
    os.close(1), os.close(2)
    if libc.ptrace(0x4206, os.getppid(), 0, 0):
        os._exit(1)
    open({traced!r}, "w").write(str(os.getpid()))
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_program_that_cannot_be_killed_costs_its_checks_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(probe_programs, "_held", {})
    smi = tmp_path / "nvidia-smi"
    smi.write_text(HELD.format(python=sys.executable, traced=str(tmp_path / "traced")))
    smi.chmod(0o755)
    told = {}
    asker = threading.Thread(target=lambda: told.update(probe.run("gpus", timeout=3.0)), daemon=True)
    asker.start()
    asker.join(30)
    tracer = int((tmp_path / "traced").read_text())
    try:
        assert told, "it still waits"
        assert told["rc"] is None
        assert "nvidia-smi did not end in 3 s, and cannot be killed: the kernel holds it" in told["err"]
        # The next is not even started: it would be held too.
        assert probe.run("smi", timeout=3.0)["err"] == told["err"]
    finally:
        os.kill(tracer, signal.SIGKILL)
        asker.join(30)
        for process, _ in probe_programs._held.values():
            process.wait(30)


def test_a_file_system_that_hangs_costs_its_section_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setitem(probe.STALL_S, "model", 0.5)
    os.mkfifo(tmp_path / "config.json")  # whoever opens it waits
    try:
        told = probe.answer(
            {"sections": ["model", "ports"], "model": str(tmp_path), "manifest": MANIFEST, "deep": False}
        )
        assert told["sections"]["model"] == {"error": "not read in 0.5 s: does a file system hang?"}
        assert isinstance(told["sections"]["ports"], list)
    finally:
        os.close(os.open(tmp_path / "config.json", os.O_WRONLY | os.O_NONBLOCK))


def test_an_xid_is_found_behind_a_day_of_a_firewalls_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = "[UFW BLOCK] IN=enP7s7 OUT= MAC=3c:6d:66:cc:b3:b7 SRC=192.168.10.77 DST=224.0.0.251 LEN=32 TOS=0x00"
    program(tmp_path, "journalctl", f'echo "NVRM: Xid (PCI:000f:01:00): 79"; yes "{line}" | head -n 30000')
    found = probe.klog({})
    assert found["bad"] == ["NVRM: Xid (PCI:000f:01:00): 79"]
    assert found["lines"] == 30001


def test_what_programs_did_is_no_wound_of_the_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    xid = "NVRM: Xid (PCI:0000:1b:00)"
    lines = [f"{xid}: {code}, pid=812, name=VLLM::Worker_TP" for code in (63, 13, 31, 43, 45, 68, 109, 119, *[31] * 12)]
    program(tmp_path, "journalctl", "\n".join(f'echo "{line}"' for line in lines))
    assert [line.split(": ")[2][:3] for line in probe.klog({})["bad"]] == ["63,", "119"]


@pytest.mark.parametrize("hcas", [["rocep1s0f1", "roceP2p1s0f1"], ["rocep1", "roceP2"], []])
def test_each_device_that_may_be_meant_is_asked_for_its_mtu(tmp_path, monkeypatch, hcas):
    for name in HCAS:
        (tmp_path / "infiniband" / name / "ports" / "1").mkdir(parents=True)
    monkeypatch.setattr(probe, "_INFINIBAND", str(tmp_path / "infiniband"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "ibv_devinfo", "echo '            active_mtu:             4096 (5)'")
    found = probe.rdma({"hcas": hcas})["devices"]
    assert {name: "4096" in (item["ibv"] or {"out": ""})["out"] for name, item in found.items()} == dict.fromkeys(
        HCAS, True
    )


def test_a_container_that_does_not_end_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(probe, "HELP_S", 0.5)
    program(tmp_path, "docker", f'case $1 in run) exec sleep 60;; *) echo "$*" >> {tmp_path}/removed;; esac')
    asked = {"head": ["docker", "run", "--name", "{name}", "image"], "remove": ["docker", "rm", "--force"], "env": {}}
    found = probe.vllm({"vllm": asked})
    assert found["help"]["rc"] is None
    assert "did not end in 0.5 s" in found["help"]["err"]
    removed = (tmp_path / "removed").read_text().split("\n")
    assert sorted(line.rpartition("-")[2] for line in removed if line) == ["help", "version"]
