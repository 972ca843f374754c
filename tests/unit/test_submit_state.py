"""The state of a run: every word of Slurm, joined with what the run wrote."""

from __future__ import annotations

import pytest

from recipe_toolkit.rundir import write_json
from recipe_toolkit.submit.record import Record, read_record
from recipe_toolkit.submit.slurm_commands import ACTIVE, ENDED, WAITING, JobInfo
from recipe_toolkit.submit.state import EXIT_CODES, FINAL, LINGER_S, RunState, Word, join, run_state, slurm_word
from submit_support import make_plan, make_run

NOW = 1_000_000.0
JOB = {"scheduler": "slurm", "job_id": "7"}


def record(state=None, **fields):
    return Record(id="r", **{"job": JOB, "state": state, "updated": NOW - 1, **fields})


def word(state, **fields):
    return slurm_word(JobInfo(state, **fields))


def test_the_sets_of_slurm_states_do_not_overlap():
    assert not WAITING & ACTIVE
    assert not (WAITING | ACTIVE) & set(ENDED)
    assert set(ENDED.values()) <= set(FINAL)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("PENDING", "pending"),
        ("CONFIGURING", "pending"),
        ("REQUEUED", "pending"),
        ("REQUEUE_HOLD", "pending"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
        ("SUSPENDED", "running"),
        ("COMPLETED", "failed"),
        ("FAILED", "failed"),
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "timeout"),
        ("DEADLINE", "timeout"),
        ("PREEMPTED", "preempted"),
        ("NODE_FAIL", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("BOOT_FAIL", "failed"),
        ("REVOKED", "cancelled"),
    ],
)
@pytest.mark.parametrize("written", [None, "running"])
def test_slurm_decides_while_the_run_has_not_written_its_end(said, expected, written):
    state = join(record(written, phase="bench"), word(said), NOW, "/f")
    assert state.state == expected
    if state.final:
        assert said in state.message
        assert "no agent has reported" in state.message if written is None else "phase bench" in state.message


@pytest.mark.parametrize(
    ("written", "said", "expected"),
    [
        ("done", "COMPLETED", "done"),
        ("done", "FAILED", "done"),
        ("failed", "FAILED", "failed"),
        ("failed", "COMPLETED", "failed"),
        ("failed", "NODE_FAIL", "failed"),
        ("failed", "CANCELLED", "failed"),
        ("timeout", "FAILED", "timeout"),
        ("timeout", "COMPLETED", "timeout"),
        ("cancelled", "CANCELLED", "cancelled"),
        ("cancelled", "FAILED", "cancelled"),
        # TERM has several causes that the agents cannot tell apart.
        ("cancelled", "TIMEOUT", "timeout"),
        ("cancelled", "PREEMPTED", "preempted"),
    ],
)
def test_the_run_knows_more_once_it_wrote_its_end(written, said, expected):
    assert join(record(written), word(said), NOW, "/f").state == expected


def test_the_schedulers_word_is_added_where_it_explains():
    state = join(record("failed", message="bench: node 1 is lost"), word("NODE_FAIL"), NOW, "/f")
    assert state.message == "bench: node 1 is lost; Slurm: NODE_FAIL"
    assert join(record("failed", message="why"), word("FAILED", exit_code="1:0"), NOW, "/f").message == "why"


@pytest.mark.parametrize("written", [None, "running"])
def test_a_job_that_nobody_knows_is_lost_never_done(written):
    state = join(record(written, phase="ready"), Word("gone"), NOW, "/f")
    assert state.state == "lost"
    assert "neither squeue nor sacct know job 7" in state.message


@pytest.mark.parametrize("written", ["done", "failed", "cancelled", "timeout"])
def test_a_job_that_is_forgotten_has_the_state_it_wrote(written):
    assert join(record(written), Word("gone"), NOW, "/f").state == written


def test_a_scheduler_that_does_not_answer_changes_nothing():
    silent = Word("silent", reason="squeue: no answer in 30 s")
    assert join(record(None), silent, NOW, "/f").state == "pending"
    running = join(record("running", phase="ready"), silent, NOW, "/f")
    assert running.state == "running"
    assert "no answer in 30 s" in running.message
    assert join(record("failed", message="why"), silent, NOW, "/f").message == "why"


