"""The private Slurm itself: safe to repeat, all in one folder, gone without a trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rig import MINI_SLURM, Rig, require_slurm, require_slurmdbd
from submit_support import wait_until
from support import short_folder

pytestmark = pytest.mark.slurm


@pytest.fixture
def rig():
    require_slurm()
    folder = short_folder("slurm")
    rig = Rig(folder / "rig")
    yield rig
    rig.down()
    shutil.rmtree(folder)


def mounts(rig: Rig) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(rig.folder) in line]


def links() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def settings() -> list[str]:
    return sorted(path.name for path in Path("/etc").iterdir())


def test_up_twice_down_twice_and_nothing_is_left(rig, tmp_path):
    before = links(), settings()
    assert rig.call("status").returncode == 1
    assert "up: 4 nodes" in rig.call("up").stderr
    again = rig.call("up")
    assert again.returncode == 0
    assert "already up: 4 nodes" in again.stderr
    status = rig.call("status")
    assert status.returncode == 0
    assert "n[1-4]" in status.stdout
    assert rig.processes()
    assert mounts(rig)
    assert links() == before[0]  # no address of the cluster's is this machine's
    pids = rig.processes()
    rig.down()
    assert list(tmp_path.iterdir()) == []
    assert not [pid for pid in pids if alive(pid)]
    assert mounts(rig) == []
    assert (links(), settings()) == before
    again = rig.call("down")
    assert again.returncode == 0
    assert "already down" in again.stderr


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_nodes_have_names_addresses_gpus_and_ports_of_their_own(rig):
    rig.up()
    code = (
        "import os, socket; s = socket.create_server(('0.0.0.0', 8000)); "
        "print(socket.gethostname(), socket.gethostbyname(socket.gethostname()), os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    done = rig.exec("srun", "-N4", "--gres=gpu:8", "python3", "-c", code)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"n{i} 10.42.0.{i} 0,1,2,3,4,5,6,7" for i in range(1, 5)]


def test_the_callers_slurm_is_not_met(rig, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")
    monkeypatch.setenv("SBATCH_PARTITION", "nonexistent")
    rig.up()
    assert rig.exec("sbatch", "--wrap", "true", "-o", "/dev/null").returncode == 0


def test_exec_hands_on_arguments_exit_code_and_folder(rig):
    rig.up()
    assert rig.exec("sh", "-c", "exit 7").returncode == 7
    assert rig.exec("printf", "%s|", "a b", "$HOME", "").stdout == "a b|$HOME||"
    assert rig.exec("pwd").stdout.strip() == str(Path.cwd())
    assert rig.call("exec", "--on", "n3", "hostname").stdout == "n3\n"
    assert "there are ctl n1" in rig.call("exec", "--on", "n9", "hostname").stderr


def test_a_broken_cluster_is_told_and_made_anew(rig):
    rig.up()
    os.kill(int((rig.folder / "run" / "slurmd.n2.pid").read_text()), signal.SIGKILL)
    assert wait_until(lambda: rig.call("status").returncode == 1)
    assert "making it anew" in rig.call("up").stderr
    assert rig.exec("srun", "-N4", "hostname").returncode == 0


def test_down_ends_jobs_that_run(rig):
    rig.up()
    assert (
        rig.exec("sbatch", "-N2", "-o", "/dev/null", "--wrap", "srun sh -c 'trap : TERM; sleep 1000'").returncode == 0
    )
    wait_until(lambda: "RUNNING" in rig.exec("squeue", "-ho", "%T").stdout)
    pids = rig.processes()
    rig.down()
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize(("accounting", "plain", "completion"), [("none", 1, 1), ("jobcomp", 1, 0), ("slurmdbd", 0, 1)])
def test_accounting(rig, accounting, plain, completion):
    if accounting == "slurmdbd":
        require_slurmdbd()
    done = rig.call("up", "1", "--accounting", accounting)
    assert done.returncode == 0, done.stderr
    assert rig.exec("sbatch", "--wait", "-o", "/dev/null", "--wrap", "exit 3").returncode == 3
    words = {"jobcomp": ["sacct", "--completion"], "slurmdbd": ["sacct", "-X"]}.get(accounting)
    wait_until(lambda: words is None or "FAILED" in rig.exec(*words).stdout)
    assert rig.exec("sacct").returncode == plain
    assert rig.exec("sacct", "--completion").returncode == completion
    assert rig.call("status").returncode == 0
    pids = rig.processes()
    rig.down()
    assert not [pid for pid in pids if alive(pid)]


def test_lines_for_slurm_conf_replace_and_add(rig):
    done = rig.call("up", "2", "--conf", "KillWait=77", "--conf", "PartitionName=high Nodes=ALL PriorityTier=9")
    assert done.returncode == 0, done.stderr
    assert "KillWait                = 77 sec" in rig.exec("scontrol", "show", "config").stdout
    assert "high" in rig.call("status").stdout


def test_a_folder_of_somebody_else_is_left_alone(rig):
    rig.folder.mkdir()
    (rig.folder / "thesis.tex").write_text("x")
    done = rig.call("up")
    assert done.returncode == 1
    assert "was not made by mini-slurm" in done.stderr
    assert "already down" in rig.call("down").stderr
    assert (rig.folder / "thesis.tex").read_text() == "x"


def test_missing_packages_are_named(rig, tmp_path):
    done = subprocess.run(
        [sys.executable, MINI_SLURM, "up"],
        env={"PATH": str(tmp_path), "MINI_SLURM_DIR": str(rig.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "apt-get install" in done.stderr


def test_usage(rig):
    assert rig.call("up", "0").returncode == 2
    assert rig.call("sideways").returncode == 2
    assert rig.call("exec").returncode == 2
