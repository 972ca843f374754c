from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report.material import material, page, read_events
from recipe_toolkit.report.table import render_table
from recipe_toolkit.results import gather as gather_module
from recipe_toolkit.results.archive import unpack, verify_copy
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
    with run.recipe_lock.open("a") as file:
        file.write("model: {}\n")
    run.results.write_text("{}")
    (run.bench("isl64-osl16-c1") / "profile_export_aiperf.json").unlink()
    run.events.write_text("x" * run.events.stat().st_size)
    found = gather(run, tmp_path / "copy")
    assert {(item.path, item.what) for item in found.differences or ()} == {
        ("results.json", "changed"),
        ("recipe.lock.yaml", "changed"),
        ("bench/isl64-osl16-c1/profile_export_aiperf.json", "missing"),
        ("events.jsonl", "changed"),
    }


def test_a_run_that_was_killed_has_no_manifest(run: RunDir, tmp_path: Path) -> None:
    for path in (run.manifest, run.results, run.events):
        path.unlink()
    found = gather(run, tmp_path / "copy")
    assert found.differences is None
    assert "manifest.json" in names(found.path)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 5000, '{"schema": 1, "files": [{"path": "x", "bytes": -1}]}'])
def test_a_manifest_that_cannot_be_read_is_told_and_all_is_copied(run: RunDir, tmp_path: Path, content: str) -> None:
    run.manifest.write_text(content)
    found = gather(run, tmp_path / "copy")
    (difference,) = found.differences or ()
    assert difference.what == "unreadable"
    assert difference.path.startswith("manifest.json (")
    assert names(found.path) == COPIED
    assert verify_copy(found.path).differences == ()


@pytest.mark.parametrize("name", ["copy.tar", "copy.zip", "copy.tar.bz2"])
def test_names_of_other_archives_are_no_folders(run: RunDir, tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="no archive that is written here"):
        gather(run, tmp_path / name)