@pytest.mark.parametrize(
    "reason",
    ["JobHeldUser", "job requeued in held state", "launch failed requeued held", "launch_failed_requeued_held"],
)
def test_a_job_that_only_somebody_can_release_says_so(reason):
    """Slurm names holds of its own in words: with blanks in squeue, with lines in scontrol."""
    state = join(record(None), word("PENDING", reason=reason), NOW, "/f")
    assert state.state == "pending"
    assert "will not start as it is" in state.message
    assert "`scontrol release 7`" in state.message


def test_a_state_of_a_later_slurm_is_not_guessed():
    state = join(record("running"), word("HIBERNATING"), NOW, "/f")
    assert state.state == "running"
    assert "HIBERNATING" in state.message


def test_a_requeued_run_is_not_what_its_first_attempt_wrote():
    assert join(record("cancelled"), word("PENDING", restarts=1), NOW, "/f").state == "pending"
    assert join(record("cancelled"), word("RUNNING", restarts=1), NOW, "/f").state == "running"
    assert join(record("failed"), word("CANCELLED", restarts=1), NOW, "/f").state == "cancelled"
    assert join(record("done", attempt=1), word("COMPLETED", restarts=1), NOW, "/f").state == "done"


def test_a_preempted_attempt_is_not_final_while_slurm_puts_the_job_back():
    state = join(record("cancelled"), word("COMPLETING"), NOW, "/f")
    assert not state.final


def test_a_job_that_lingers_after_its_end_does_not_hold_the_run():
    assert join(record("done"), word("COMPLETING"), NOW, "/f").state == "done"
    assert join(record("failed"), word("RUNNING"), NOW, "/f").state == "running"
    old = NOW - LINGER_S - 1
    assert join(record("failed", updated=old), word("RUNNING"), NOW, "/f").state == "failed"
    assert join(record("cancelled", updated=old), word("COMPLETING"), NOW, "/f").state == "cancelled"


def test_a_local_controller_that_is_gone():
    job = {"scheduler": "local", "job_id": "5", "pid": 5, "start_ticks": 1}
    lost = join(record("running", job=job, phase="bench"), Word("gone"), NOW, "/f")
    assert lost.state == "lost"
    assert "last known: running, phase bench" in lost.message
    assert "recipe logs r job" in lost.message
    ended = join(record(None, job=job, tasks_ended=True), Word("gone"), NOW, "/f")
    assert ended.state == "failed"
    assert "recipe logs r job" in ended.message


def test_a_folder_without_a_job():
    assert join(record("failed", job=None, message="refused"), None, NOW, "/f").state == "failed"
    assert join(record(None, job=None, born=NOW - 5), None, NOW, "/f").state == "pending"
    assert join(record(None, job=None, born=NOW - 3600), None, NOW, "/f").state == "failed"
    assert join(record("running", job=None), None, NOW, "/f").state == "lost"


@pytest.mark.parametrize(
    ("state", "valid", "code"),
    [
        ("done", True, 0),
        ("done", None, 0),
        ("done", False, 104),
        ("failed", None, 100),
        ("pending", None, 101),
        ("running", None, 101),
        ("lost", None, 102),
        ("cancelled", None, 103),
        ("timeout", None, 105),
        ("preempted", None, 106),
    ],
)
def test_exit_codes(state, valid, code):
    assert RunState("r", "/f", state, valid=valid).exit_code == code


def test_every_final_state_has_an_exit_code_of_its_own():
    assert set(EXIT_CODES) == set(FINAL) - {"done"}
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "\x00", '"x"', '{"state": 3, "nodes": 7, "processes": [], "points": 0}']
)
def test_broken_files_are_said_and_not_raised(tmp_path, text):
    run = make_run(tmp_path)
    run.state.write_text(text)
    run.job.write_text(text)
    found = read_record(run)
    assert found.state is None
    assert found.job is None
    assert found.trouble
    assert join(found, None, NOW, "/f").to_json()["trouble"]


