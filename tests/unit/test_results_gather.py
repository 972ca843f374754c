from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report.material import material, page, read_events
from recipe_toolkit.results.gather import gather, verify
from recipe_toolkit.results.manifest import write_manifest
from recipe_toolkit.rundir import RunDir, write_json
from results_support import EVENTS, make_folder


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_folder(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


COPIED = [
    "attempts/0/nodes/00/agent.log",
    "bench/isl64-osl16-c1/profile_export_aiperf.json",
    "events.jsonl",
    "job.json",
    "manifest.json",
    "plan.json",
    "recipe.lock.yaml",
    "results.json",
    "state.json",
]


def test_a_folder_with_everything_but_the_token(run: RunDir, tmp_path: Path) -> None:
    found = gather(run, tmp_path / "new" / "copy", {"report.html": "<p>"})
    assert found.differences == ()
    assert names(found.path) == sorted([*COPIED, "report.html"])
    assert found.files == len(COPIED)
    assert (found.path / "plan.json").read_bytes() == run.plan.read_bytes()
    assert "s3cr3t" not in "".join(path.read_text() for path in found.path.rglob("*") if path.is_file())
    assert list(verify(RunDir(found.path))) == []
    assert list(tmp_path.joinpath("new").iterdir()) == [found.path]


def test_an_archive_with_one_folder_in_it(run: RunDir, tmp_path: Path) -> None:
    found = gather(run, tmp_path / "copy.tar.gz")
    with tarfile.open(found.path) as tar:
        assert sorted(tar.getnames()) == [f"{run.id}/{name}" for name in COPIED]
        assert {member.uname for member in tar.getmembers()} == {""}
        tar.extractall(tmp_path / "out", filter="data")
    assert list(verify(RunDir(tmp_path / "out" / run.id))) == []


def test_a_second_copy_replaces_the_first(run: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    gather(run, target)
    (run.root / "more.log").write_text("x")
    (run.root / "recipe.lock.yaml").unlink()
    found = gather(run, target)
    assert [difference.path for difference in found.differences or ()] == ["recipe.lock.yaml"]
    assert "more.log" in names(target)
    assert "recipe.lock.yaml" not in names(target)
    gather(run, tmp_path / "copy.tgz")
    gather(run, tmp_path / "copy.tgz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "copy.tgz", "runs"]


def test_an_empty_folder_is_filled(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert gather(run, tmp_path / "empty").files == len(COPIED) - 1


@pytest.mark.parametrize("kind", ["file", "folder", "other run", "run itself", "inside", "archive folder", "link"])
def test_nothing_else_is_overwritten(run: RunDir, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "copy"
    if kind == "file":
        target.write_text("mine")
    elif kind == "folder":
        target.mkdir()
        (target / "mine").write_text("x")
    elif kind == "other run":
        gather(run, target)
        write_json(target / "manifest.json", {"schema": 1, "run": "another", "copy": True, "files": []})
    elif kind == "run itself":
        target = run.root
    elif kind == "inside":
        target = run.root / "bench" / "copy"
    elif kind == "archive folder":
        target = tmp_path / "copy.tar.gz"
        target.mkdir()
    else:
        target.symlink_to(tmp_path / "nowhere")
    before = names(tmp_path)
    with pytest.raises(RecipeError):
        gather(run, target)
    assert names(tmp_path) == before


def test_a_runs_own_folder_elsewhere_is_no_earlier_copy(run: RunDir, tmp_path: Path) -> None:
    moved = tmp_path / "copy"
    run.root.rename(moved)
    (moved / "manifest.json").unlink()
    write_manifest(RunDir(moved))
    again = make_folder(tmp_path / "second")
    with pytest.raises(RecipeError, match="no earlier copy"):
        gather(again, moved)


def test_what_changed_since_the_manifest_is_told(run: RunDir, tmp_path: Path) -> None:
    run.attempt(0).agent_log(0).write_text("hello\nand goodbye\n")  # grew, as logs do
    run.report.write_text("a page")
    assert list(verify(run)) == []
    run.results.write_text("{}")
    (run.bench("isl64-osl16-c1") / "profile_export_aiperf.json").unlink()
    run.events.write_text("x" * run.events.stat().st_size)
    found = gather(run, tmp_path / "copy")
    assert {(item.path, item.what) for item in found.differences or ()} == {
        ("results.json", "changed"),
        ("bench/isl64-osl16-c1/profile_export_aiperf.json", "missing"),
        ("events.jsonl", "changed"),
    }


def test_a_run_that_was_killed_has_no_manifest(run: RunDir, tmp_path: Path) -> None:
    for path in (run.manifest, run.results, run.events):
        path.unlink()
    found = gather(run, tmp_path / "copy")
    assert found.differences is None
    assert "manifest.json" in names(found.path)


def test_a_manifest_that_cannot_be_read_is_an_error(run: RunDir, tmp_path: Path) -> None:
    run.manifest.write_text("{")
    with pytest.raises(RecipeError, match=r"manifest\.json: cannot be read"):
        gather(run, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("target", ["copy", "copy.tar.gz"])
def test_a_copy_that_fails_leaves_nothing(
    run: RunDir, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").mkdir()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recipe_toolkit.results.gather._with_size", full)
    with pytest.raises(OSError, match="No space"):
        gather(run, tmp_path / target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "runs"]
    assert names(tmp_path / "copy") == []


def test_odd_names_and_links(run: RunDir, tmp_path: Path) -> None:
    (run.root / os.fsdecode(b"bad-\xff.log")).write_bytes(b"x")
    (run.root / "way out").symlink_to("/etc/passwd")
    (run.root / "inner").symlink_to("plan.json")
    (run.root / "token2").symlink_to("token")
    write_manifest(run)
    found = gather(run, tmp_path / "copy")
    assert found.differences == ()
    kept = names(found.path)
    assert "inner" in kept
    assert not (found.path / "inner").is_symlink()
    assert "way out" not in kept
    assert "token2" not in kept
    assert list(verify(RunDir(found.path))) == []


# --- what a report is made of ----------------------------------------------------------------------------------------


def test_the_results_with_the_state_as_it_is_now(run: RunDir) -> None:
    assert material(run).results["state"] == "done"
    assert material(run).results["nodes"][0]["name"] == "node-a"
    now = material(run, {"state": "lost", "message": "the job is gone", "nodes": []}).results
    assert now["state"] == "lost"
    assert now["nodes"][0]["name"] == "node-a"
    assert "the run is lost: the job is gone" in now["reasons"]
    assert len(now["points"]) == 5
    assert now["versions"]["recipe-toolkit"] == "1.2.3"


def test_a_run_without_results_has_a_report_all_the_same(run: RunDir, tmp_path: Path) -> None:
    run.results.unlink()
    state = {"state": "failed", "message": "ready: it died", "nodes": [{"index": 0, "name": "n0", "address": None}]}
    found = material(run, state)
    assert found.results["points"] == []
    assert found.results["reasons"][-1] == "the run is failed: ready: it died"
    shown = page(found, tmp_path / "report.html")
    assert "No point was measured." in shown
    assert f'href="runs/{run.id}/plan.json"' in shown


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 1}', '{"schema": 2}', '{"schema": 1, "gpus": 3}', "\x00"]
)
@pytest.mark.parametrize("name", ["results.json", "plan.json"])
def test_files_that_cannot_be_read_are_named(run: RunDir, name: str, content: str) -> None:
    (run.root / name).write_text(content)
    with pytest.raises(RecipeError, match=f"{name}: cannot be read"):
        material(run)


def test_no_plan_no_report(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"holds no plan\.json"):
        material(RunDir(tmp_path))


def test_events_cut_in_the_middle(run: RunDir) -> None:
    whole = run.events.read_text()
    run.events.write_text(whole[:-10] + '\n[1]\n"x"\n')
    assert read_events(run) == EVENTS[:-1]
    run.events.unlink()
    assert read_events(run) == []


def test_links_of_the_page_in_the_run_folder(run: RunDir) -> None:
    found: Any = material(run)
    shown = page(found, run.report)
    assert 'href="./results.json"' in shown
    assert 'href="./token"' not in shown
