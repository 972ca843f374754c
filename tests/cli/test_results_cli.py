from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from recipe_toolkit.rundir import RunDir
from results_support import DATA, check_schema, make_folder, many


@pytest.fixture
def run(recipe, monkeypatch) -> RunDir:
    folder = make_folder(recipe.folder)
    monkeypatch.setenv("RECIPE_RUNS", str(folder.root.parent))
    return folder


def test_report_prints_the_table_and_writes_the_page(recipe, run):
    done = recipe("report", "last")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny-2p1d: done, invalid\n")
    assert "! isl64-osl16-c32" in done.stdout
    assert done.stderr == f"page: {run.report}\n"
    page = run.report.read_text()
    assert "<h1>tiny-2p1d</h1>" in page
    assert "How it went" in page
    assert 'href="./bench/isl64-osl16-c1/"' in page
    # Again, with the page there, which is no part of itself.
    assert recipe("report", run.id).returncode == 0
    assert run.report.read_text() == page


def test_report_as_json_is_the_results_and_writes_nothing(recipe, run):
    done = recipe("report", "--json", run.id[:12], str(run.root))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        check_schema(json.loads(line))
    assert not run.report.exists()


def test_report_elsewhere_links_back(recipe, run):
    done = recipe("report", "last", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert not run.report.exists()
    assert f'href="runs/{run.id}/results.json"' in (recipe.folder / "page.html").read_text()


def test_report_of_several_runs(recipe, run):
    done = recipe("report", "last", "last")
    assert done.stdout.count("tiny-2p1d: done, invalid") == 2
    assert done.stderr == f"page: {run.report}\n" * 2
    one = recipe("report", "last", "last", "-o", "x.html")
    assert (one.returncode, one.stderr) == (0, "page: x.html\n")
    page = (recipe.folder / "x.html").read_text()
    assert page.count(f'href="./runs/{run.id}/bench/isl64-osl16-c1/"') == 2


def test_report_of_a_run_that_never_measured(recipe, run):
    run.results.unlink()
    run.state.write_text(json.dumps({**json.loads(run.state.read_text()), "state": "failed", "message": "it died"}))
    done = recipe("report", "last")
    assert done.returncode == 0, done.stderr
    assert "no point was measured" in done.stdout
    assert "it died" in done.stdout
    assert "No point was measured." in run.report.read_text()


def test_report_writes_figures_and_draws_in_the_terminal(recipe, run):
    done = recipe("report", "last", "--png", "out", "--csv", "out/data", "--plot")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"png: 1 files in out\ncsv: 1 files in out/data\npage: {run.report}\n"
    assert (recipe.folder / "out/frontier.png").read_bytes().startswith(b"\x89PNG")
    rows = (recipe.folder / "out/data/frontier.csv").read_text().splitlines()
    assert rows[0].startswith("point,of,load,kind,total tokens/s per GPU,")
    assert len(rows) == 6
    assert "10,937 ┤" in done.stdout
    two = recipe("report", "last", "last", "--csv", "two", "-o", "two.html")
    assert two.returncode == 0, two.stderr
    assert two.stderr.startswith("page: two.html\n")
    assert f"csv: 1 files in two/{run.id}\n" in two.stderr
    (recipe.folder / "file").write_text("")
    refused = recipe("report", "last", "--csv", "file")
    assert (refused.returncode, refused.stderr) == (1, "Error: cannot write figures into file: File exists\n")


def test_report_beside_predictions(recipe, run):
    example = json.loads((DATA / "golden/frontier/example.json").read_text())
    plan = json.loads(run.plan.read_text())
    example |= {"model": plan["served_name"], "gpu": plan["gpu"], "isl": 64, "osl": 16, "simulated": False}
    (recipe.folder / "frontier.json").write_text(json.dumps(example))
    done = recipe("report", "last", "--frontier", "frontier.json", "--csv", "out", "--plot")
    assert done.returncode == 0, done.stderr
    assert "? predicted" in done.stdout
    rows = (recipe.folder / "out/frontier.csv").read_text().splitlines()
    predicted = [row for row in rows if "predicted, not measured" in row]
    assert len(predicted) == len(example["points"])
    assert all(row.endswith(",") for row in predicted)  # on no frontier
    other = {**example, "isl": 63}
    (recipe.folder / "frontier.json").write_text(json.dumps(other))
    refused = recipe("report", "last", "--frontier", "frontier.json")
    assert refused.returncode == 1
    assert "ISL 63 there and 64 in the run" in refused.stderr
    for text in ("{", "[]", '{"schema": 1}'):
        (recipe.folder / "frontier.json").write_text(text)
        refused = recipe("report", "last", "--frontier", "frontier.json")
        assert refused.returncode == 1
        assert refused.stderr.startswith("Error: ")
        assert "hint: `recipe frontier` writes it" in refused.stderr
    assert recipe("report", "last", "--frontier", "none.json").returncode == 1


def test_two_reports_at_once_are_both_whole(recipe, run):
    program = [Path(sys.executable).with_name("recipe"), "report", str(run.root)]
    both = [subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        process.communicate(timeout=120)
    assert [process.returncode for process in both] == [0, 0]
    assert run.report.read_text().endswith("</html>\n")
    assert not [path.name for path in run.root.iterdir() if path.name.startswith(".report")]


@pytest.mark.parametrize("name", ["results.json", "plan.json"])
def test_report_of_a_broken_run_is_one_message(recipe, run, name):
    (run.root / name).write_text("{")
    done = recipe("report", "last")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{name}: cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["report", "collect"])
def test_a_run_that_is_not_there(recipe, run, verb):
    done = recipe(verb, "nothing-like-it")
    assert done.returncode == 1
    assert "no run 'nothing-like-it'" in done.stderr


def test_report_where_the_page_cannot_be_written(recipe, run):
    done = recipe("report", "last", "-o", "no/such/folder/page.html")
    assert done.returncode == 1
    assert "cannot write the page" in done.stderr
    assert "hint: name another file with -o" in done.stderr
    assert done.stdout.startswith("tiny-2p1d: done")


def test_collect_copies_beside_and_says_where(recipe, run):
    done = recipe("collect", "last", "-o", run.id)
    assert done.returncode == 0, done.stderr
    copy = recipe.folder / run.id
    assert done.stdout == f"{copy}\n"
    assert "as the run's manifest says" in done.stderr
    assert "<h1>tiny-2p1d</h1>" in (copy / "report.html").read_text()
    assert not (copy / "token").exists()
    assert not run.report.exists()
    again = recipe("collect", "last", "-o", run.id)
    assert again.returncode == 0, again.stderr


def test_collect_makes_one_archive_that_says_the_same_as_the_run(recipe, run, tmp_path):
    done = recipe("collect", "last")
    assert done.returncode == 0, done.stderr
    archive = recipe.folder / f"{run.id}.tar.gz"
    assert done.stdout == f"{archive}\n"
    assert done.stderr.endswith("read back; as the run's manifest says\n")
    elsewhere = archive.rename(tmp_path / "sent.tar.gz")
    verified = recipe("collect", "--verify", elsewhere)
    assert (verified.returncode, verified.stdout) == (0, "")
    assert f"run {run.id}, " in verified.stderr
    assert verified.stderr.endswith("results.json is as its schema says\n")
    of_the_run = recipe("report", "last").stdout
    assert recipe("report", elsewhere).stdout == of_the_run
    assert recipe("report", elsewhere, "-o", "page.html").stderr == "page: page.html\n"
    page = (recipe.folder / "page.html").read_text()
    assert "<h1>tiny-2p1d</h1>" in page
    assert "<a " not in page.partition("<script>")[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "sent.tar.gz"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_verify_does_not_wait_for_what_is_no_file(recipe, make):
    make(recipe.folder / "copy.tar.gz")
    done = recipe("collect", "--verify", "copy.tar.gz", timeout=20)
    assert done.returncode == 1
    assert "copy.tar.gz: is no file" in done.stderr


def test_verify_says_what_is_wrong(recipe, run, tmp_path):
    assert recipe("collect", "last", "-o", "copy").returncode == 0
    assert recipe("report", "./copy").returncode == 0  # which writes a page into it
    assert recipe("collect", "--verify", "copy").returncode == 0
    (recipe.folder / "copy" / "plan.json").write_text("{}")
    done = recipe("collect", "--verify", "copy")
    assert done.returncode == 1
    assert done.stderr.startswith("changed: plan.json\n")
    assert "1 is not as its manifest says" in done.stderr
    results = recipe.folder / "copy" / "results.json"
    results.write_text(results.read_text().replace('"working": 4', '"working": "four"', 1))
    done = recipe("collect", "--verify", "copy")
    assert done.returncode == 1
    assert "results.json: cannot be read:\n  gpus.working: " in done.stderr
    (recipe.folder / "cut.tar.gz").write_bytes(b"\x1f\x8b")
    for words in (["collect", "--verify"], ["report"]):
        cut = recipe(*words, "cut.tar.gz")
        assert cut.returncode == 1
        assert cut.stderr.startswith("Error: cut.tar.gz: cannot be read: ")
    assert recipe("collect", "--verify", "none.tar.gz").returncode == 1
    assert recipe("collect", "last", "--verify", "copy").returncode == 2
    assert recipe("collect").returncode == 2


def test_a_copy_asks_no_scheduler(recipe, run, fake_slurm):
    """The job of that number is somebody else's on another cluster."""
    job = {"scheduler": "slurm", "job_id": "7", "cluster": None}
    run.job.write_text(json.dumps(job))
    state = {**json.loads(run.state.read_text()), "state": "running"}
    run.state.write_text(json.dumps(state))
    run.events.write_text("")
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    assert recipe("status", run.id).stdout.startswith(f"{run.id}: running")
    assert recipe("collect", run.id, "-o", "copy").returncode == 1  # files are not as they were
    asked = len(fake_slurm.calls())
    done = recipe("status", "./copy")
    assert "lost" in done.stdout.splitlines()[0]
    assert "a copy that was made before the run's end" in done.stdout
    assert len(fake_slurm.calls()) == asked


def test_collect_into_an_archive(recipe, run):
    done = recipe("collect", "last", "-o", "out/it.tar.gz")
    assert done.returncode == 0, done.stderr
    with tarfile.open(recipe.folder / "out" / "it.tar.gz") as tar:
        names = tar.getnames()
    assert f"{run.id}/results.json" in names
    assert f"{run.id}/report.html" in names
    assert f"{run.id}/token" not in names
    assert [path.name for path in (recipe.folder / "out").iterdir()] == ["it.tar.gz"]


def test_a_copy_is_a_run_that_can_be_reported_and_collected(recipe, run):
    assert recipe("collect", "last", "-o", "copy").returncode == 0
    assert recipe("report", "./copy").stdout.startswith("tiny-2p1d: done, invalid\n")
    assert recipe("collect", "./copy", "-o", "again").returncode == 0


def test_collect_says_what_is_not_as_it_was(recipe, run):
    run.results.write_text(run.results.read_text().replace("tiny-2p1d", "tiny-3p1d"))
    run.recipe_lock.unlink()
    done = recipe("collect", "last", "-o", run.id)
    assert done.returncode == 1
    assert done.stdout == f"{recipe.folder / run.id}\n"
    assert "changed: results.json" in done.stderr
    assert "missing: recipe.lock.yaml" in done.stderr
    assert "2 are not as the run's manifest says" in done.stderr


def test_collect_a_run_that_was_killed(recipe, run):
    run.manifest.unlink()
    run.results.unlink()
    run.state.write_text('{"schema": 1, "sta')
    done = recipe("collect", "last", "-o", run.id)
    assert done.returncode == 0, done.stderr
    assert "the run left no manifest" in done.stderr
    assert (recipe.folder / run.id / "state.json").is_file()


def test_collect_what_cannot_be_reported(recipe, run):
    run.plan.write_text("{")
    done = recipe("collect", "last", "-o", run.id)
    assert done.returncode == 1
    assert "no report: " in done.stderr
    assert "changed: plan.json" in done.stderr
    assert (recipe.folder / run.id / "results.json").is_file()


def test_collect_overwrites_nothing_else(recipe, run):
    (recipe.folder / "mine").mkdir()
    (recipe.folder / "mine" / "thesis.tex").write_text("x")
    done = recipe("collect", "last", "-o", "mine")
    assert done.returncode == 1
    assert "is no earlier copy of" in done.stderr
    assert Path(recipe.folder, "mine", "thesis.tex").read_text() == "x"
    there = recipe("collect", "last", "-o", str(run.root))
    assert there.returncode == 1
    assert "lies in the run's own folder" in there.stderr


def test_a_thousand_points_are_on_the_page_and_in_the_table(tmp_path):
    run = make_folder(tmp_path)
    many(run, 1000)
    argv = [Path(sys.executable).with_name("recipe"), "report", run.root]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    page = run.report.read_text(encoding="utf-8")
    for index in (0, 500, 999):
        assert f"isl64-osl16-c{index} " in done.stdout
        assert f">isl64-osl16-c{index}<" in page
