"""The calls of Slurm's programs: what they are given, and how their answers are read."""

from __future__ import annotations

import pytest

from recipe_toolkit.errors import SubmitError
from recipe_toolkit.submit import slurm_commands
from recipe_toolkit.submit.slurm_commands import JobInfo, query
from submit_support import NO_ACCOUNTING, UNKNOWN_JOB


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "submission.sh"
    path.write_text("#!/bin/bash\n")
    return path


def test_sbatch_returns_the_job_and_runs_in_the_run_folder(fake_slurm, script, tmp_path):
    fake_slurm.says("sbatch", "4711\n")
    assert slurm_commands.sbatch(script, tmp_path) == ("4711", None, "")
    (call,) = fake_slurm.calls()
    assert call["argv"] == ["--parsable", str(script)]
    assert call["cwd"] == str(tmp_path)


def test_sbatch_of_a_federation_and_with_a_greeting_before_the_id(fake_slurm, script, tmp_path):
    fake_slurm.says("sbatch", "Welcome to the site!\n4711;north\n")
    assert slurm_commands.sbatch(script, tmp_path)[:2] == ("4711", "north")


def test_the_callers_settings_do_not_leak_in(fake_slurm, script, tmp_path, monkeypatch):
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JWT": "secret", "HOME": "/root", "CUDA_HOME": "/cuda"}
    leaked = {
        "SBATCH_PARTITION": "debug",
        "SBATCH_EXPORT": "NONE",
        "SLURM_JOB_ID": "1",
        "SLURM_CLUSTERS": "other",
        "SLURM_TIME_FORMAT": "relative",
        "SQUEUE_FORMAT": "%i",
        "SQUEUE_STATES": "PENDING",
        "SACCT_FORMAT": "JobID",
        "SCANCEL_STATE": "PENDING",
        "SUBMITIT_EXECUTOR": "local",
        "PMI_RANK": "0",
    }
    for name, value in {**kept, **leaked}.items():
        monkeypatch.setenv(name, value)
    fake_slurm.says("sbatch", "1\n")
    fake_slurm.forgets()
    fake_slurm.says("scancel")
    slurm_commands.sbatch(script, tmp_path)
    query(["1"])
    slurm_commands.scancel("1")
    calls = fake_slurm.calls()
    assert {call["program"] for call in calls} == {"sbatch", "squeue", "scontrol", "sacct", "scancel"}
    for call in calls:
        assert not set(leaked) & set(call["env"]), call["program"]
        assert {name: call["env"].get(name) for name in kept} == kept


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: ", "partition"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "account"),
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds",
            "time_limit",
        ),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", "sinfo -Nel"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", "ping"),
    ],
)
def test_a_refusal_says_the_command_its_code_its_words_and_the_folder(fake_slurm, script, tmp_path, words, hint):
    fake_slurm.says("sbatch", err=words + "\n", code=1)
    with pytest.raises(SubmitError) as caught:
        slurm_commands.sbatch(script, tmp_path)
    message = caught.value.message
    assert f"command: sbatch --parsable {script}" in message
    assert "exit code: 1" in message
    assert words.splitlines()[0] in message
    assert f"run folder: {tmp_path}" in message
    assert hint in caught.value.hint


def test_an_answer_without_a_job_is_no_success(fake_slurm, script, tmp_path):
    fake_slurm.says("sbatch", "sbatch: Job 12 estimated to start\n")
    with pytest.raises(SubmitError, match="printed no job id"):
        slurm_commands.sbatch(script, tmp_path)


def test_an_sbatch_that_does_not_come_back_says_that_the_job_may_be_there(fake_slurm, script, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_commands, "SUBMIT_TIMEOUT_S", 0.3)
    fake_slurm.says("sbatch", "1\n", sleep=30)
    with pytest.raises(SubmitError, match=r"no answer in 0\.3 s") as caught:
        slurm_commands.sbatch(script, tmp_path)
    assert "may have taken the job" in caught.value.hint


def test_one_call_of_squeue_for_all_jobs(fake_slurm):
    fake_slurm.holds("1|FAILED|NonZeroExitCode|n1|768|0", "2|COMPLETING|None|n[1-2]|0|1", "3|PENDING|Resources||0|0")
    answer = query(["1", "2", "3"])
    assert answer.error is None
    assert answer.jobs == {
        "1": JobInfo("FAILED", "NonZeroExitCode", "n1", "3:0", 0),
        "2": JobInfo("COMPLETING", "", "n[1-2]", "0:0", 1),
        "3": JobInfo("PENDING", "Resources", "", "0:0", 0),
    }
    (call,) = fake_slurm.calls()
    assert call["argv"][0] == "--states=all"
    assert call["argv"][-1] == "--jobs=1,2,3"


def test_accounting_without_a_database(fake_slurm):
    """jobcomp/filetxt: only `sacct --completion` works."""
    fake_slurm.says("squeue", **UNKNOWN_JOB)
    fake_slurm.says("scontrol", **UNKNOWN_JOB)
    fake_slurm.says("sacct", call=1, **NO_ACCOUNTING)
    fake_slurm.says("sacct", "7|CANCELLED by 1000|0:15|n[1-2]\n", call=2)
    assert query(["7"]).jobs == {"7": JobInfo("CANCELLED", "", "n[1-2]", "0:15", source="sacct")}
    first, second = (call["argv"] for call in fake_slurm.calls("sacct"))
    assert "--completion" not in first
    assert "--completion" in second


