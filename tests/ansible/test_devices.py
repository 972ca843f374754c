"""The role ``rdma_devices``: modules, devices, limits and kernel settings; nothing restarts under an engine."""

from __future__ import annotations

import pytest

from ansible_rig import Nodes

NODE = "balthasar"
PLAY = ("playbooks/rdma_devices.yml", "--limit", NODE)
LIMITED = ["16000", "4194304"]
UNIT = "[Service]\nExecStart=/bin/sleep 1000\n"
LIMITS = (
    "grep -e 'Max locked memory' -e 'Max open files' /proc/$(systemctl show -p MainPID --value docker | head -1)/limits"
)
SERVE = "cp /bin/sleep /tmp/vllm; (setsid /tmp/vllm 600 </dev/null >/dev/null 2>&1 & echo $! > /tmp/pid)"


@pytest.fixture(scope="module")
def ready(nodes: Nodes) -> Nodes:
    """A node that the role has run on, with a docker that ran before it did."""
    nodes.on(NODE, f"printf '{UNIT}' > /etc/systemd/system/docker.service; ulimit -n 1024; systemctl start docker")
    told = nodes.play(*PLAY, "--check", "--diff")
    assert told.code == 0, told.text
    assert "+LimitMEMLOCK=4194304" in told.text
    assert "module rdma_ucm is not loaded" in told.text
    assert nodes.on(NODE, "ls /sys/module; find /etc -name '90-recipe*'") == ""
    first = nodes.play(*PLAY)
    assert first.code == 0, first.text
    yield nodes
    nodes.on(NODE, "systemctl stop docker; rm /etc/systemd/system/docker.service")


def open_files(nodes: Nodes) -> list[str]:
    """Soft limits of the docker that runs: files, memory."""
    return [line.split()[3] for line in nodes.on(NODE, LIMITS).splitlines()]


@pytest.mark.ansible
def test_modules_devices_limits_and_settings_hold_now_and_a_second_run_changes_nothing(ready):
    assert ready.on(NODE, "ls /sys/module").split() == ["ib_uverbs", "mlx5_ib", "rdma_ucm"]
    assert ready.on(NODE, "stat -c %a /dev/infiniband/*").split() == ["666", "666", "666"]
    assert ready.on(NODE, "cat /proc/sys/net/ipv4/conf/all/arp_announce").strip() == "2"
    assert open_files(ready) == LIMITED
    # A login: limits.d is read by PAM.
    assert ready.on(NODE, "ulimit -l; ulimit -n").split() == ["4096", "16000"]
    calls = ready.on(NODE, "cat /var/log/modprobe /var/log/udevadm; grep -c restart /var/log/systemctl")
    again = ready.play(*PLAY)
    assert again.changed == {NODE: 0}, again.text
    assert ready.on(NODE, "cat /var/log/modprobe /var/log/udevadm; grep -c restart /var/log/systemctl") == calls


@pytest.mark.ansible
def test_without_a_limit_services_and_logins_are_told_so(ready):
    told = ready.play(*PLAY, "--check", "--diff", "-e", "rdma_devices_memlock=unlimited")
    for line in ("+LimitMEMLOCK=infinity", "+* - memlock unlimited", "+root - memlock unlimited"):
        assert line in told.text


@pytest.mark.ansible
def test_what_has_drifted_is_mended(ready):
    ready.on(NODE, "rm -r /dev/infiniband /sys/module/*; echo 0 > /proc/sys/net/ipv4/conf/all/arp_ignore")
    played = ready.play(*PLAY)
    assert played.code == 0, played.text
    for told in ("no /dev/infiniband/uverbs*", "no /dev/infiniband/rdma_cm", "arp_ignore is 0, not 1"):
        assert told in played.words
    assert ready.on(NODE, "stat -c %a /dev/infiniband/*").split() == ["666", "666", "666"]


@pytest.mark.ansible
def test_a_service_is_not_restarted_under_an_engine_but_when_the_node_is_idle(ready):
    drop = "/etc/systemd/system/docker.service.d/90-recipe-limits.conf"
    ready.on(NODE, f"rm {drop}; ulimit -n 1024; systemctl restart docker")
    assert open_files(ready) != LIMITED
    ready.on(NODE, SERVE)
    restarts = ready.on(NODE, "grep -c -e restart -e reload /var/log/systemctl")
    try:
        busy = ready.play(*PLAY)
    finally:
        ready.on(NODE, "kill $(cat /tmp/pid)")
    assert busy.code == 0, busy.text
    assert f"{NODE} is busy (vLLM runs as process" in busy.words
    assert "docker runs with nofile 1024, not 16000" in busy.words
    assert ready.on(NODE, "grep -c -e restart -e reload /var/log/systemctl") == restarts
    idle = ready.play(*PLAY)
    assert idle.code == 0, idle.text
    assert open_files(ready) == LIMITED
    assert ready.play(*PLAY).changed == {NODE: 0}


@pytest.mark.ansible
def test_a_module_that_the_kernel_has_not_is_told_with_what_to_do(ready):
    played = ready.play(*PLAY, "-e", '{"rdma_devices_modules": ["ib_none"]}')
    assert played.code == 2
    assert f"{NODE}: modprobe: FATAL: Module ib_none not found in directory" in played.words, played.text
    assert "Install the kernel's extra modules" in played.words
    ready.play(*PLAY)


@pytest.mark.ansible
def test_a_node_without_rdma_is_told_how_to_say_so_and_gets_the_rest(ready):
    ready.on(
        NODE, "rm -rf /dev/infiniband; mv /usr/local/sbin/modprobe /root/; printf '#!/bin/true' > /usr/bin/modprobe"
    )
    ready.on(NODE, "chmod +x /usr/bin/modprobe; hash -r")
    try:
        refused = ready.play(*PLAY)
        assert refused.code == 2
        assert "no /dev/infiniband/uverbs*; no /dev/infiniband/rdma_cm" in refused.words, refused.text
        assert "A node that has no RDMA: rdma_devices_modules: []" in refused.words
        without = ready.play(*PLAY, "-e", '{"rdma_devices_modules": []}')
        assert without.code == 0, without.text
        assert ready.play(*PLAY, "-e", '{"rdma_devices_modules": []}').changed == {NODE: 0}
    finally:
        ready.on(NODE, "mv /root/modprobe /usr/local/sbin/; rm /usr/bin/modprobe")
        ready.play(*PLAY)


def test_a_gb10_is_not_given_the_module_that_it_refuses(program, monkeypatch):
    devices = program("rdma_devices", "devices")
    monkeypatch.setattr(devices, "run", lambda *argv: "NVIDIA GB10\n")
    (told,) = devices.refused(["nvidia-peermem"])
    assert "a GB10 has no GPUDirect RDMA" in told
    assert devices.refused(["ib_uverbs"]) == []
    monkeypatch.setattr(devices, "run", lambda *argv: "NVIDIA B300\n")
    assert devices.refused(["nvidia_peermem"]) == []
