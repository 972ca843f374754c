"""The role ``preflight``: what cannot work is refused before anything changes, all of it at once."""

from __future__ import annotations

import pytest

LINKS = {"enP7s7": ["192.168.10.11/24"], "lane0": [], "lane1": [], "docker0": ["172.17.0.1/16"]}


def lanes(*addresses: str) -> list[dict[str, str]]:
    return [{"interface": f"lane{i}", "address": address} for i, address in enumerate(addresses)]


GOOD = {"a": lanes("10.42.0.1/24", "10.42.1.1/24"), "b": lanes("10.42.0.2/24", "10.42.1.2/24")}


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (lanes("10.42.0.1/24", "10.42.1.1/24"), None),
        (lanes("10.42.0.1/24", "10.42.0.9/24"), "lanes[1] (lane1): 10.42.0.9/24 is in the subnet of lanes[0] (lane0)"),
        (lanes("10.42.0.1/24", "10.42.1.300/24"), "lanes[1] (lane1): address: "),
        (lanes("10.42.0.1/24", "10.42.1.1"), "has no length of its network: such as 10.42.1.1/24"),
        (lanes("10.42.0.1/24", "192.168.10.7/24"), "is in the subnet of enP7s7 (192.168.10.11/24)"),
        (lanes("10.42.0.1/24", "172.17.9.1/24"), "is in the subnet of docker0"),
        (lanes("10.42.0.2/24", "10.42.1.1/24"), "lanes[0]: 10.42.0.2 is the address of b too"),
        (lanes("10.42.0.1/24", "10.42.2.1/24"), "is not in the subnet of b's (10.42.1.2/24): they cannot meet"),
        (lanes("10.42.0.1/24"), "has 1 lanes, b has 2"),
        ([*GOOD["a"][:1], {"interface": "enP7s7", "address": "10.42.1.1/24"}], "is the management interface"),
        ([*GOOD["a"][:1], {"interface": "lane9", "address": "10.42.1.1/24"}], "no such interface; there are docker0, "),
    ],
)
def test_lanes_that_cannot_carry_are_told_with_their_place(program, mine, told):
    problems = program("preflight", "judge").judge_lanes("a", {**GOOD, "a": mine}, LINKS, ["enP7s7"], 9000)
    if told is None:
        assert problems == []
    else:
        assert [told in problem for problem in problems].count(True) == 1, problems


@pytest.mark.ansible
def test_everything_that_is_wrong_is_told_at_once_and_nothing_has_changed(nodes):
    lanes = '[{"interface": "enP7s7", "address": "10.42.0.9/24"}, {"interface": "ib7", "address": "10.42.0.8/24"}]'
    wrong = f'{{"preflight_architectures": ["riscv64"], "lanes": {lanes}, "model_weights_modells": [],'
    wrong += ' "lanes_mtu": 4200, "gpus": {"type": "B300", "count": 8}}'
    played = nodes.play("site.yml", "-e", wrong, "--limit", "casper")
    assert played.code == 2
    for told in (
        "architecture x86_64; wanted riscv64",
        "no role reads the variable model_weights_modells: did you mean model_weights_models?",
        "no role reads the variable lanes_mtu: did you mean lane_mtu?",
        "gpus: type: B300 is to be written small: b300",
        "lanes[0] (enP7s7): is the management interface",
        "lanes[1] (ib7): no such interface; there are enP2p1s0f1np1, enP7s7, enp1s0f1np1, lo",
        "lanes[1] (ib7): 10.42.0.8/24 is in the subnet of lanes[0] (enP7s7)",
    ):
        assert told in played.words, played.text
    assert played.changed == {"casper": 0}


@pytest.mark.ansible
def test_a_node_that_serves_is_left_alone_unless_told_otherwise(nodes):
    nodes.on(
        "balthasar", "cp /bin/sleep /tmp/vllm; setsid /tmp/vllm 600 </dev/null >/dev/null 2>&1 & echo $! > /tmp/pid"
    )
    try:
        played = nodes.play("playbooks/preflight.yml", "--limit", "balthasar")
        assert played.code == 2
        assert "balthasar is serving: vLLM runs as process" in played.words
        allowed = nodes.play("playbooks/preflight.yml", "--limit", "balthasar", "-e", "preflight_allow_serving=true")
        assert allowed.code == 0, allowed.text
    finally:
        nodes.on("balthasar", "kill $(cat /tmp/pid)")
