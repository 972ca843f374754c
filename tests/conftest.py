from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import required

GOLDEN = Path(__file__).parent / "data" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/data/golden with what is made now")


def pytest_configure(config: pytest.Config) -> None:
    required()  # a misspelt part would require nothing
    # A shell starts its background jobs with SIGINT ignored, and what they start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process takes one unit of work at a time. The hook is there with pytest-xdist alone."""
    from workunits import scheduler

    return scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs longest begins first: scripts/test runs several tests at a time, and none should be left over."""
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("slurm", "ansible")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """In CI a skipped test has failed, unless what it lacks is a GPU."""
    report = yield
    if report.skipped and os.environ.get("CI") and item.get_closest_marker("gpu") is None:
        report.outcome = "failed"
        report.longrepr = f"skipped where CI is set: {report.longrepr[-1]}"
    return report


def compare_golden(path: Path, text: str) -> str | None:
    """Why the golden file at ``path`` does not hold ``text``; None if it does."""
    if not path.is_file():
        return f"no golden {path}: look at what is made, then run with --update-golden"
    wanted = path.read_text(encoding="utf-8")
    if wanted == text:
        return None
    lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), str(path), "made now", lineterm="")
    return "\n".join(lines) or f"{path} differs in the end of a line alone"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)`` holds a whole file of tests/data/golden against what is made now."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        if problem := compare_golden(path, text):
            pytest.fail(problem, pytrace=False)

    return check
