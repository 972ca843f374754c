"""docs/nodes.md, followed to the letter from bare nodes to green, and what it says of roles."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from ansible_rig import ANSIBLE, BIN, RECAP, ROOT
from container_rig import fill, stub
from image_rig import send

PAGE = (ROOT / "docs" / "nodes.md").read_text()
NAMES = ("melchior", "balthasar", "casper", "artaban")
# The rig has no GPU and no RDMA: these say what a Spark would.
SHIMS = {
    "nvidia-smi": 'echo "0, NVIDIA GB10, 580.95.05, [N/A], [N/A]"',
    "ibv_devinfo": "echo active_mtu: 4096",
    "apt-mark": "echo nvidia-driver-580-open",
}
IMAGE = {"reference": f"vllm/vllm-openai:1@sha256:{'1' * 64}", "path": "/images/site/vllm.sqsh"}
PROFILE = {
    "schema": 1,
    "name": "mysite",
    "scheduler": "slurm",
    "runs": "/runs",
    "env": {"NCCL_NET": "IB", "NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1"},
    "check": {
        "hosts": list(NAMES),
        # There is no NVIDIA module, journal or desktop to look at, and this machine may not raise its limits.
        "skip": ["DRIVER.LOADED", "GPU.KLOG", "GPU.LOWPOWER", "MEM.GUARD", "LIMIT.MEMLOCK", "LIMIT.NOFILE"],
        "lanes": {"enp1s0f1np1": "10.42.0.0/24", "enP2p1s0f1np1": "10.42.1.0/24"},
    },
}


def section(title: str) -> str:
    """What stands under a heading."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands() -> list[str]:
    """The walk-through's commands."""
    block = re.search(r"```text\n(.*?)```", section("From bare nodes to green"), re.DOTALL)
    assert block
    return block[1].splitlines()


def make_mine(path: Path, rig: Path, source: dict[str, str]) -> None:
    """Put the rig's addresses, and what it is, into the inventory that the page's command has written."""
    mine, here = yaml.safe_load(path.read_text()), yaml.safe_load(rig.read_text())
    mine["all"]["vars"] |= here["all"]["vars"] | {"preflight_architectures": ["x86_64", "aarch64"]}
    nodes = mine["all"]["children"]["nodes"]
    for name, found in here["all"]["children"]["nodes"]["hosts"].items():
        nodes["hosts"][name] |= found
    nodes["vars"] |= {"model_weights_models": [{"path": "/models/site"}], "model_weights_margin_gb": 0}
    nodes["vars"] |= {"container_toolkit_source": source, "container_toolkit_docker_source": source}
    nodes["vars"] |= {"images_runtime": "enroot", "images_list": [IMAGE], "images_size_gb": 0.1, "images_margin_gb": 0}
    nodes["vars"] |= {"rdma_devices_memlock": "4096", "rdma_devices_nofile": 16000}
    del nodes["vars"]["preflight_architectures"]
    path.write_text(json.dumps(mine))


def changed(text: str) -> dict[str, int]:
    return {name: int(count) for name, _, count, _, _ in RECAP.findall(text)}


@pytest.mark.ansible
def test_the_walk_through_leads_from_bare_nodes_to_green(nodes, repository, tmp_path):
    fill(repository)
    send(nodes, "melchior", {"/usr/local/sbin/enroot": stub("enroot")})
    for name in NAMES:
        nodes.on(name, "rm -f /etc/netplan/*; for i in enp1s0f1np1 enP2p1s0f1np1; do ip addr flush dev $i; done")
        for program, text in SHIMS.items():
            path = f"/usr/local/sbin/{program}"
            nodes.on(name, f"printf '#!/bin/sh\n%s\n' {shlex.quote(text)} > {path}; chmod +x {path}; mkdir -p /runs")
    nodes.on("melchior", "mkdir -p /models/site; head -c 300000 /dev/urandom > /models/site/model.safetensors")
    (tmp_path / "recipes" / "clusters").mkdir(parents=True)
    (tmp_path / "recipes" / "clusters" / "mysite.yaml").write_text(json.dumps(PROFILE))
    ssh = tmp_path / "bin" / "ssh"  # what stands in ~/.ssh/config elsewhere
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {nodes.folder / "ssh_config"} "$@"\n')
    ssh.chmod(0o755)
    told = {}
    for command in commands():
        if not command.startswith("pip install"):
            script = f"cd {shlex.quote(str(tmp_path))}; PATH={ssh.parent}:{BIN}:$PATH; {command.partition('#')[0]}"
            done = nodes.call("exec", "--", "sh", "-ec", script, timeout=600)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            told[command] = done.stdout
        if "--example" in command:
            make_mine(tmp_path / "mine.yml", nodes.folder / "inventory.yml", repository.source("rig-toolkit"))
        if "--check" in command:
            for name in NAMES:
                assert nodes.on(name, "ls /etc/netplan; ip -br -4 addr show enp1s0f1np1").split()[2:] == []
    listed, _, preflight, dry, first, again, green = told.values()
    assert "model_weights" in listed
    assert changed(preflight) == dict.fromkeys(NAMES, 0)
    assert set(changed(first)) == set(NAMES)
    assert all(changed(dry).values())
    assert all(changed(first).values())
    assert changed(again) == dict.fromkeys(NAMES, 0)
    for command, out in told.items():  # what the page promises beside a command is what it prints
        if promise := re.search(r"# .*?((?:changed=0|fit: ).*?)(?: on every node)?$", command):
            assert promise[1] in out
    assert "fit: 4 nodes" in green


def test_every_step_has_a_section_with_its_undoing_and_every_section_of_a_role_is_a_step():
    steps = [
        Path(play["ansible.builtin.import_playbook"]).stem
        for play in yaml.safe_load((ANSIBLE / "site.yml").read_text())
    ]
    titles = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert sorted(title for title in titles if (ANSIBLE / "roles" / title).exists()) == sorted(steps)
    for step in set(steps) - {"preflight"}:
        assert "Undo" in section(step), step
