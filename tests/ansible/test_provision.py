"""``recipe provision``: a front of ansible-playbook."""

from __future__ import annotations

import re
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
    assert "preflight : Refuse what cannot work:\n  fatal: [casper]" in out
    assert "architecture x86_64; wanted riscv64" in out
    assert "Error: ansible-playbook: failed: casper" in err


@pytest.mark.ansible
def test_paths_among_ansibles_words_are_the_users_own(nodes, tmp_path):
    (tmp_path / "mine.yml").write_text((nodes.folder / "inventory.yml").read_text())
    (tmp_path / "more.yml").write_text("preflight_architectures: [riscv64]\n")
    words = ["provision", "mine.yml", "--only", "preflight", "--limit", "casper", "--", "-e", "@more.yml"]
    done = nodes.call("exec", "--", "env", "-C", str(tmp_path), str(RECIPE), *words)
    assert "architecture x86_64; wanted riscv64" in done.stdout, done.stdout + done.stderr


@pytest.mark.ansible
def test_a_node_that_does_not_answer_is_named_and_the_others_are_gone_on_with(nodes, tmp_path):
    ghost = tmp_path / "ghost.yml"
    ghost.write_text("nodes: {hosts: {ghost: {ansible_host: 10.91.0.99}}}\n")
    mine = [str(ANSIBLE / "inventory" / "spark4.example.yml"), "--limit", "casper,ghost"]
    mine += ["--only", "preflight", "--only", "model_weights", "--"]
    code, out, err = provision(nodes, *mine, "-i", str(nodes.folder / "inventory.yml"), "-i", str(ghost), *HERE)
    assert code == 1
    assert "TASK [" not in out
    assert re.search(r"ghost +: ok=0 .*unreachable=1", out)
    assert re.search(r"casper +: ok=[1-9].*unreachable=0 +failed=0", out)
    assert "Error: ansible-playbook: not reached: ghost\n" in err


@pytest.mark.ansible
def test_a_role_or_a_folder_that_is_not_there_is_told_before_anything_runs(nodes, tmp_path):
    inventory = str(nodes.folder / "inventory.yml")
    code, out, err = provision(nodes, inventory, "--only", "rdma_lane")
    assert (code, out) == (1, "")
    playbooks = sorted(path.stem for path in (ANSIBLE / "playbooks").iterdir())
    assert f"no playbook rdma_lane\nhint: there are {', '.join(playbooks)}" in err
    code, out, err = provision(nodes)
    assert (code, out) == (2, "")
    assert "no inventory: --example NAME > mine.yml makes one" in err
    code, out, err = provision(nodes, "--example", "spark")
    assert (code, out) == (1, "")
    assert "no example spark\nhint: there are b300x3, gb300-nvl72, spark4" in err
    (tmp_path / "mine.yml").write_text("servers: {hosts: {melchior: {}}}\n")
    code, out, err = provision(nodes, str(tmp_path / "mine.yml"), "--only", "preflight")
    assert (code, "PLAY RECAP" in out) == (1, True), out
    assert "mine.yml: no host is in the group nodes: nothing was done\nhint: put the nodes under" in err
    code, out, err = provision(nodes, inventory, "--playbooks", str(tmp_path))
    assert (code, out) == (1, "")
    assert f"no playbooks in {tmp_path}: site.yml is not there" in err
