"""The playbooks come with the wheel: ``recipe provision`` needs no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ansible_rig import ANSIBLE, ROOT, require_ansible
from support import require


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of this checkout puts into site-packages."""
    require_ansible()
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # without what a build would leave in the checkout, and what git does not know
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]
    for name in names:
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        pip = [shutil.which("pip") or ""]
    require("ansible", pip != [""], "no pip to build a wheel with")
    done = subprocess.run(
        [*pip, "wheel", "-q", "--no-deps", "-w", folder, source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def provision(installed: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from recipe_toolkit.cli import main; main()", "provision", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(argv, cwd=installed, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.ansible
def test_a_wheel_has_every_file_of_the_playbooks_and_runs_them_outside_of_the_checkout(installed):
    shipped = installed / "recipe_toolkit" / "ansible"
    known = subprocess.check_output(["git", "ls-files", "-z", "."], cwd=ANSIBLE, text=True).split("\0")[:-1]
    assert sorted(str(path.relative_to(shipped)) for path in shipped.rglob("*") if path.is_file()) == sorted(known)

    told = provision(installed, "--list")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"{shipped}/site.yml:\n  preflight ")
    names = told.stdout.partition("example inventories: ")[2].strip().split(", ")
    assert names == ["b300x3", "gb300-nvl72", "spark4"]
    for name in names:
        mine = installed.parent / f"{name}.yml"
        mine.write_text(provision(installed, "--example", name).stdout)
        done = provision(installed, mine, "--", "--syntax-check")
        assert done.returncode == 0, done.stdout + done.stderr
