"""``recipe check`` over real sshd: each fault that is injected on one of four nodes is found by exactly its check.

The nodes' network, files and sshd are real; GPUs, docker and systemd are stand-ins that print what a file says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_rig import Nodes, make_nodes

pytestmark = pytest.mark.ansible

NAMES = ("melchior", "balthasar", "casper", "artaban")
NODE = "casper"
RECIPE = {
    "schema": 1,
    "name": "spark",
    "model": {"path": "/models/tiny", "served_name": "tiny"},
    "engine": {"kind": "vllm", "version": "0.32.0", "image": "vllm:1", "args": {"gpu-memory-utilization": 0.05}},
    "resources": {"gpu": "GB10", "gpus_per_node": 1},
    "roles": {"serve": {"instances": 1, "parallel": {"tp": 4}}},
    "benchmarks": [{"client": "command", "command": ["true"]}],
}
PROFILE = {
    "schema": 1,
    "name": "rig",
    "scheduler": "slurm",
    "runs": "/runs",
    "python": "/usr/bin/python3",
    "container": {"runtime": "docker"},
    "env": {"NCCL_NET": "IB", "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "NCCL_IB_GID_INDEX": "3"},
    "check": {
        "hosts": list(NAMES),
        "lanes": {"enp1s0f1np1": "10.42.0.0/24", "enP2p1s0f1np1": "10.42.1.0/24"},
        "ports": [8000],
        # There is no NVIDIA module, journal or desktop to look at, and no vLLM to ask.
        "skip": ["DRIVER.LOADED", "GPU.KLOG", "GPU.LOWPOWER", "MEM.GUARD", "VLLM.FLAGS", "VLLM.VERSION"],
    },
}
SHIMS = {
    "nvidia-smi": 'echo "0, NVIDIA GB10, $(cat /etc/rig/driver), [N/A], [N/A]"',
    "ibv_devinfo": "echo active_mtu: 4096",
    "apt-mark": "echo nvidia-driver-580-open",
    "systemctl": """for unit in docker containerd; do
  echo "Id=$unit.service\nLoadState=loaded\nActiveState=active"
  echo "LimitMEMLOCK=$(cat /etc/rig/memlock)\nLimitNOFILE=$(cat /etc/rig/nofile)\n"
done""",
    "docker": """case $1 in
  info) echo "{\\"Driver\\":\\"overlay2\\",\\"DriverStatus\\":[],\\"Runtimes\\":$(cat /etc/docker/daemon.json)}";;
  image) echo "{\\"id\\":\\"x\\",\\"digests\\":[\\"vllm@sha256:$(cat /etc/rig/digest)\\"],\\"layers\\":[]}";;
  run) printf '1048576\nunlimited\n2\n';;
