"""Four bare nodes for each file of tests: what one leaves on them is no other's concern."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from ansible_rig import ANSIBLE, Nodes, make_nodes
from apt_rig import Repository, make_repository


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """melchior, balthasar, casper and artaban."""
    yield from make_nodes(tmp_path_factory, "nodes", 4)


@pytest.fixture(scope="module")
def repository(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """A repository of apt that the nodes can reach: empty, until a test adds packages to it and publishes them."""
    yield from make_repository(nodes, tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="session")
def program() -> Callable[[str, str], ModuleType]:
    """``program(role, name)``: a program of a role, as a module."""

    def load(role: str, name: str) -> ModuleType:
        path = ANSIBLE / "roles" / role / "files" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{role}_{name}", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load
