"""Nodes to run the playbooks on, for tests: scripts/mini-nodes in a scratch folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import require

ROOT = Path(__file__).parents[1]
ANSIBLE = ROOT / "ansible"
BIN = Path(sys.executable).parent
MINI_NODES = ROOT / "scripts" / "mini-nodes"
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)
# What the rig differs in from the shipped inventories. Limits are such as root of a container may set.
HERE = (
    "-e",
    '{"preflight_architectures": ["x86_64", "aarch64"], "model_weights_models": [], "rdma_devices_memlock": "4096",'
    ' "rdma_devices_nofile": 16000}',
)


@dataclass(frozen=True)
class Played:
    """One run of ansible-playbook. ``text``: what it printed."""

    code: int
    text: str

    @property
    def changed(self) -> dict[str, int]:
        """How many tasks changed something, by node."""
        return {name: int(changed) for name, _, changed, _, _ in RECAP.findall(self.text)}

    @property
    def words(self) -> str:
        """The text without its line breaks, which fall anywhere."""
        return " ".join(self.text.split())


@dataclass(frozen=True)
class Nodes:
    """Nodes that are up."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """What scripts/mini-nodes and Ansible are to find in their environment."""
        env = {**os.environ, "MINI_NODES_DIR": str(self.folder), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
        return env | {"ANSIBLE_HOME": str(self.folder.parent / "ansible-home")}

    def call(self, *words: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run scripts/mini-nodes."""
        argv = [str(MINI_NODES), *map(str, words)]
        return subprocess.run(
            argv, env=self.env, cwd=ANSIBLE, timeout=timeout, capture_output=True, text=True, check=False
        )

    @contextmanager
    def start(self, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run scripts/mini-nodes beside the test, until the context ends."""
        with (self.folder.parent / "started.log").open("ab") as log:
            process = subprocess.Popen([str(MINI_NODES), *map(str, words)], env=self.env, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)

    def on(self, node: str, script: str) -> str:
        """What a few lines of sh print on a node; it must succeed."""
        done = self.call("exec", "--on", node, "--", "sh", "-ec", script)
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout

    def play(self, playbook: str, *words: str, inventory: str = "spark4", timeout: float = 300) -> Played:
        """Run a playbook with a shipped inventory, reached as the rig's nodes are."""
        argv = [str(Path(sys.executable).with_name("ansible-playbook")), playbook]
        argv += ["-i", f"inventory/{inventory}.example.yml", "-i", str(self.folder / "inventory.yml"), *HERE, *words]
        done = self.call("exec", "--", *argv, timeout=timeout)
        return Played(done.returncode, done.stdout + done.stderr)


def require_ansible() -> None:
    """Skip, or fail where RECIPE_REQUIRE names ansible, unless this machine can hold the nodes."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    programs = ("debootstrap", "ip", "tc", "nsenter", "ssh", "ssh-keygen")
    missing = [name for name in programs if not shutil.which(name, path=path)]
    require("ansible", not missing, f"no {', '.join(missing)}: apt-get install debootstrap iproute2 openssh-client")
    playbook = Path(sys.executable).with_name("ansible-playbook")
    require("ansible", playbook.exists(), "no ansible-playbook: pip install --group ansible")
    require("ansible", os.geteuid() == 0, "the nodes are namespaces and mounts, and this is not root")


def make_nodes(factory: pytest.TempPathFactory, name: str, count: int, *options: str) -> Iterator[Nodes]:
    """Nodes that are up, and gone afterwards."""
    require_ansible()
    nodes = Nodes(factory.mktemp(name) / "rig")
    done = nodes.call("up", str(count), *options, timeout=1200)
    assert done.returncode == 0, done.stderr
    try:
        yield nodes
    finally:
        done = nodes.call("down")
        assert done.returncode == 0, done.stderr


def lanes(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(node, interface, address) of every lane, as the rig's inventory has them."""
    for number, name in enumerate(names, 1):
        for lane, interface in enumerate(("enp1s0f1np1", "enP2p1s0f1np1")):
            yield name, interface, f"10.42.{lane}.{number}"