def test_entries_of_another_kind_are_left_out(tmp_path):
    run = make_run(
        tmp_path,
        job={"scheduler": "slurm", "job_id": "7", "submitted": "yesterday"},
        state="running",
        nodes=[7, {"index": {}}, {"index": 0}],
        processes={"serve-0": True, "serve-1": {"state": "ready"}},
        points={"a": 3, "b": "done"},
    )
    state = join(read_record(run), None, NOW, "/f")
    assert (state.nodes, state.processes, state.points) == (
        ({"index": 0},),
        {"serve-1": {"state": "ready"}},
        {"b": "done"},
    )
    assert state.submitted is None


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        (
            ['{"event": "outcome", "message": "disk full"}', "\xff", '{"event": "run_ended", "state": "failed"}'],
            "failed",
        ),
        (['{"event": "outcome", "message": "disk full"}'], "running"),
        (['{"event": "run_ended", "state": "failed"}', '{"event": "run_started"}'], "running"),
        (['{"event": "run_ended", "state": "failed"}', "7"], "running"),
        ([], "running"),
    ],
)
def test_a_run_that_could_write_its_end_as_an_event_alone(tmp_path, lines, state):
    run = make_run(tmp_path, state="running", processes={"serve-0": {"state": "running"}})
    run.events.write_text("\n".join(lines) + "\n")
    found = read_record(run)
    assert (found.state, found.cut) == (state, state == "failed")
    joined = join(found, Word("gone"), NOW, "/f")
    assert (joined.state, joined.stale) == ("failed" if state == "failed" else "lost", True)
    assert state == "running" or joined.message == "disk full"


def test_the_job_is_found_where_the_submitting_command_was_killed_before_it_said_which(tmp_path):
    run = make_run(tmp_path, job={})
    (run.job_folder / "submission.sh").touch()
    assert read_record(run).job is None
    (run.job_folder / "812_submission.sh").symlink_to("submission.sh")
    assert read_record(run).job == {"scheduler": "slurm", "job_id": "812"}


@pytest.mark.parametrize("job", [{"scheduler": "slurm", "job_id": "7", "rehearsal": True}, {}])
def test_a_rehearsal_is_known_by_its_job_and_without_one_by_its_plan(tmp_path, job):
    run = make_run(tmp_path, job=job, state="failed", message="sbatch refused")
    if not job:
        assert read_record(run).rehearsal is False
        write_json(run.plan, make_plan(rehearsal=True).to_json())
    found = join(read_record(run), None, NOW, str(run.root))
    assert found.to_json()["rehearsal"] is True
    run.plan.unlink()
    assert read_record(run).rehearsal is bool(job)


def test_a_run_without_an_end_says_which_containers_may_be_left(tmp_path):
    run = make_run(tmp_path, job={}, state="running", phase="bench")
    attempt = run.attempt(0)
    attempt.root.mkdir(parents=True)
    removals = {f"serve-{i}": ["/usr/bin/podman", "rm", "--force", f"run-serve-{i}"] for i in range(6)}
    removals |= {"router": [], "client": ["rm", "-r", "-f", "/tmp/recipe-client"]}
    nodes = [{"index": 0, "name": "n1"}, {"index": 1, "name": "n2"}]
    processes = {name: {"node": len(name) % 2, "cleanup": words} for name, words in removals.items()}
    write_json(attempt.bound, {"nodes": nodes, "processes": processes})
    message = run_state(run).message
    assert "containers may be left: on n2 `/usr/bin/podman rm --force run-serve-0`; on n2 `" in message
    assert message.endswith(f"run-serve-3`; and 2 more: {attempt.bound}")
    # One that wrote its end has removed them, and what cannot be read is no reason to say nothing.
    attempt.bound.write_text("{")
    assert "containers" not in run_state(run).message
    write_json(attempt.bound, {"nodes": nodes, "processes": processes})
    assert "containers" not in str(run_state(make_run(tmp_path, "2026-11-29T12-00-00-b-ab13", state="failed")).message)
