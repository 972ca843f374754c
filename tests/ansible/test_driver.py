"""The role ``nvidia_driver``: pinned, loaded by reboots of one node after the other, only verified on DGX OS."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ansible_rig import Nodes, Played, make_nodes
from apt_rig import Repository, make_repository

NAMES = ["melchior", "balthasar"]
BUILD = "0ubuntu0.24.04.1"
OLD, NEW = "570.1.1", "580.173.02"
# A boot takes what is installed, and has a number of its own, as far as this machine's kernel can be hidden.
SHUTDOWN = """#!/bin/sh
echo reboot >> /var/log/reboots
cp /usr/share/driver /sys/module/nvidia/version
cat /proc/sys/kernel/random/uuid > /run/boot_id
"""
BARE = """
mount -t tmpfs none /sys/module; mkdir /sys/module/nvidia; echo 570.1.1 > /sys/module/nvidia/version
cat /proc/sys/kernel/random/uuid > /run/boot_id; mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
cat > /usr/sbin/shutdown <<'END'
SHUTDOWN
END
chmod +x /usr/sbin/shutdown
""".replace("SHUTDOWN", SHUTDOWN)
UNIT = "[Service]\nExecStart=/usr/bin/NONE\n[Install]\nWantedBy=multi-user.target\n"


class Site:
    """Two nodes of eight B300s with an older driver loaded, so to say."""

    def __init__(self, nodes: Nodes, repository: Repository) -> None:
        self.nodes, self.repository = nodes, repository

    def play(self, *words: str, limit: str = ",".join(NAMES), **options: object) -> Played:
        said = {
            "gpus": {"type": "b300", "count": 8},
            "nvidia_driver_version": NEW,
            "nvidia_driver_source": self.repository.source(),
            "nvidia_driver_nvlsm_version": "2025.10.14-1",
            **options,
        }
        return self.nodes.play("playbooks/nvidia_driver.yml", "-e", json.dumps(said), "--limit", limit, *words)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    for nodes in make_nodes(tmp_path_factory, "driver", 2):
        for repository in make_repository(nodes, tmp_path_factory.mktemp("driver")):
            unit = "usr/lib/systemd/system/{}.service"
            for branch, version in (("580", NEW), ("590", "590.48.01")):
                full = f"{version}-{BUILD}"
                files = {"usr/share/driver": f"{version}\n", unit.format("nvidia-persistenced"): UNIT}
                replaced = {"conflicts": "driver", "provides": "driver"}
                repository.add(f"nvidia-headless-{branch}-server-open", full, files, **replaced)
                repository.add(f"nvidia-utils-{branch}-server", full)
                repository.add(f"nvidia-fabricmanager-{branch}", full, {unit.format("nvidia-fabricmanager"): UNIT})
            repository.add("nvlsm", "2025.10.14-1")
            repository.add("nvlsm", "2026.01.01-1")
            repository.publish()
            for name in NAMES:
                nodes.on(name, BARE)
            yield Site(nodes, repository)


@pytest.mark.ansible
def test_the_driver_is_pinned_and_loaded_by_a_reboot_of_one_node_after_the_other(site):
    told = site.play("--check", "--diff")
    assert told.code == 0, told.text
    assert f"nvidia-headless-580-server-open={NEW}-{BUILD}" in told.words
    assert site.nodes.on(NAMES[0], "ls /usr/share/driver 2>/dev/null || true") == ""
    asked = site.play()
    assert asked.code == 2
    assert f"balthasar has driver {NEW} installed and {OLD} loaded: reboot it, or run this again" in asked.words, (
        asked.text
    )
    held = site.nodes.on(NAMES[1], "apt-mark showhold").split()
    assert held == ["nvidia-fabricmanager-580", "nvidia-headless-580-server-open", "nvidia-utils-580-server", "nvlsm"]
    assert "2025.10.14-1" in site.nodes.on(NAMES[1], "dpkg-query --show nvlsm")
    assert "nvidia-" in site.nodes.on(NAMES[1], "apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert site.nodes.on(NAMES[0], "cat /var/log/reboots 2>/dev/null || true") == ""
    booted = site.play(nvidia_driver_reboot=True)
    assert booted.code == 0, booted.text
    assert booted.text.count("PLAY [NVIDIA driver]") == 2
    for name in NAMES:
        assert site.nodes.on(name, "cat /var/log/reboots; cat /sys/module/nvidia/version").split() == ["reboot", NEW]
        site.nodes.on(name, "systemctl is-active nvidia-fabricmanager; systemctl is-enabled nvidia-persistenced")
    again = site.play()
    assert again.code == 0, again.text
    assert again.changed == dict.fromkeys(NAMES, 0)


@pytest.mark.ansible
def test_a_node_that_serves_keeps_its_driver_and_a_version_that_is_not_there_is_told(site):
    [name, other] = NAMES
    site.nodes.on(
        name, "cp /bin/sleep /tmp/vllm; (setsid /tmp/vllm 600 </dev/null >/dev/null 2>&1 & echo $! > /tmp/pid)"
    )
    try:
        refused = site.play(limit=name, nvidia_driver_version="590.48.01", nvidia_driver_reboot=True)
    finally:
        site.nodes.on(name, "kill $(cat /tmp/pid)")
    assert refused.code == 2
    assert f"its driver ({NEW}) is to become 590.48.01 (nvidia-headless-590-server-open," in refused.words, refused.text
    assert site.nodes.on(name, "cat /usr/share/driver").strip() == NEW
    wrong = site.play(limit=name, nvidia_driver_version="580.9.9")
    assert wrong.code == 2
    missing = f"no nvidia-headless-580-server-open 580.9.9-{BUILD}, but {NEW}-{BUILD}"
    assert missing in wrong.words, wrong.text
    site.nodes.on(other, """echo 'DGX_PRETTY_NAME="NVIDIA DGX Spark"' > /etc/dgx-release""")
    spark = site.play(limit=other, nvidia_driver_version="590.48.01")
    assert spark.code == 2
    assert f"balthasar (NVIDIA DGX Spark) has driver {NEW} loaded; wanted 590.48.01." in spark.words, spark.text
    assert "Nothing was installed" in spark.words
    fits = site.play(limit=other)
    assert fits.code == 0, fits.text
    assert fits.changed == {other: 0}


@pytest.mark.parametrize(
    ("module", "closed"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.173.02  Release Build", False),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.173.02  Tue Jul  1 00:00:00 UTC 2026", True),
        ("", False),
    ],
)
def test_the_closed_module_is_known_by_its_own_words(program, tmp_path, module, closed):
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(module)
    assert program("nvidia_driver", "driver").look(str(tmp_path)) == {"dgx": "", "loaded": "", "closed": closed}
