"""The role ``container_toolkit``: real apt; docker, the toolkit and Slurm are stubs that check what they are given."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ansible_rig import Nodes, Played
from apt_rig import Repository
from container_rig import SMI, TOOLKIT, UNIT, fill, stub

pytestmark = pytest.mark.ansible

PAIR = ("melchior", "casper")


class Site:
    """Plays the role on two nodes, with the repository of the tests."""

    def __init__(self, nodes: Nodes, repository: Repository) -> None:
        self.nodes, self.repository = nodes, repository

    def play(
        self, *words: str, on: tuple[str, ...] = PAIR, book: str = "container_toolkit", **options: object
    ) -> Played:
        source = self.repository.source("rig-toolkit")
        given = {
            "container_toolkit_source": source,
            "container_toolkit_docker_source": source,
            "container_toolkit_version": "1.19.0-1",
            "rdma_devices_memlock": "unlimited",
            "rdma_devices_nofile": 1048576,
            **options,
        }
        return self.nodes.play(f"playbooks/{book}.yml", "-e", json.dumps(given), "--limit", ",".join(on), *words)

    def daemon(self, node: str) -> dict:
        return json.loads(self.nodes.on(node, "cat /etc/docker/daemon.json"))

    def calls(self) -> int:
        """How often docker was restarted on casper."""
        return int(self.nodes.on("casper", "grep -c 'restart docker' /var/log/systemctl || true"))


@pytest.fixture(scope="module")
def site(nodes: Nodes, repository: Repository):
    """Two nodes that the role has run on; on one, daemon.json held something before."""
    fill(repository)
    site = Site(nodes, repository)
    for name in PAIR:
        nodes.on(name, SMI)
    before = '{"insecure-registries": ["r:5000"], "runtimes": {"x": {"path": "y"}}}'
    nodes.on("casper", f"mkdir -p /etc/docker; echo '{before}' > /etc/docker/daemon.json")
    told = site.play("--check", "--diff")
    assert told.code == 0, told.text
    assert nodes.on("casper", "command -v docker nvidia-ctk || true; ls /etc/apt/sources.list.d") == ""
    first = site.play()
    assert first.code == 0, first.text
    yield site
    nodes.on("casper", "rm -f /etc/dgx-release")


def test_daemon_json_is_merged_never_overwritten_and_a_second_run_changes_nothing(site):
    for name in PAIR:
        daemon = site.daemon(name)
        assert daemon["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
        assert daemon["default-ulimits"]["memlock"] == {"Name": "memlock", "Soft": -1, "Hard": -1}
        assert daemon["log-opts"]["max-size"] == "100m"
    assert site.daemon("casper")["insecure-registries"] == ["r:5000"]
    assert site.daemon("casper")["runtimes"]["x"] == {"path": "y"}
    assert '"nvidia"' in site.nodes.on("casper", "docker info")
    assert "libcuda.so.580.95.05" in site.nodes.on("casper", "cat /var/run/cdi/nvidia.yaml")
    assert set(site.nodes.on("casper", "apt-mark showhold").split()) == set(TOOLKIT)
    calls = site.calls()
    again = site.play()
    assert again.changed == dict.fromkeys(PAIR, 0), again.text
    assert site.calls() == calls


def check(site: Site, folder: Path) -> set[str]:
    """The checks of ``recipe check`` that fail, each on casper alone."""
    profile = {
        "schema": 1, "name": "rig", "scheduler": "slurm", "runs": "/runs", "container": {"runtime": "docker"},
        "env": {"NCCL_NET": "IB", "NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1"}, "check": {"hosts": list(PAIR)},
    }  # fmt: skip
    (folder / "rig.yaml").write_text(json.dumps(profile))
    argv = [Path(sys.executable).with_name("recipe"), "check", "-c", folder / "rig.yaml", "--json"]
    argv += ["-F", site.nodes.folder / "ssh_config"]
    argv += ["--only", "RDMA.DEV,LIMIT.MEMLOCK,LIMIT.NOFILE,DOCKER.NVIDIA,DOCKER.STORE"]
    done = site.nodes.call("exec", "--", *argv)
    bad = [item for item in json.loads(done.stdout)["checks"] if item["status"] != "passed"]
    assert {item["status"] for item in bad} <= {"failed"}, bad
    assert {node for item in bad for finding in item["findings"] for node in finding["nodes"]} <= {"casper"}, bad
    return {item["id"] for item in bad}


DROP = "/etc/systemd/system/containerd.service.d/90-recipe-limits.conf"
FAULTS = {
    # Unloaded, as by an update of the driver: the devices go with their modules.
    "RDMA.DEV": "mv /dev/infiniband /dev/gone; rmdir /sys/module/ib_uverbs /sys/module/rdma_ucm",
    "LIMIT.MEMLOCK": f"sed -i s/infinity/8388608/ {DROP}",
    "LIMIT.NOFILE": f"sed -i s/1048576/1024/ {DROP}",
    "DOCKER.NVIDIA": "echo '{}' > /etc/docker/daemon.json; rm /var/run/cdi/nvidia.yaml; systemctl restart docker",
    "DOCKER.STORE": """echo '{"features": {"containerd-snapshotter": true}, "runtimes": {"nvidia": {"path": "x"}}}'"""
    " > /etc/docker/daemon.json; systemctl restart docker",
}


def test_each_fault_is_found_by_its_check_and_mended_by_its_role(site, tmp_path):
    for name in PAIR:
        unit = "/lib/systemd/system/containerd.service"
        site.nodes.on(name, f"printf '[Service]\\nExecStart=/none\\n' > {unit}; systemctl start containerd")
    assert site.play(book="rdma_devices").code == 0
    assert check(site, tmp_path) == set()
    found: set[str] = set()
    for name, make in FAULTS.items():
        site.nodes.on("casper", make)
        # daemon.json is written anew by the last two: one fault at a time of those.
        found = (found - {"DOCKER.NVIDIA"} if name == "DOCKER.STORE" else found) | {name}
        assert check(site, tmp_path) == found
    mended = site.play(book="rdma_devices")
    assert mended.code == 0, mended.text
    refused = site.play()
    assert refused.code == 2
    assert "docker keeps images in overlay2 on melchior, containerd on casper: one image would have" in refused.words
    chosen = site.play(container_toolkit_store="overlay2")
    assert chosen.code == 0, chosen.text
    site.nodes.on("casper", "rm -r /dev/gone")
    assert check(site, tmp_path) == set()
    assert site.daemon("casper")["features"] == {"containerd-snapshotter": False}


def test_docker_is_not_restarted_under_a_container(site):
    site.nodes.on("casper", "echo glm > /run/containers; echo '{}' > /etc/docker/daemon.json; systemctl restart docker")
    calls = site.calls()
    busy = site.play()
    assert busy.code == 0, busy.text
    assert (
        "casper is busy (container glm runs): docker is not restarted, though it knows no runtime nvidia" in busy.words
    )
    assert site.calls() == calls
    site.nodes.on("casper", "rm /run/containers")
    idle = site.play()
    assert idle.code == 0, idle.text
    assert site.calls() == calls + 1
    assert '"nvidia"' in site.nodes.on("casper", "docker info")


def test_a_description_of_another_driver_is_written_anew(site):
    site.nodes.on("casper", "echo 580.126.09 > /etc/rig-driver")
    played = site.play(on=("casper",))
    assert played.code == 0, played.text
    assert "describes the driver 580.95.05, and 580.126.09 is loaded" in played.words
    assert "libcuda.so.580.126.09" in site.nodes.on("casper", "cat /var/run/cdi/nvidia.yaml")


def test_a_daemon_json_that_is_broken_and_a_version_that_is_not_there_are_told(site):
    site.nodes.on("casper", "cp /etc/docker/daemon.json /run/kept; echo '{,' > /etc/docker/daemon.json")
    broken = site.play(on=("casper",))
    assert site.nodes.on("casper", "cat /etc/docker/daemon.json; mv /run/kept /etc/docker/daemon.json").strip() == "{,"
    assert broken.code == 2
    assert "casper: /etc/docker/daemon.json is not JSON: Expecting property name" in broken.words, broken.text
    wrong = site.play(on=("casper",), container_toolkit_version="9.9.9-1")
    assert wrong.code == 2
    assert "no nvidia-container-toolkit 9.9.9-1, but 1.19.0-1, 1.18.0-1" in wrong.words, wrong.text
    assert "Name another in container_toolkit_version" in wrong.words


def test_dgx_os_keeps_its_own_docker_and_toolkit(site):
    site.nodes.on("casper", "touch /etc/dgx-release; rm /etc/apt/sources.list.d/*; dpkg --remove --force-all docker.io")
    lacking = site.play(on=("casper",))
    site.nodes.on("casper", "apt-get update -qq 2>/dev/null || true; ls /etc/apt/sources.list.d | wc -l")
    assert lacking.code == 2
    assert (
        "casper runs DGX OS, which brings docker and the NVIDIA Container Toolkit, and dockerd is not there"
        in lacking.words
    )
    for name, folder in (("docker", "/usr/bin"), ("dockerd", "/usr/sbin")):
        text = f"cat > {folder}/{name} <<'EOF'\n{stub(name)}EOF\nchmod +x {folder}/{name}"
        site.nodes.on("casper", text)
    site.nodes.on("casper", f"printf '{UNIT}' > /lib/systemd/system/docker.service; systemctl restart docker")
    pinned = site.play(on=("casper",), container_toolkit_version="1.18.0-1")
    assert pinned.code == 2
    assert "Toolkit 1.19.0, not 1.18.0-1: bring DGX OS to the release that has it" in pinned.words, pinned.text
    good = site.play(on=("casper",), container_toolkit_version="")
    assert good.code == 0, good.text
    assert site.nodes.on("casper", "ls /etc/apt/sources.list.d") == ""


def test_pyxis_is_built_for_the_slurm_that_is_there_and_again_for_another(site):
    node = "melchior"
    options = {
        "container_toolkit_enroot": True,
        "container_toolkit_enroot_url": f"{site.repository.url}/releases",
        "container_toolkit_pyxis_url": f"{site.repository.url}/releases",
        "container_toolkit_enroot_requires": [],
        "container_toolkit_pyxis_requires": ["rig-build"],
    }
    refused = site.play(on=(node,), **options)
    assert refused.code == 2
    assert f"{node} has no srun to build pyxis for: run the role slurm first" in refused.words, refused.text
    site.nodes.on(
        node, f"cat > /usr/bin/srun <<'EOF'\n{stub('srun')}EOF\nchmod +x /usr/bin/srun; echo 23.11.4 > /etc/rig-slurm"
    )
    gone = site.play(on=(node,), **options, container_toolkit_pyxis_version="9.9")
    assert gone.code == 2
    assert f"cannot download {site.repository.url}/releases/v9.9.tar.gz: Request failed" in gone.words, gone.text
    first = site.play(on=(node,), **options)
    assert first.code == 0, first.text
    assert site.nodes.on(node, "cat /usr/local/lib/slurm/spank_pyxis.so").strip() == "slurm 23.11.4"
    again = site.play(on=(node,), **options)
    assert again.changed == {node: 0}, again.text
    site.nodes.on(node, "echo 24.05.1 > /etc/rig-slurm")
    newer = site.play(on=(node,), **options)
    assert newer.code == 0, newer.text
    assert site.nodes.on(node, "cat /usr/local/lib/slurm/spank_pyxis.so").strip() == "slurm 24.05.1"


def test_a_merge_keeps_what_is_there_to_any_depth(program):
    toolkit = program("container_toolkit", "toolkit")
    have = {"a": {"b": {"c": 1}, "d": [1]}, "log-driver": "journald"}
    made = toolkit.complete(have, {"a": {"b": {"e": 2}}}, "containerd")
    assert made["a"] == {"b": {"c": 1, "e": 2}, "d": [1]}
    assert made["features"] == {"containerd-snapshotter": True}
    assert "log-opts" not in made, "its log driver is its own"
    assert have == {"a": {"b": {"c": 1}, "d": [1]}, "log-driver": "journald"}
