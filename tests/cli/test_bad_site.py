"""A site that does not do its part: no sbatch or an odd one, disks that are full or may not be written, odd names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.cli.group import run as run_verb
from recipe_toolkit.submit import slurm_commands, wait
from slurm_site import QUICK, small_recipe
from submit_support import make_run, wait_until

RECIPE = Path(sys.executable).with_name("recipe")
ONE, TWO = "2026-11-29T12-00-00-tiny-ab12", "2026-11-29T13-00-00-tiny-ab34"


def write_site(folder: Path, what: dict[str, Any] | None = None, **profile: Any) -> None:
    (folder / "tiny.yaml").write_text(json.dumps(what or small_recipe(QUICK), ensure_ascii=False))
    head = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "runs"}
    (folder / "site.yaml").write_text(json.dumps({**head, **profile}, ensure_ascii=False))


# --- sbatch


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"err": "sbatch: error: Batch job submission failed: No partition specified\n", "code": 1},
            "No partition spec",
        ),
        ({"err": "sbatch: error: one\nsbatch: error: two\n", "code": 1}, "sbatch: error: one\n    sbatch: error: two"),
        ({"code": 2}, "it said: nothing"),
        ({"out": ""}, "sbatch printed no job id"),
        ({"out": "Submitted batch job 12\n"}, "it said: Submitted batch job 12"),
        ({"out": "<html>502</html>\n"}, "it said: <html>502</html>"),
        ({"out": "12;a b\n"}, "sbatch printed no job id"),
        ({"out": "\x1b[31mred\x1b[0m\n"}, "it said: \\x1b[31mred\\x1b[0m"),
        ({"out": "-5\n"}, "sbatch printed no job id"),
        ({"out": "12\n", "code": 1}, "sbatch refused the job"),
    ],
)
def test_an_sbatch_that_gives_no_job(recipe: Any, fake_slurm: Any, answer: dict[str, Any], said: str) -> None:
    write_site(recipe.folder)
    fake_slurm.says("sbatch", **answer)
    done = recipe("submit", "tiny.yaml", "-c", "./site.yaml", "--json")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    (run,) = (recipe.folder / "runs").iterdir()
    assert not (run / "job.json").exists()
    state = json.loads(recipe("status", run.name, "--json").stdout)
    assert (state["state"], state["job_id"]) == ("failed", None)
    assert said.splitlines()[0] in state["message"]


@pytest.mark.parametrize(
    "answer",
    [
        {"out": "sbatch: INFO: your project has 3 hours left\n77\n"},
        {"out": "77\n", "err": "sbatch: warning: can't honour --ntasks-per-node\n"},
        {"out": "77;main\n"},
        {"out": "\n77\n\n"},
    ],
)
def test_an_sbatch_that_says_more_than_the_job(recipe: Any, fake_slurm: Any, answer: dict[str, Any]) -> None:
    write_site(recipe.folder)
    fake_slurm.says("sbatch", **answer)
    done = recipe("submit", "tiny.yaml", "-c", "./site.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job_id"] == "77"
    assert answer.get("err", "").strip() in done.stderr
    assert ("3 hours left" in answer["out"]) == ("3 hours left" in done.stderr)


def test_an_sbatch_that_does_not_answer(recipe: Any, fake_slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_site(recipe.folder)
    fake_slurm.says("sbatch", "77\n", sleep=60)
    monkeypatch.setattr(slurm_commands, "SUBMIT_TIMEOUT_S", 0.5)
    monkeypatch.chdir(recipe.folder)
    assert run_verb(["submit", "tiny.yaml", "-c", "./site.yaml"]) == 1
    (run,) = (recipe.folder / "runs").iterdir()
    state = json.loads((run / "state.json").read_text())
    assert state["state"] == "failed"
    assert "no answer in 0.5 s" in state["message"]


@pytest.mark.parametrize("kind", ["not executable", "no program", "folder"])
def test_an_sbatch_that_cannot_run(recipe: Any, tmp_path: Path, kind: str) -> None:
    write_site(recipe.folder)
    sbatch = tmp_path / "odd" / "sbatch"
    sbatch.parent.mkdir()
    if kind == "folder":
        sbatch.mkdir()
    else:
        sbatch.write_bytes(b"\x7fELF nothing")
        sbatch.chmod(0o755 if kind == "no program" else 0o644)
    kept = [part for part in os.environ["PATH"].split(":") if not shutil.which("sbatch", path=part)]
    done = recipe("submit", "tiny.yaml", "-c", "./site.yaml", PATH=":".join([str(sbatch.parent), *kept]))
    assert done.returncode == 1
    assert done.stderr.startswith("Error: sbatch: ")
    assert "Traceback" not in done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs verbs in this process, in an empty folder: exit code, stdout, stderr."""
    for name in ("RECIPE_RUNS", "RECIPE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(wait, "GRACE_S", 0.1)

    def verb(*words: str) -> tuple[int, str, str]:
        code = run_verb(list(words))
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        assert "\x1b" not in said.out + said.err
        return code, said.out, said.err

    verb.folder = folder  # type: ignore[attr-defined]
    return verb


GARBAGE = (
    "garbage\n",
    "7|RUNNING\n",
    "7|||||||||\n",
    "|" * 20 + "\n",
    "7|FLYING|x|y|z|w|\n",
    "\udcff\n",
    "7|RUNNING|\x1b[31m|n1|0|0|\n",
)


@pytest.mark.parametrize("verb", ["status", "list", "wait", "cancel"])
def test_a_squeue_that_prints_garbage(here: Any, fake_slurm: Any, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipe_toolkit.submit.cancel.cancel.__defaults__", (0.2,))
    make_run(here.folder / "runs", ONE, state="running", phase="bench")
    fake_slurm.says("scancel")
    for out in GARBAGE:
        for program in ("squeue", "scontrol", "sacct"):
            fake_slurm.says(program, out)
        words = {"wait": [ONE, "--timeout", "0.2"], "list": []}.get(verb, [ONE])
        assert here(verb, *words)[0] in (0, 101, 102), out


# --- which run

WORDS = ("", " ", "..", ".", "/", "../..", "/etc", "/dev/null", "nope", "tiny", "-", "a\nb", "\x1b[31m", "*")


@pytest.mark.parametrize("word", [*WORDS, "x" * 5000, "~nobody-here", "~nobody-here/x", "%j", "a\x1b/b"])
def test_words_that_name_no_run(here: Any, word: str) -> None:
    for name in (ONE, TWO):
        make_run(here.folder / "runs", name, state="done", valid=True)
    for verb in ("status", "logs", "wait", "cancel", "collect", "report"):
        code, out, err = here(verb, "--", word)
        assert (code, out) == (102 if verb == "wait" else 1, "")
        assert err.startswith("Error: ")
        assert [path.name for path in here.folder.iterdir()] == ["runs"]


def test_folders_of_users_that_are_not_there(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(here.folder / "runs", ONE, state="done", valid=True)
    assert here("status", "last", "--runs", "~nobody-here/x")[0] == 1
    monkeypatch.setenv("RECIPE_RUNS", "~nobody-here/x")
    monkeypatch.setenv("RECIPE_CLUSTERS", "~nobody-here/y")
    assert here("status", "last")[0] == 0


# --- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=200", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, leave: int) -> None:
    """Fill a file system up to ``leave`` bytes."""
    free = os.statvfs(folder)
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        # A run writes at the same time: the last page may be its.
        for _ in range(max(0, free.f_bavail * free.f_frsize - leave) // 4096):
            file.write(b"\0" * 4096)


@pytest.mark.parametrize("leave", [0, 4096, 8192, 16384, 24576])
def test_a_disk_that_is_full_when_submitting(recipe: Any, small_disk: Path, fake_slurm: Any, leave: int) -> None:
    fake_slurm.says("sbatch", "77\n")
    write_site(recipe.folder, runs=str(small_disk / "runs"))
    fill(small_disk, leave)
    done = recipe("submit", "tiny.yaml", "-c", "./site.yaml")
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        return
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert str(small_disk) in done.stderr
    if not fake_slurm.calls("sbatch"):
        left = list((small_disk / "runs").glob("*")) if (small_disk / "runs").exists() else []
        assert all(not path.name.startswith(".") for path in left)


@pytest.mark.parametrize("kind", ["read-only", "no permission", "a file", "below a file", "a pipe"])
def test_a_runs_folder_that_cannot_be_used(recipe: Any, small_disk: Path, fake_slurm: Any, kind: str) -> None:
    fake_slurm.says("sbatch", "77\n")
    runs = small_disk / "runs"
    if kind == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    elif kind == "no permission":
        small_disk.chmod(0)
    elif kind == "a pipe":
        os.mkfifo(runs)
    else:
        runs.touch()
        runs = runs / "x" if kind == "below a file" else runs
    write_site(recipe.folder, runs=str(runs))
    weak = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    done = subprocess.run(
        [*weak, RECIPE, "submit", "tiny.yaml", "-c", "./site.yaml"],
        cwd=recipe.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot write the run folder {runs}/" in done.stderr
    assert "hint: the profile's `runs` names the folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert fake_slurm.calls() == []
    listed = subprocess.run(
        [*weak, RECIPE, "list", "-c", "./site.yaml"], cwd=recipe.folder, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in listed.stderr


CHATTY = ["python3", "-uc", "import time\nfor i in range(200): print('x' * 4000); time.sleep(0.02)"]


@pytest.mark.parametrize("leave", [0, 8192, 40960])
def test_a_disk_that_fills_during_the_run(recipe: Any, small_disk: Path, leave: int) -> None:
    """The run ends as failed, says that there is no room and where, and leaves no process; what it has is kept."""
    subprocess.run(["mount", "-o", "remount,size=2m", small_disk], check=True)
    site = {"scheduler": "local", "runs": str(small_disk / "runs"), "check": {"bind": False}}
    write_site(recipe.folder, small_recipe(QUICK, CHATTY), **site)  # the check would want room before it begins
    done = recipe("submit", "tiny.yaml", "-c", "./site.yaml", "--json")
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)["folder"])

    def measured() -> bool:
        events = run / "events.jsonl"
        return events.exists() and '"point_started", "point": "c1"' in events.read_text()

    wait_until(measured, what="the first point")
    fill(small_disk, leave)
    done = recipe("wait", run.name, "-c", "./site.yaml", "--timeout", "2m", "--json")
    state = json.loads(done.stdout)
    assert (done.returncode, state["state"]) == (100, "failed"), (done.stdout, done.stderr)
    assert "No space left on device" in state["message"], state
    assert str(run) in state["message"] or "run folder" in state["message"]
    assert (run / "bench" / "c0" / "point.json").stat().st_size > 0
    assert json.loads((run / "results.json").read_text())["points"][0]["id"] == "c0"
    for verb in ("status", "list", "logs", "report"):
        told = recipe(verb, *([] if verb == "list" else [run.name]), "-c", "./site.yaml")
        assert "Traceback" not in told.stderr, told.stderr
    marks = [path for path in Path("/proc").glob("[0-9]*/environ") if _mentions(path, str(run))]
    assert marks == []


def _mentions(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False


ODD = "a b'\"$HOME`x`;&*é🚀"


# A profile expands $VAR in its paths.
@pytest.mark.parametrize("folder", [ODD.replace("HOME", ""), "-r", "x" * 200])
def test_odd_names_work_from_end_to_end(recipe: Any, folder: str) -> None:
    """Run folder, recipe file, model, served name, variables: nothing between us and the engine takes them amiss."""
    ask = (
        "import json, os, sys, urllib.request\n"
        "body = json.dumps({'model': os.environ['RECIPE_MODEL'], 'prompt': 'a', 'max_tokens': 2}).encode()\n"
        "url = os.environ['RECIPE_URL'] + '/v1/completions'\n"
        "request = urllib.request.Request(url, body, {'Content-Type': 'application/json'})\n"
        "assert json.load(urllib.request.urlopen(request, timeout=20))['model'] == os.environ['RECIPE_MODEL']\n"
        "assert os.environ['ODD'] == sys.argv[1], os.environ['ODD']\n"
    )
    odd = ODD + "\n-x %j"
    what = small_recipe(
        ["python3", "-c", ask, odd], nodes=1, model={"path": f"/models/{ODD}", "served_name": "org/модель-🚀$HOME`'\""}
    )
    what["benchmarks"][0]["env"] = {"ODD": odd}
    write_site(recipe.folder, what, scheduler="local", runs=folder)
    name = f"{ODD}.yaml"
    (recipe.folder / "tiny.yaml").rename(recipe.folder / name)
    done = recipe("submit", name, "-c", "./site.yaml", "--wait", "--json", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (recipe.folder / folder).iterdir()
    for verb in ("status", "report", "collect"):
        told = recipe(verb, run.name, "-c", "./site.yaml")
        assert told.returncode == 0, told.stderr
    again = recipe("validate", run / "recipe.lock.yaml")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("sign", ["%j", "\\"])
def test_a_folder_that_submitit_or_sbatch_would_misread(recipe: Any, sign: str) -> None:
    write_site(recipe.folder, scheduler="local" if sign == "%j" else "slurm", runs=f"a{sign}b")
    before = sorted(path.name for path in recipe.folder.iterdir())
    done = recipe("submit", "tiny.yaml", "-c", "./site.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert sorted(path.name for path in recipe.folder.iterdir()) == before
