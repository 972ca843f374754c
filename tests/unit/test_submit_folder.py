"""The run folder before submission: whole, private where it must be, or not there."""

from __future__ import annotations

import calendar
import json
import re
from time import gmtime

import pytest

from recipe_toolkit.errors import SubmitError
from recipe_toolkit.plan.model import plan_from_json
from recipe_toolkit.rundir import RunDir, write_json
from recipe_toolkit.submit import folder
from submit_support import make_plan


def write(run):
    return folder.write_run(run, {"schema": 1, "name": "tiny"}, {"schema": 1, "name": "site"}, make_plan())


def test_everything_is_there_before_anything_is_submitted(tmp_path):
    run = write(folder.new_run(str(tmp_path / "deep" / "runs"), "tiny"))
    assert sorted(path.name for path in run.root.iterdir()) == [
        "cluster.lock.yaml",
        "job",
        "plan.json",
        "recipe.lock.yaml",
        "token",
    ]
    assert plan_from_json(json.loads(run.plan.read_text())) == make_plan()
    assert "name: tiny" in run.recipe_lock.read_text()
    assert run.token.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}\n", run.token.read_text())
    assert [path.name for path in run.root.parent.iterdir()] == [run.id]


def test_two_runs_have_two_tokens(tmp_path):
    one, two = (write(folder.new_run(str(tmp_path), "tiny")) for _ in range(2))
    assert one.token.read_text() != two.token.read_text()


def test_a_clock_that_is_set_back_for_the_winter_leaves_runs_in_order(monkeypatch):
    """2026-10-25 in Berlin: 02:30 summer time, and 02:10 winter time forty minutes later."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    now = calendar.timegm((2026, 10, 25, 0, 30, 0))
    ids = []
    for later in (0, 40 * 60):
        monkeypatch.setattr(folder.time, "gmtime", lambda at=now + later: gmtime(at))
        ids.append(folder.new_id("tiny"))
    assert [item[:19] for item in ids] == ["2026-10-25T00-30-00", "2026-10-25T01-10-00"]


@pytest.mark.parametrize(
    ("name", "word"),
    [("glm-5.2_nvfp4", "glm-5.2_nvfp4"), ("a b/../c;$(x)", "a-b-..-c-x"), ("--", "run"), ("ünï", "n")],
)
def test_run_ids_hold_no_sign_that_a_shell_or_a_path_takes_amiss(tmp_path, name, word):
    run = folder.new_run(str(tmp_path), name)
    assert folder.RUN_ID.fullmatch(run.id)
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT\d\d-\d\d-\d\d-{re.escape(word)}-[0-9a-f]{{4}}", run.id)
    assert run.root.parent == tmp_path


def test_a_name_that_is_taken_in_the_meantime_gets_another_suffix(tmp_path):
    run = RunDir(tmp_path / "2026-11-29T12-00-00-tiny-ab12")
    first, second = write(run), write(run)
    assert first.id == run.id
    assert second.id != run.id
    assert second.id[:-4] == run.id[:-4]
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_left_where_writing_fails(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_json", fail)
    with pytest.raises(SubmitError, match="No space left on device"):
        write(folder.new_run(str(tmp_path), "tiny"))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_the_file_that_found_no_room(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_json(tmp_path / "state.json", {})
    assert caught.value.filename == str(tmp_path / "state.json")
    assert list(tmp_path.iterdir()) == []


def test_a_runs_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(SubmitError, match="cannot write the run folder") as caught:
        write(folder.new_run(str(tmp_path / "runs"), "tiny"))
    assert "runs" in caught.value.hint


def test_a_runs_folder_that_nobody_may_write_is_refused():
    with pytest.raises(SubmitError, match="cannot write the run folder") as caught:
        write(folder.new_run("/proc/self", "tiny"))  # root too is refused there
    assert "/proc/self" in caught.value.message


def test_a_refused_job_is_said_in_the_state(tmp_path):
    run = write(folder.new_run(str(tmp_path), "tiny"))
    folder.write_refusal(run, "sbatch refused the job")
    state = json.loads(run.state.read_text())
    assert (state["state"], state["phase"], state["message"]) == ("failed", "submit", "sbatch refused the job")
