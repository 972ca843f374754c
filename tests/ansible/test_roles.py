"""The form of the playbooks: roles that can be run alone, inventories that fit them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_rig import ANSIBLE, require_ansible
from support import require

ROLES = sorted(path.name for path in (ANSIBLE / "roles").iterdir())
HELPERS = ["packages"]  # what other roles include
INVENTORIES = sorted((ANSIBLE / "inventory").glob("*.yml"))


def load(path: Path) -> object:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_an_option_that_the_role_documents_and_the_other_way_round(role):
    spec = load(ANSIBLE / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(load(ANSIBLE / "roles" / role / "defaults" / "main.yml")) == set(spec)
    assert all(name.startswith(f"{role}_") for name in spec)


@pytest.mark.parametrize("role", sorted({*ROLES} - {*HELPERS}))
def test_a_role_has_a_playbook_of_its_own_that_site_imports(role):
    plays = load(ANSIBLE / "playbooks" / f"{role}.yml")
    # A fault stops the step for all nodes; one that is not reached, when facts are gathered, is gone on without.
    assert [play["roles"] for play in plays] == [[{"role": role, "any_errors_fatal": True}]]
    assert "any_errors_fatal" not in plays[0]
    assert plays[0]["tags"] == ["always" if role == "preflight" else role]
    imported = [play["ansible.builtin.import_playbook"] for play in load(ANSIBLE / "site.yml")]
    assert f"playbooks/{role}.yml" in imported
    assert imported[0] == "playbooks/preflight.yml"


def test_preflight_knows_the_variables_of_every_role():
    assert sorted(load(ANSIBLE / "roles/preflight/vars/main.yml")["__preflight_roles"]) == ROLES


def test_the_folder_does_not_hide_the_package_of_its_name():
    assert not list(ANSIBLE.rglob("__init__.py"))


@pytest.mark.ansible
@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.stem)
def test_a_shipped_inventory_is_one_that_site_can_be_run_with(inventory):
    require_ansible()
    playbook = Path(sys.executable).with_name("ansible-playbook")
    argv = [playbook, "-i", inventory, "site.yml", "--syntax-check"]
    done = subprocess.run(argv, cwd=ANSIBLE, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.ansible
def test_lint_has_nothing_to_say_at_its_strictest():
    lint = Path(sys.executable).with_name("ansible-lint")
    require("ansible", lint.exists(), "no ansible-lint: pip install --group ansible")
    env = {**os.environ, "NO_COLOR": "1", "PATH": f"{lint.parent}:{os.environ['PATH']}"}
    argv = [lint, "--offline", "--profile", "production", "--strict", "-q"]
    done = subprocess.run(argv, cwd=ANSIBLE, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