esac""",
}
SET_UP = """
mkdir -p /etc/rig /etc/docker /models/tiny /runs
cd /etc/rig; echo 580.95.05 > driver; echo infinity > memlock; echo 1048576 > nofile; echo 11 > digest
echo '{"nvidia": {}}' > /etc/docker/daemon.json
for lane in enp1s0f1np1 enP2p1s0f1np1; do ip addr flush dev $lane; ip link set $lane mtu 9000 up; done
ip addr add 10.42.0.%(number)d/24 dev enp1s0f1np1
ip addr add 10.42.1.%(number)d/24 dev enP2p1s0f1np1
cd /models/tiny; echo '{}' > config.json; echo one > a.bin; echo two > b.bin
echo '{"weight_map": {"x": "a.bin", "y": "b.bin"}}' > model.bin.index.json
sha256sum a.bin b.bin > MANIFEST.sha256
"""
ONE, TWIN = "enp1s0f1np1", "enP2p1s0f1np1"
HCA = "/sys/class/infiniband/rocep1s0f1"
MOVE = f"cd {HCA}/ports/1; for f in gids gid_attrs/types gid_attrs/ndevs; do mv $f/%d $f/%d; done"
CLOCK = "/usr/lib/python3.11/sitecustomize.py"
LISTEN = 'import socket, time; s = socket.socket(); s.bind((\\"\\", 8000)); s.listen(); time.sleep(600)'
# fault: (its check, what makes it, what undoes it)
FAULTS = {
    "MTU 1500 on one side of one lane": ("LANE.MTU", f"ip link set {ONE} mtu 1500", f"ip link set {ONE} mtu 9000"),
    "twins in one subnet": (
        "LANE.SUBNETS",
        f"ip addr flush dev {TWIN}; ip addr add 10.42.0.33/24 dev {TWIN}",
        f"ip addr flush dev {TWIN}; ip addr add 10.42.1.3/24 dev {TWIN}",
    ),
    "a wrong address": (
        "LANE.ADDR",
        f"ip addr flush dev {ONE}; ip addr add 10.42.9.3/24 dev {ONE}",
        f"ip addr flush dev {ONE}; ip addr add 10.42.0.3/24 dev {ONE}",
    ),
    "GID index moved": ("HCA.GID", MOVE % (3, 5), MOVE % (5, 3)),
    "HCA missing": ("HCA.SET", f"mv {HCA} /run/gone", f"mv /run/gone {HCA}"),
    "HCA prefix-ambiguous": ("HCA.SET", f"cp -r {HCA} {HCA}0", f"rm -r {HCA}0"),
    "/dev/infiniband missing": ("RDMA.DEV", "mv /dev/infiniband /dev/gone", "mv /dev/gone /dev/infiniband"),
    "memlock small": ("LIMIT.MEMLOCK", "echo 8388608 > /etc/rig/memlock", "echo infinity > /etc/rig/memlock"),
    "nofile 1024": ("LIMIT.NOFILE", "echo 1024 > /etc/rig/nofile", "echo 1048576 > /etc/rig/nofile"),
    "daemon.json clobbered": (
        "DOCKER.NVIDIA",
        "echo '{}' > /etc/docker/daemon.json",
        """echo '{"nvidia": {}}' > /etc/docker/daemon.json""",
    ),
    "the same tag, another digest": ("IMAGE.DIGEST", "echo 22 > /etc/rig/digest", "echo 11 > /etc/rig/digest"),
    "a flipped byte in a shard": ("WEIGHTS.MANIFEST", "echo onf > /models/tiny/a.bin", "echo one > /models/tiny/a.bin"),
    "a missing shard": ("WEIGHTS.MANIFEST", "mv /models/tiny/a.bin /run/a", "mv /run/a /models/tiny/a.bin"),
    "a dangling link": (
        "WEIGHTS.MANIFEST",
        "ln -sf ../blobs/a /models/tiny/a.bin",
        "rm /models/tiny/a.bin; echo one > /models/tiny/a.bin",
    ),
    "a full disk": ("DISK.FREE", "mount -t tmpfs -o size=1m tmpfs /runs", "umount /runs"),
    "a port taken": (
        "PORT.FREE",
        f'setsid python3 -c "{LISTEN}" > /dev/null 2>&1 & echo $! > /run/listener; '
        "until grep -q ':1F40 ' /proc/net/tcp; do sleep 0.1; done",
        "kill $(cat /run/listener)",
    ),
    "a driver that differs on one node": (
        "DRIVER.PIN",
        "echo 580.126.09 > /etc/rig/driver",
        "echo 580.95.05 > /etc/rig/driver",
    ),
    "a management NIC behind an HCA": (
        "LANE.NOT_MGMT",
        f"ip route add default via 10.42.0.1 dev {ONE}",
        "ip route del default",
    ),
    "clocks apart": (
        "CLOCK.SAME",
        f"mv {CLOCK} {CLOCK}.old; printf 'import time\nnow = time.time\ntime.time = lambda: now() + 30\n' > {CLOCK}",
        f"mv {CLOCK}.old {CLOCK}",
    ),
}


@pytest.fixture(scope="module")
def sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four nodes that are well, and a profile and a recipe for them."""
    for nodes in make_nodes(tmp_path_factory, "check", 4):
        for number, name in enumerate(NAMES, 1):
            shims = "".join(
                f"cat > /usr/local/sbin/{program} <<'EOF'\n#!/bin/sh\n{text}\nEOF\nchmod +x /usr/local/sbin/{program}\n"
                for program, text in SHIMS.items()
            )
            nodes.on(name, shims + SET_UP % {"number": number})
        (nodes.folder.parent / "rig.yaml").write_text(json.dumps(PROFILE))
        (nodes.folder.parent / "recipe.yaml").write_text(json.dumps(RECIPE))
        yield nodes


