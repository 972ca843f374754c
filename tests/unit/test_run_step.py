"""What starts programs in containers, without the runtimes: records of steps, and apptainer's environment."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_toolkit.run import apptainer, procfs, step
from submit_support import wait_until

SCRIPT = Path(step.__file__).with_suffix(".sh")


@pytest.fixture
def record(tmp_path):
    return tmp_path / "p.step"


def slurm(folder: Path, squeue: str) -> tuple[str, str]:
    """A squeue that answers with the lines of a file, if it is there, and a scancel that notes what it ended."""
    (folder / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (folder / "scancel").write_text(f'#!/bin/sh\necho "$@" >>{folder}/ended\n')
    for name in ("squeue", "scancel"):
        (folder / name).chmod(0o755)
    return str(folder / "squeue"), str(folder / "scancel")


def started(record: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    """A program behind step.sh, as the task of step 7.3."""
    given = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", **env}
    return subprocess.Popen(["/bin/sh", SCRIPT, record, *words], env=given, stdout=subprocess.PIPE, text=True)


def test_the_record_of_a_program_that_runs_and_then_does_not(record):
    with started(record, "sleep", "300") as program:
        wait_until(record.exists, what="a record")
        assert step.program(record) == ("7.3", program.pid)
        program.kill()
        program.wait()
    assert step.program(record) == ("7.3", None)
    mine = procfs.stat(os.getpid())
    record.write_text(f"7.3 {mine.pid} {mine.start + 1}\n")
    assert step.program(record) == ("7.3", None), "another process has its number now"
    record.write_text("")
    assert step.program(record) == ("", None)


def test_what_the_program_finds_in_its_environment(record):
    shown = "import os; print(sorted(os.environ.items()))"
    odd = "a\nexport SLURM_-X='1'\nRANK=2 SLURM_Y=3"
    env = {"SLURM_PROCID": "0", "PMIX_RANK": "0", "RANK": "0", "KEPT": odd, "RECIPE_CUDA_VISIBLE_DEVICES": "1,0"}
    with started(record, sys.executable, "-c", shown, CUDA_VISIBLE_DEVICES="0,1,2", **env) as program:
        out = program.communicate(timeout=20)[0]
    found = dict(ast.literal_eval(out))
    assert found["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert found["KEPT"] == odd
    assert set(found) <= {"CUDA_VISIBLE_DEVICES", "KEPT", "LC_CTYPE", "PATH", "PWD"}


def test_a_program_that_is_not_there(record):
    with started(record, "/no/such/program") as program:
        assert program.wait(20) in (126, 127)


def test_an_srun_that_ends_by_itself_leaves_no_record(record):
    assert step.run(record, ["sh", "-c", f"test -e {record} && exit 3"]) == 3
    assert not record.exists()
    assert step.run(record, ["sh", "-c", "kill -9 $$"]) == 137
    assert record.exists()


def test_an_end_of_what_has_never_begun(record, tmp_path):
    squeue, scancel = slurm(tmp_path, "exit 1")
    assert step.end(record, "7", "run-p", squeue, scancel) == 0
    assert not (tmp_path / "ended").exists()


def test_an_end_before_the_program_has_begun(record, tmp_path):
    """The step is known by its name alone, and another's is left alone."""
    squeue, scancel = slurm(tmp_path, f"[ -e {tmp_path}/ended ] || printf '7.1 run-q\\n7.3 run-p\\n'")
    record.touch()
    assert step.end(record, "7", "run-p", squeue, scancel) == 0
    assert (tmp_path / "ended").read_text() == "--signal=KILL 7.3\n"
    assert not record.exists()


def test_an_end_without_an_answer_of_slurm(record, tmp_path):
    """The program that is gone says it."""
    squeue, scancel = slurm(tmp_path, "exit 1")
    with started(record, "true") as program:
        program.wait(20)
    assert step.end(record, "7", "run-p", squeue, scancel) == 0


def test_a_step_that_will_not_go_is_told(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(step, "_END_S", 0.5)
    squeue, scancel = slurm(tmp_path, "echo 7.3 run-p")
    record.touch()
    assert step.end(record, "7", "run-p", squeue, scancel) == 1
    assert "the step of run-p is still there (7.3; pid None)" in capsys.readouterr().err


def test_the_environment_of_apptainer():
    environ = {"A": "1", "B": "2", "APPTAINERENV_C": "the shell's", "SINGULARITYENV_D": "x", "APPTAINER_CACHEDIR": "/c"}
    made = apptainer.environment(environ, ["A", "NOT_THERE"])
    assert made == {"A": "1", "B": "2", "APPTAINER_CACHEDIR": "/c", "APPTAINERENV_A": "1"}


@pytest.mark.parametrize("before", ["nothing", "folder", "file", "link"])
def test_apptainers_home(tmp_path, before):
    home = tmp_path / "home"
    if before == "folder":
        home.mkdir()
    elif before == "file":
        home.touch()
    elif before == "link":
        home.symlink_to(tmp_path)
    command = [sys.executable, "-I", "-S", apptainer.__file__, home, "A,B", "sh", "-c", "echo $APPTAINERENV_A"]
    done = subprocess.run(
        command, env={**os.environ, "A": "x y"}, capture_output=True, text=True, check=False, timeout=30
    )
    if before in ("nothing", "folder"):
        assert (done.returncode, done.stdout) == (0, "x y\n")
        assert home.is_dir()
    else:
        assert done.returncode == 1
        assert f"{home} is not ours" in done.stderr
