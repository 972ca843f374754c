"""The whole of ``site.yml`` on four bare nodes: checked, run, run again."""

from __future__ import annotations

import json

import pytest

NAMES = ("melchior", "balthasar", "casper", "artaban")
OPTIONS = json.dumps({"model_weights_models": [{"path": "/models/site"}], "model_weights_margin_gb": 0})


@pytest.mark.ansible
def test_bare_nodes_are_ready_after_one_run_and_a_second_changes_nothing(nodes):
    for name in NAMES:
        nodes.on(name, "rm -f /etc/netplan/*; for i in enp1s0f1np1 enP2p1s0f1np1; do ip addr flush dev $i; done")
    nodes.on("melchior", "mkdir -p /models/site; head -c 300000 /dev/urandom > /models/site/model.safetensors")
    told = nodes.play("site.yml", "--check", "--diff", "-e", OPTIONS)
    assert told.code == 0, told.text
    assert all(told.changed.values())
    for name in NAMES:
        assert nodes.on(name, "ls /etc/netplan; ip -br -4 addr show enp1s0f1np1").split()[2:] == []
    first = nodes.play("site.yml", "-e", OPTIONS)
    assert first.code == 0, first.text
    assert set(first.changed) == set(NAMES)
    assert all(first.changed.values())
    again = nodes.play("site.yml", "-e", OPTIONS)
    assert again.code == 0, again.text
    assert again.changed == dict.fromkeys(NAMES, 0)
    after = nodes.play("site.yml", "--check", "-e", OPTIONS)
    assert after.changed == dict.fromkeys(NAMES, 0)