def test_zst_where_python_can(run: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "copy.tar.zst"
    if "zst" in tarfile.TarFile.OPEN_METH:
        assert verify_copy(gather(run, target).path).differences == ()
    else:
        with pytest.raises(RecipeError, match="this Python cannot write zst"):
            gather(run, target)


@pytest.mark.parametrize("target", ["copy", "copy.tar.gz"])
def test_a_copy_that_reads_back_otherwise_is_not_kept(
    run: RunDir, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that damages what it is given: the copy gets other bytes than were hashed."""
    whole = gather_module._Counted.read
    monkeypatch.setattr(
        gather_module._Counted, "read", lambda self, size=-1: whole(self, size).replace(b"hello", b"HELLO")
    )
    with pytest.raises(RecipeError, match=r"reads back otherwise \(changed: attempts/0/nodes/00/agent\.log\)"):
        gather(run, tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


# --- verifying a copy ------------------------------------------------------------------------------------------------


def refusal(act: Callable[[], object]) -> str | None:
    """What a RecipeError says; None where nothing is raised."""
    try:
        act()
    except RecipeError as error:
        return error.message
    return None


def repacked(archive: Path, change: Callable[[Path], None]) -> Path:
    """The archive, changed, as somebody packs it again by hand."""
    folder = archive.parent / "by-hand"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    change(top)
    target = archive.with_name("again.tar.gz")
    with tarfile.open(target, "w:gz") as tar:
        tar.add(folder, ".")
    return target


def test_a_copy_is_verified_anywhere(run: RunDir, tmp_path: Path) -> None:
    found = gather(run, tmp_path / "copy.tar.gz").path
    verified = verify_copy(found)
    assert (verified.run, verified.differences) == (run.id, ())
    assert verified.files == len(COPIED) - 1
    assert verify_copy(repacked(found, lambda top: None)).differences == ()


def test_what_is_not_as_it_was_is_named(run: RunDir, tmp_path: Path) -> None:
    def change(top: Path) -> None:
        (top / "plan.json").write_text("{}")
        (top / "events.jsonl").unlink()
        (top / "note.txt").write_text("x")
        (top / "link").symlink_to("/etc/passwd")

    found = verify_copy(repacked(gather(run, tmp_path / "copy.tar.gz").path, change))
    assert {(item.path, item.what) for item in found.differences} == {
        ("plan.json", "changed"),
        ("events.jsonl", "missing"),
        ("note.txt", "unlisted"),
        ("link", "unlisted"),
    }


@pytest.mark.parametrize("kept", [0, 1, 10, 300, -200, -1])
def test_an_archive_that_was_cut_is_an_error(run: RunDir, tmp_path: Path, kept: int) -> None:
    path = gather(run, tmp_path / "copy.tar.gz").path
    path.write_bytes(path.read_bytes()[:kept])
    assert str(path) in (refusal(lambda: verify_copy(path)) or "")


def test_bytes_that_fell_over_are_seen(run: RunDir, tmp_path: Path) -> None:
    path = gather(run, tmp_path / "copy.tar.gz").path
    whole, seen = path.read_bytes(), []
    for place in range(20, len(whole) - 20, 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        said = refusal(lambda: seen.extend(verify_copy(path).differences))
        assert said is not None or seen
        seen.clear()


def test_no_path_of_an_archive_leads_out_of_it(run: RunDir, tmp_path: Path) -> None:
    path = tmp_path / "evil.tar.gz"
    for name in ("../evil.json", "/tmp/evil.json", "run/../../evil.json", "one/plan.json two/plan.json", "plan.json"):
        with tarfile.open(path, "w:gz") as tar:
            for word in name.split(" "):
                tar.addfile(tarfile.TarInfo(word))
        for read in (verify_copy, lambda path: unpack(path, tmp_path / "out")):
            with pytest.raises(RecipeError, match="one folder and nothing beside"):
                read(path)
    assert not (tmp_path / "evil.json").exists()


def test_an_archive_without_a_run(run: RunDir, tmp_path: Path) -> None:
    path = tmp_path / "other.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(run.events, "run/events.jsonl")
    with pytest.raises(RecipeError, match="holds no run"):
        unpack(path, tmp_path / "out")
    with pytest.raises(RecipeError, match=r"holds no manifest\.json"):
        verify_copy(path)


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


JUNK = st.sampled_from(
    [None, True, -1, 0, 1.5, 1e300, "", "x", "\x1b[2J", [], [1], ["x"], {}, {"x": 1}, [[]], {"t": {}}]
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in items for found in places(value, (*path, key)))]


def put(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return data


def read_and_show(run: RunDir) -> None:
    found = material(run)
    render_table(found.results)
    page(found, run.report)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_document_with_any_wrong_value_is_reported_or_refused(run: RunDir, data: st.DataObject) -> None:
    """As hand-edited files have: never another error than the one with the file's name."""
    files = [run.results, run.plan, run.events]
    whole = [file.read_bytes() for file in files]
    file = data.draw(st.sampled_from(files))
    try:
        if file == run.events:
            event = json.loads(data.draw(st.sampled_from(file.read_text().splitlines())))
            file.write_text(json.dumps(put(event, data.draw(st.sampled_from(places(event))), data.draw(JUNK))))
        else:
            document = json.loads(file.read_text())
            write_json(file, put(document, data.draw(st.sampled_from(places(document))), data.draw(JUNK)))
        said = refusal(lambda: read_and_show(run))
        assert said is None or str(file) in said
    finally:
        for path, content in zip(files, whole, strict=True):
            path.write_bytes(content)


def test_a_wrong_value_is_named_with_its_field(run: RunDir) -> None:
    results = json.loads(run.results.read_text())
    write_json(run.results, put(results, ("points", 0, "ttft_ms", "mean"), "fast"))
    with pytest.raises(RecipeError, match=r"points\.0\.ttft_ms\.mean"):
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
