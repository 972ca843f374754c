"""The role ``nvidia_driver``: pinned, loaded by reboots of one node after the other, only verified on DGX OS."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ansible_rig import Nodes, Played, make_nodes
from apt_rig import Repository, make_repository
from submit_support import wait_until

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
# Slurm of two nodes without cgroups, controlled by the second.
SLURM = {
    "slurm_cluster": "magi",
    "slurm_nodes": NAMES,
    "slurm_controller": NAMES[1],
    "slurm_cgroup": {"CgroupPlugin": "cgroup/v1"},
    "slurm_settings": {"ProctrackType": "proctrack/pgid", "TaskPlugin": "task/none"},
    "gpus": {},
}
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
                imex = UNIT.replace("/usr/bin/NONE", "/bin/sleep infinity")
                repository.add(f"nvidia-imex-{branch}", full, {unit.format("nvidia-imex"): imex})
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


@pytest.mark.ansible
def test_a_node_of_slurm_gets_no_job_between_two_drivers(site):
    [name, head] = NAMES
    words = ("playbooks/slurm.yml", "-e", json.dumps(SLURM), "--limit", ",".join(NAMES))
    made = site.nodes.play(*words)
    assert made.code == 0, made.text

    def state() -> str:
        return site.nodes.on(head, f"sinfo --noheader --nodes={name} --format='%T %E'").strip()

    def becomes(wanted: str) -> None:
        """Slurm asks a node that came back in its own time: `idle*` until then."""
        wait_until(lambda: state() == wanted, 90, wanted)

    def upgrade(version: str, **options: object) -> Played:
        slurm = {"slurm_cluster": "magi", "gpus": {}, "nvidia_driver_version": version}
        return site.play(limit=name, **{**slurm, **options})

    site.nodes.on(name, f"echo {OLD} > /sys/module/nvidia/version")
    site.nodes.on(head, f"sbatch --exclusive --nodelist={name} --output=/dev/null --wrap 'sleep 600'")
    site.nodes.on(name, "for i in $(seq 100); do pgrep -x sleep >/dev/null && exit; sleep 0.1; done; exit 1")
    busy = upgrade("590.48.01")
    assert busy.code == 2
    assert f"{name} is serving (Slurm's job 1 runs), and its driver ({OLD}) is to become 590.48.01" in busy.words, (
        busy.text
    )
    becomes("allocated none")
    # Told to wait, it waits for the job, and lets no other begin; not told to reboot, it leaves the node drained.
    with site.nodes.start(
        "exec",
        "--on",
        head,
        "--",
        "sh",
        "-c",
        f"until sinfo -hn {name} -o %T | grep drain; do sleep 0.2; done; scancel 1",
    ):
        waited = upgrade("590.48.01", nvidia_driver_drain_wait_s=300)
    assert waited.code == 2
    assert "590.48.01 installed and" in waited.words, waited.text
    assert "(Slurm gives it no jobs until then)" in waited.words
    becomes("drained recipe-toolkit: NVIDIA driver 590.48.01")
    booted = upgrade("590.48.01", nvidia_driver_reboot=True)
    assert booted.code == 0, booted.text
    becomes("idle none")
    # Of the branch before, which was held, nothing is left that this one has.
    held = site.nodes.on(name, "apt-mark showhold; dpkg --get-selections 'nvidia-*'")
    assert {"nvidia-headless-590-server-open", "nvidia-utils-590-server"} <= set(held.split())
    assert "580-server" not in held, held
    assert upgrade("590.48.01").changed == {name: 0}
    # What a person has drained is that person's.
    site.nodes.on(head, f"scontrol update nodename={name} state=drain reason='new cables'")
    site.nodes.on(name, f"echo {OLD} > /sys/module/nvidia/version")
    theirs = upgrade("590.48.01", nvidia_driver_reboot=True)
    assert theirs.code == 0, theirs.text
    becomes("drained new cables")
    site.nodes.on(head, "systemctl stop slurmctld")
    site.nodes.on(name, f"echo {OLD} > /sys/module/nvidia/version")
    silent = upgrade("590.48.01", nvidia_driver_reboot=True)
    assert silent.code == 2
    assert f"{name} cannot be drained before its driver changes: " in silent.words, silent.text


@pytest.mark.ansible
def test_imex_that_was_not_started_anew_by_a_play_that_failed_is_by_the_next(site):
    name = NAMES[0]
    rack = {"gpus": {"type": "gb300", "count": 4}, "nvidia_driver_version": "590.48.01"}
    site.nodes.on(name, "systemctl stop slurmd || true; echo 590.48.01 > /sys/module/nvidia/version")
    first = site.play(limit=name, **rack, nvidia_driver_imex_nodes=[name])
    assert first.code == 0, first.text
    pid = site.nodes.on(name, "systemctl show --property=MainPID --value nvidia-imex | head -1")
    lacking = {"driver": ["nvidia-none"], "imex": ["nvidia-imex-590"]}
    failed = site.play(limit=name, **rack, nvidia_driver_imex_nodes=NAMES, nvidia_driver_packages=lacking)
    assert failed.code == 2, failed.text
    assert site.nodes.on(name, "cat /etc/nvidia-imex/nodes_config.cfg").split() == ["10.91.0.1", "10.91.0.2"]
    site.nodes.on(name, "touch -d '+3 seconds' /etc/nvidia-imex/nodes_config.cfg")
    again = site.play(limit=name, **rack, nvidia_driver_imex_nodes=NAMES)
    assert again.code == 0, again.text
    assert site.nodes.on(name, "systemctl show --property=MainPID --value nvidia-imex | head -1") != pid
    site.nodes.on(name, "touch -d @1 /etc/nvidia-imex/nodes_config.cfg")
    assert site.play(limit=name, **rack, nvidia_driver_imex_nodes=NAMES).changed == {name: 0}


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
    assert program("nvidia_driver", "driver").look(str(tmp_path)) == {
        "dgx": "",
        "loaded": "",
        "closed": closed,
        "stale": False,
    }
