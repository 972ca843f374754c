"""``recipe provision``: a front of ansible-playbook."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ansible_rig import ANSIBLE, HERE, Nodes

RECIPE = Path(sys.executable).with_name("recipe")


def provision(nodes: Nodes, *words: str) -> tuple[int, str, str]:
    done = nodes.call("exec", "--", str(RECIPE), "provision", *words)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.ansible
def test_what_changed_and_what_was_refused_is_printed_with_ansibles_words_handed_on(nodes):
    here = ("-i", str(nodes.folder / "inventory.yml"), *HERE)
    mine = (
        str(ANSIBLE / "inventory" / "spark4.example.yml"),
        "--only",
        "preflight",
        "--limit",
        "casper",
        "--check",
        "--",
        *here,
    )
    code, out, err = provision(nodes, *mine)
    assert code == 0, out + err
    assert "PLAY [Preflight]" in out
    assert "TASK" not in out
    assert "ok: [casper]" not in out
    assert "changed=0" in out
    code, out, err = provision(nodes, *mine, "-e", '{"preflight_architectures": ["riscv64"]}')
    assert code == 1
    assert "preflight : Refuse what cannot work:" in out
    assert "architecture x86_64; wanted riscv64" in out
    assert "Error: ansible-playbook: exit code 2" in err


@pytest.mark.ansible
def test_a_role_or_a_folder_that_is_not_there_is_told_before_anything_runs(nodes, tmp_path):
    inventory = str(nodes.folder / "inventory.yml")
    code, out, err = provision(nodes, inventory, "--only", "rdma_lane")
    assert (code, out) == (1, "")
    assert "no playbook rdma_lane\nhint: there are " in err
    assert "rdma_lanes" in err
    code, out, err = provision(nodes, inventory, "--playbooks", str(tmp_path))
    assert (code, out) == (1, "")
    assert f"no playbooks in {tmp_path}: site.yml is not there" in err
