"""A private Slurm of four nodes for the whole session, and what its daemons said where a test fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from podman_rig import Podman, make_podman
from slurm_rig import Rig, make_rig


@pytest.fixture(scope="session")
def slurm_rig() -> Iterator[Rig]:
    """Four nodes, no accounting at all: sacct exits with 1."""
    yield from make_rig("--conf", "KillWait=20")


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """A podman with one small image."""
    yield from make_podman()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add the cluster's story to the report of a failed test."""
    report = yield
    funcargs = getattr(item, "funcargs", {})
    if report.failed and call.when == "call":
        for rig in (value for value in funcargs.values() if isinstance(value, Rig)):
            if rig.folder.exists():
                report.sections.append(("private Slurm", rig.story()))
    return report