def check(nodes: Nodes, *words: str) -> subprocess.CompletedProcess[str]:
    """``recipe check`` beside the nodes, weights hashed."""
    folder = nodes.folder.parent
    argv = [Path(sys.executable).with_name("recipe"), "check", folder / "recipe.yaml", "-c", folder / "rig.yaml"]
    return nodes.call("exec", "--", *argv, "-F", nodes.folder / "ssh_config", "--deep", *words)


def failed(done: subprocess.CompletedProcess[str]) -> dict[str, set[str]]:
    """The checks that failed, each with its nodes."""
    checks = json.loads(done.stdout)["checks"]
    return {
        item["id"]: {node for finding in item["findings"] if finding["status"] == "failed" for node in finding["nodes"]}
        for item in checks
        if item["status"] == "failed"
    }


def test_four_nodes_that_are_well_are_fit(sparks):
    done = check(sparks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fit: 4 nodes" in done.stdout
    assert "LANE.JUMBO" in done.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_one_node_is_found_by_exactly_its_check(sparks, fault):
    wanted, make, undo = FAULTS[fault]
    sparks.on(NODE, make)
    try:
        done = check(sparks, "--json")
    finally:
        sparks.on(NODE, undo)
    assert done.returncode == 1
    assert failed(done) == {wanted: {NODE}}


def test_a_switch_that_drops_large_packets_is_found_on_its_lane(sparks):
    space = sparks.folder / "ns" / "switch"
    mtu = ["nsenter", f"--net={space}", "ip", "link", "set", "l1n3", "mtu"]
    subprocess.run([*mtu, "1500"], check=True)
    try:
        done = check(sparks, "--json")
    finally:
        subprocess.run([*mtu, "9216"], check=True)
    assert list(failed(done)) == ["LANE.JUMBO"]
    assert NODE in failed(done)["LANE.JUMBO"]
    (jumbo,) = (item for item in json.loads(done.stdout)["checks"] if item["id"] == "LANE.JUMBO")
    assert {finding["about"] for finding in jumbo["findings"]} == {TWIN}


def test_an_unreachable_node_is_named_and_the_others_are_judged(sparks):
    route = ["ip", "route", "add", "blackhole", "10.91.0.4/32"]
    assert sparks.call("exec", "--", *route).returncode == 0
    sparks.on(NODE, "echo 22 > /etc/rig/digest")
    try:
        done = check(sparks, "--json")
    finally:
        route[2] = "del"
        assert sparks.call("exec", "--", *route).returncode == 0
        sparks.on(NODE, "echo 11 > /etc/rig/digest")
    assert failed(done) == {"SSH.BATCH": {"artaban"}, "IMAGE.DIGEST": {NODE}}


def test_a_probe_leaves_nothing_and_changes_nothing(sparks):
    look = (
        "find / -xdev -newer /run/mark ! -path '/proc/*' ! -path '/run/*' ! -path '/var/log/*' -type f; "
        "ps -e | grep -c python || true"
    )
    sparks.on(NODE, "touch /run/mark; sleep 0.05")
    assert check(sparks).returncode == 0
    assert sparks.on(NODE, look).split() == ["0"]
