"""The role ``rdma_lanes``: addresses and MTU as the inventory says, and packets of that size in every direction."""

from __future__ import annotations

import pytest

from ansible_rig import Nodes

LANE = "enP2p1s0f1np1"
PAIR = ("--limit", "melchior,casper")


@pytest.fixture(scope="module")
def ready(nodes: Nodes) -> Nodes:
    """Two nodes whose lanes the role has brought up."""
    for name in ("melchior", "casper"):
        nodes.on(name, f"ip addr flush dev {LANE}; ip addr flush dev enp1s0f1np1; rm -f /etc/netplan/*")
    told = nodes.play("playbooks/rdma_lanes.yml", "--check", "--diff", *PAIR)
    assert told.code == 0, told.text
    assert all(told.changed.values())
    assert "+      addresses: [10.42.1.3/24]" in told.text
    assert nodes.on("casper", f"ip -br -4 addr show {LANE}; ls /etc/netplan").split()[2:] == []
    first = nodes.play("playbooks/rdma_lanes.yml", *PAIR)
    assert first.code == 0, first.text
    return nodes


def applied(nodes: Nodes) -> int:
    return len(nodes.on("casper", "cat /var/log/netplan-apply").splitlines())


@pytest.mark.ansible
def test_lanes_come_up_with_their_mtu_and_no_link_local_address_and_stay(ready):
    link = ready.on("casper", f"ip addr show {LANE}")
    assert "mtu 9000" in link
    assert "inet 10.42.1.3/24" in link
    assert "fe80" not in link
    assert ready.on("casper", "stat -c %a /etc/netplan/40-recipe-lanes.yaml").strip() == "600"
    times = applied(ready)
    again = ready.play("playbooks/rdma_lanes.yml", *PAIR)
    assert again.code == 0, again.text
    assert again.changed == {"melchior": 0, "casper": 0}
    assert applied(ready) == times


@pytest.mark.ansible
def test_a_lane_that_has_drifted_is_mended_but_not_under_an_engine(ready):
    ready.on("casper", f"ip link set {LANE} mtu 1500; ip addr add 10.42.9.9/24 dev {LANE}")
    ready.on(
        "casper", "cp /bin/sleep /tmp/vllm; (setsid /tmp/vllm 600 </dev/null >/dev/null 2>&1 & echo $! > /tmp/pid)"
    )
    try:
        refused = ready.play("playbooks/rdma_lanes.yml", *PAIR)
    finally:
        ready.on("casper", "kill $(cat /tmp/pid)")
    assert refused.code == 2
    assert "casper is serving (vLLM runs as process" in refused.words
    assert f"{LANE} has MTU 1500, not 9000; {LANE} has 10.42.1.3/24, 10.42.9.9/24, not 10.42.1.3/24" in refused.words
    assert "mtu 1500" in ready.on("casper", f"ip addr show {LANE}")
    mended = ready.play("playbooks/rdma_lanes.yml", *PAIR)
    assert mended.code == 0, mended.text
    assert mended.changed["melchior"] == 0 < mended.changed["casper"]
    link = ready.on("casper", f"ip addr show {LANE}")
    assert "mtu 9000" in link
    assert "10.42.9.9" not in link


@pytest.mark.ansible
def test_a_switch_that_drops_jumbo_packets_is_found_on_its_lane_in_both_directions(ready):
    switch = ["nsenter", f"--net={ready.folder}/ns/switch", "ip", "link", "set", "l1n3", "mtu"]
    try:
        assert ready.call("exec", "--", *switch, "1500").returncode == 0
        played = ready.play("playbooks/rdma_lanes.yml", *PAIR)
    finally:
        ready.call("exec", "--", *switch, "9216")
    assert played.code == 2
    assert f"melchior: {LANE}: no packet of 9000 bytes to casper (10.42.1.3): no answer" in played.words
    assert f"casper: {LANE}: no packet of 9000 bytes to melchior (10.42.1.1): no answer" in played.words
    assert "enp1s0f1np1: no packet" not in played.words


@pytest.mark.ansible
def test_a_second_file_that_names_a_lane_and_an_address_that_netplan_refuses_are_told(ready):
    ready.on(
        "casper",
        f"printf 'network:\\n  ethernets:\\n    \"{LANE}\":\\n      dhcp4: true\\n' > /etc/netplan/40-cx7.yaml",
    )
    try:
        played = ready.play("playbooks/rdma_lanes.yml", *PAIR)
    finally:
        ready.on("casper", "rm /etc/netplan/40-cx7.yaml")
    assert played.code == 2
    assert f"casper: /etc/netplan/40-cx7.yaml names {LANE}. netplan would merge it" in played.words
    wrong = '{"lanes": [{"interface": "enP2p1s0f1np1", "address": "10.42.1.3/99"}]}'
    refused = ready.play("playbooks/rdma_lanes.yml", "-e", wrong, "--limit", "casper")
    assert refused.code == 2
    assert "10.42.1.3/99" in refused.words
    assert "10.42.1.3/24" in ready.on("casper", "cat /etc/netplan/40-recipe-lanes.yaml")