def test_accounting_with_a_database(fake_slurm):
    fake_slurm.says("squeue")
    fake_slurm.says("sacct", "7|TIMEOUT|0:0|n1\n7.0|CANCELLED|0:15|n1\n8|NODE_FAIL|1:0|n2\n")
    answer = query(["7", "8"])
    assert {job_id: job.state for job_id, job in answer.jobs.items()} == {"7": "TIMEOUT", "8": "NODE_FAIL"}
    assert len(fake_slurm.calls("sacct")) == 1


def test_a_job_that_squeue_hides_is_asked_of_scontrol(fake_slurm):
    fake_slurm.says("squeue", **UNKNOWN_JOB)
    fake_slurm.says(
        "scontrol",
        "JobId=7 JobName=wrap UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 "
        "Restarts=2 BatchFlag=1 Reboot=0 ExitCode=3:0 ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 BatchHost=n1\n",
    )
    assert query(["7"]).jobs == {"7": JobInfo("FAILED", "NonZeroExitCode", "n1", "3:0", 2, "scontrol")}


def test_without_any_accounting_a_forgotten_job_is_gone(fake_slurm):
    fake_slurm.forgets()
    answer = query(["7"])
    assert answer.jobs == {}
    assert answer.error is None


def test_jobs_that_need_no_recall_are_not_asked_of_sacct(fake_slurm):
    fake_slurm.holds("9|RUNNING|None|n1|0|0")
    assert set(query(["7", "8", "9"], recall=["9"]).jobs) == {"9"}
    assert fake_slurm.calls("sacct") == []


def test_a_controller_that_does_not_answer_is_not_waited_for_twice(fake_slurm):
    fake_slurm.says("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    fake_slurm.says("sacct", "7|TIMEOUT|0:0|n1\n")
    assert query(["7"]).jobs["7"].state == "TIMEOUT"
    assert fake_slurm.calls("scontrol") == []


def test_a_controller_that_does_not_answer_is_no_proof_that_the_job_is_gone(fake_slurm):
    fake_slurm.says("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    fake_slurm.says("scontrol", err="Unable to contact slurm controller\n", code=1)
    fake_slurm.says("sacct", **NO_ACCOUNTING)
    answer = query(["7"])
    assert answer.jobs == {}
    assert "Unable to contact" in answer.error


def test_a_program_that_hangs_is_given_up(fake_slurm, monkeypatch):
    monkeypatch.setattr(slurm_commands, "TIMEOUT_S", 0.3)
    for program in ("squeue", "scontrol", "sacct"):
        fake_slurm.says(program, sleep=30)
    assert "no answer in 0.3 s" in query(["7"]).error


def test_no_programs_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not found" in query(["7"]).error
    with pytest.raises(SubmitError, match="sbatch: not found"):
        slurm_commands.require_sbatch()


def test_a_federated_cluster_is_named_in_every_call(fake_slurm):
    fake_slurm.forgets()
    fake_slurm.says("scancel")
    query(["7"], "north")
    slurm_commands.scancel("7", "north")
    # sacct --completion reads a file and knows no clusters
    assert all("--clusters=north" in call["argv"] for call in fake_slurm.calls() if "--completion" not in call["argv"])


def test_cancelling_a_job_that_is_gone_is_no_error(fake_slurm):
    fake_slurm.says("scancel", err="scancel: error: Kill job error on job id 7: Invalid job id specified\n", code=1)
    slurm_commands.scancel("7")
    fake_slurm.says("scancel", err="scancel: error: Kill job error on job id 7: Access/permission denied\n", code=1)
    with pytest.raises(SubmitError, match="permission denied"):
        slurm_commands.scancel("7")


@pytest.mark.parametrize(
    ("out", "found"),
    [
        ("gpu*|gpu:8\n", {"gpu": (None, 8)}),
        ("cpu|(null)\nnew*|gpu:nvidia_h200:8(S:0-1),shard:64\n", {"new": ("H200", 8), "cpu": None}),
        ("mixed|gpu:a100:4\nmixed|gpu:h100:8\n", {"mixed": None}),
        ("both|gpu:a100:1,gpu:h100:1\n", {"both": None}),
        ("Welcome!\n\nsmall|gpu:2\n", {"small": (None, 2)}),
    ],
)
def test_partitions_and_the_gpus_of_their_nodes(fake_slurm, out, found):
    fake_slurm.says("sinfo", out)
    answer = slurm_commands.partitions()
    assert (answer, list(answer)) == (found, list(found))


def test_no_partitions_where_sinfo_fails_or_is_slow(fake_slurm, monkeypatch):
    fake_slurm.says("sinfo", "gpu|gpu:8\n", code=1)
    assert slurm_commands.partitions() == {}
    monkeypatch.setattr(slurm_commands, "SINFO_TIMEOUT_S", 0.3)
    fake_slurm.says("sinfo", "gpu|gpu:8\n", sleep=30)
    assert slurm_commands.partitions() == {}
