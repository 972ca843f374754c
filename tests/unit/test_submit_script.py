"""The batch script, whole, for several sites; and what it cannot hold."""

from __future__ import annotations

import dataclasses
import pickle
import pickletools
import shlex
from pathlib import Path

import pytest

from recipe_toolkit.cluster import Slurm
from recipe_toolkit.errors import SubmitError
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit import slurm
from recipe_toolkit.submit.job import run_job
from submit_support import make_cluster, make_plan

RUN = RunDir(Path("/shared/runs/2026-11-29T12-00-00-tiny-ab12"))

PROFILES = {
    "plain": {"slurm": Slurm(partition="gpu")},
    "everything": {
        "slurm": Slurm(
            partition="batch",
            account="proj-1",
            qos="high",
            reservation="maint 7",
            constraint="h200&ib",
            gres_name="gpu:h200",
            segment=2,
            signal_lead_s=300,
            directives={"comment": "it's a test", "requeue": True, "mem": 0, "mail-user": "a@b.c", "nice": False},
            setup=("module load cuda/13", 'export UCX_LOG="warn"'),
            srun_args=("--mpi=none",),
        ),
        "pythonpath": ("/shared/tool kit/slurm", "/shared/deps"),
    },
    "gpus-per-node-shared": {"slurm": Slurm(gpus="gpus-per-node", gres_name="gpu:b300", exclusive=False)},
    "no-gpus": {"slurm": Slurm(gpus="none", directives={"gres": "nvme:1", "cpus-per-task": 64})},
}


def script(run=RUN, plan=None, **fields):
    cluster = make_cluster("/shared/runs", **{"python": "/shared/venv/bin/python", **fields})
    return slurm.script(run, plan or make_plan(), cluster)


@pytest.mark.parametrize("name", PROFILES)
def test_script(name, golden):
    golden(f"sbatch/{name}.sh", script(**PROFILES[name]))


def test_a_rehearsal_holds_no_gpu(golden):
    """Neither asked for, nor by a node that nobody else may use, nor by what the profile writes by itself."""
    site = PROFILES["everything"]["slurm"]
    directives = {**site.directives, "cpus-per-gpu": 8, "gres": "gpu:h200:8"}
    for gpus in ("gres", "gpus-per-node", "none"):
        made = script(plan=make_plan(rehearsal=True), slurm=dataclasses.replace(site, gpus=gpus, directives=directives))
        golden("sbatch/rehearsal.sh", made)
    directives = [line for line in made.splitlines() if line.startswith("#SBATCH")]
    assert not any("gpu" in line or "exclusive" in line for line in directives)
    assert "#SBATCH --nodes=2" in directives
    assert "#SBATCH --gres=nvme:1" in script(plan=make_plan(rehearsal=True), **PROFILES["no-gpus"])


def test_a_plan_for_cpus_asks_for_no_gpu():
    assert "gpu" not in script(plan=make_plan(device="cpu")).replace("srun", "")


@pytest.mark.parametrize(
    ("limit_s", "lead_s", "time", "signal"),
    [(3600, 120, 60, 120), (3601, 120, 61, 120), (90, 120, 2, 30), (10, 120, 1, 15), (86400, 600, 1440, 600)],
)
def test_time_limit_and_warning(limit_s, lead_s, time, signal):
    lines = script(plan=make_plan(time_limit_s=limit_s), slurm=Slurm(signal_lead_s=lead_s)).splitlines()
    assert f"#SBATCH --time={time}" in lines
    assert f"#SBATCH --signal=USR2@{signal}" in lines


def test_the_callers_wish_for_another_signal_does_not_leak_in(monkeypatch):
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", "USR1")
    assert "USR1" not in script()


@pytest.mark.parametrize("sign", ["%", "\\", "\n", "\t", "\x1b"])
def test_paths_that_sbatch_would_take_for_something_else_are_refused(sign):
    run = RunDir(Path(f"/shared/a{sign}b/2026-11-29T12-00-00-tiny-ab12"))
    with pytest.raises(SubmitError, match="cannot be used"):
        script(run)


@pytest.mark.parametrize(
    "word", ["a b", "it's", 'q"q', "a;b", "#a", "a #b", "$HOME`id`", "-dash", "ünï", "{a,b}*?[x]~"]
)
def test_paths_with_odd_signs_reach_the_shell_in_one_piece(word):
    run = RunDir(Path(f"/shared/{word}/2026-11-29T12-00-00-tiny-ab12"))
    text = script(run, python=f"/opt/{word}/python", pythonpath=(f"/deps/{word}",))
    words = shlex.split(text.splitlines()[-1])
    assert words[words.index("env") :] == [
        "env",
        f"PYTHONPATH=/deps/{word}",
        f"/opt/{word}/python",
        "-u",
        "-m",
        "submitit.core._submit",
        f"/shared/{word}/2026-11-29T12-00-00-tiny-ab12/job",
    ]
    assert f"--output={shlex.quote(f'/shared/{word}/2026-11-29T12-00-00-tiny-ab12/job/%j_0_log.out')}" in text


def test_a_dry_run_writes_nothing(tmp_path):
    script(RunDir(tmp_path / "runs" / "2026-11-29T12-00-00-tiny-ab12"))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_pickled_by_value(tmp_path):
    """A node may have another Python: byte code of this one would not run there."""
    from submitit.core.utils import DelayedSubmission

    DelayedSubmission(run_job, str(tmp_path)).dump(tmp_path / "job.pkl")
    data = (tmp_path / "job.pkl").read_bytes()
    strings = {arg for opcode, arg, _ in pickletools.genops(data) if isinstance(arg, str)}
    assert {"recipe_toolkit.submit.job", "run_job", str(tmp_path)} <= strings
    assert not any("code" in text or "cloudpickle" in text for text in strings - {str(tmp_path)})
    assert pickle.loads(data).function is run_job
