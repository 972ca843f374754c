"""list, status, logs, wait and cancel, as a user types them, on a Slurm that replays recorded answers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from recipe_toolkit.submit import record, wait
from recipe_toolkit.submit.state import run_state
from submit_support import make_run, wait_until, write_state

RECIPE = Path(sys.executable).with_name("recipe")
ONE = "2026-11-29T12-00-00-tiny-ab12"
TWO = "2026-11-29T13-00-00-tiny-cd34"


@pytest.fixture
def runs(recipe):
    folder = recipe.folder / "runs"
    folder.mkdir()
    return folder


# --- list


def test_list_asks_squeue_once_for_all_runs(recipe, runs, fake_slurm):
    for number in range(5):
        make_run(runs, f"2026-11-29T12-00-0{number}-tiny-ab12", job={"scheduler": "slurm", "job_id": str(number)})
    fake_slurm.holds("0|RUNNING|None|n1|0|0", "1|PENDING|Resources||0|0", "2|NODE_FAIL|NodeFail|n1|256|0")
    fake_slurm.says("sacct", "3|TIMEOUT|0:0|n1\n")
    done = recipe("list")
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert [row[1] for row in rows] == ["running", "pending", "failed", "timeout", "lost"]
    assert [call["program"] for call in fake_slurm.calls()] == ["squeue", "sacct"]


def test_list_of_ended_runs_needs_no_slurm(recipe, runs, tmp_path):
    make_run(runs, ONE, state="done", valid=True)
    make_run(runs, TWO, state="failed", message="ready: serve-0 exited with 1\nmore", job={})
    done = recipe("list", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["RUN", "STATE", "PHASE", "JOB", "NOTE"]
    assert first.split()[:2] == [ONE, "done"]
    assert second.endswith("ready: serve-0 exited with 1")


def test_list_as_json_is_one_object_a_line(recipe, runs, fake_slurm):
    make_run(runs, ONE, state="done", valid=False)
    make_run(runs, TWO, state="done", valid=True)
    lines = [json.loads(line) for line in recipe("list", "--json").stdout.splitlines()]
    assert [(line["id"], line["valid"]) for line in lines] == [(ONE, False), (TWO, True)]
    assert [json.loads(line)["id"] for line in recipe("list", "--json", "-n", "1").stdout.splitlines()] == [TWO]


@pytest.fixture
def many(runs, fake_slurm):
    """Runs of three days, of two recipes and models, in several states."""
    made = {}
    for day, name, model, state in (
        (27, "glm-a", "glm", {"state": "done", "valid": True}),
        (28, "glm-b", "glm", {"state": "done", "valid": False}),
        (29, "glm-a", "glm-fp8", {"state": "failed", "message": "x"}),
        (30, "qwen", "qwen", {"state": "running"}),
    ):
        job = {"scheduler": "slurm", "job_id": str(day), "cluster": None, "rehearsal": False, "model": model}
        made[day] = make_run(runs, f"2026-11-{day}T12-00-00-{name}-ab{day}", job=job, **state)
    fake_slurm.holds("30|RUNNING|None|n1|0|0")
    return made


@pytest.mark.parametrize(
    ("words", "days"),
    [
        (["--state", "running,failed"], [29, 30]),
        (["--state", "done"], [27, 28]),
        (["--name", "glm-*"], [27, 28, 29]),
        (["--name", "glm-a", "-n", "1"], [29]),
        (["--name", "2026-11-28*"], [28]),
        (["--name", "glm"], []),
        (["--since", "2026-11-29"], [29, 30]),
        (["--since", "2026-11-28T12:00"], [28, 29, 30]),
        (["--since", "2026-11-28T12:00:01"], [29, 30]),
        (["--model", "glm*"], [27, 28, 29]),
        (["--model", "glm"], [27, 28]),
        (["--valid"], [27]),
        (["--invalid"], [28]),
        (["--sort", "name"], [27, 29, 28, 30]),
        (["--sort", "state"], [30, 27, 28, 29]),
        (["--sort", "state", "-n", "2"], [28, 29]),
        (["--name", "glm-*", "--state", "done", "-n", "1"], [28]),
    ],
)
def test_list_of_those_that_are_meant(recipe, many, words, days):
    done = recipe("list", "--json", *words)
    assert done.returncode == 0, done.stderr
    assert [int(json.loads(line)["id"][8:10]) for line in done.stdout.splitlines()] == days
    if not days:
        assert "no such runs in " in recipe("list", *words).stderr


def test_list_since_a_span(recipe, runs):
    for hours in (1, 5, 30):
        at = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(time.time() - hours * 3600))
        make_run(runs, f"{at}-tiny-ab{hours:02}", state="done")
    for span, count in (("2h", 1), ("1d", 2), ("2d", 3), ("90m", 1), ("30m", 0)):
        assert len(recipe("list", "--json", "--since", span).stdout.splitlines()) == count


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--state", "runing"], "no state 'runing': did you mean `running`?"),
        (["--state", ""], "no state ''"),
        (["--since", "yesterday"], "'yesterday' is neither a span (90m, 2d) nor a date"),
        (["--since", "2026-13-01"], "is neither a span"),
        (["--sort", "size"], "'size' is not one of"),
    ],
)
def test_list_refuses_what_it_cannot_mean(recipe, words, said):
    done = recipe("list", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_list_reads_no_run_that_its_name_rules_out(recipe, many):
    """Of thousands of runs, those of last week are quick."""
    for day in (27, 28):
        many[day].state.chmod(0)
        (many[day].root / "job.json").unlink()
        (many[day].root / "job.json").mkdir()
    done = recipe("list", "--since", "2026-11-29")
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == ""


def test_list_knows_the_model_of_runs_that_did_not_keep_it(recipe, runs):
    make_run(runs, ONE, state="done", job={"scheduler": "slurm", "job_id": "7"})
    assert json.loads(recipe("list", "--json", "--model", "tiny").stdout)["model"] == "tiny"


def test_a_run_that_two_folders_hold_is_listed_once(recipe, runs, tmp_path):
    make_run(runs, ONE, state="done")
    (runs / TWO).symlink_to(runs / ONE)
    (tmp_path / "same").symlink_to(runs)
    done = recipe("list", "--json", RECIPE_RUNS=str(tmp_path / "same"))
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] in ([ONE], [TWO])


def test_list_without_runs_says_where_it_looked(recipe):
    done = recipe("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"no runs in {recipe.folder}/runs" in done.stderr


def test_half_written_and_foreign_folders_are_no_runs(recipe, runs):
    (runs / ".2026-11-29T12-00-00-tiny-ab12.0123").mkdir()
    (runs / ".2026-11-29T12-00-00-tiny-ab12.0123" / "plan.json").touch()
    (runs / "notes").mkdir()
    (runs / "file").touch()
    (runs / "2026-11-29T12-00-00-tiny-ab12").mkdir()
    assert recipe("list").stdout == ""


# --- which run


@pytest.mark.parametrize("word", [ONE, "2026-11-29T12", "ab12", "tiny-ab", f"runs/{ONE}", f"./runs/{ONE}/"])
def test_a_run_by_id_part_or_path(recipe, runs, word):
    make_run(runs, ONE, state="done")
    make_run(runs, TWO, state="done")
    done = recipe("status", word, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["id"] == ONE


def test_an_id_is_the_run_and_not_its_copy_here(recipe, runs):
    make_run(runs, ONE, state="failed", message="x", job={})
    make_run(recipe.folder, ONE, state="done", valid=True)
    assert recipe("status", ONE).stdout.splitlines()[3] == str(runs / ONE)
    assert recipe("status", f"./{ONE}").stdout.splitlines()[2] == str(recipe.folder / ONE)


@pytest.mark.parametrize("verb", ["status", "cancel", "wait"])
def test_an_empty_word_names_no_run(recipe, runs, verb):
    make_run(runs, ONE, state="done", valid=True)
    done = recipe(verb, "")
    assert (done.returncode, done.stdout) == (102 if verb == "wait" else 1, "")
    assert "the name of the run is empty" in done.stderr


@pytest.mark.parametrize("words", [["status", ONE], ["list"], ["logs", ONE], ["logs", ONE, "serve-0"], ["--help"]])
def test_output_that_nobody_takes_is_no_traceback(recipe, runs, words):
    run = make_run(runs, ONE, state="done", valid=True)
    log = run.attempt(0).process_log(0, "serve-0")
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full, os.fdopen(writer, "w") as closed:
        for out, code, said in (
            (closed, 141, ""),
            (full, 1, "Error: cannot write the output: No space left on device\n"),
        ):
            done = subprocess.run(
                [RECIPE, *words],
                cwd=recipe.folder,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="setpriv takes rights away from root only")
def test_a_log_that_may_not_be_read_is_one_message(recipe, runs):
    run = make_run(runs, ONE, state="done", valid=True)
    log = run.attempt(0).process_log(0, "serve-0")
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    log.chmod(0)
    weak = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    done = subprocess.run(
        [*weak, RECIPE, "logs", ONE, "serve-0"],
        cwd=recipe.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"Error: {log}: Permission denied\n")


def test_a_verb_with_a_slip_of_the_hand_is_guessed(recipe):
    done = recipe("statsu", "last")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such verb 'statsu': did you mean `status`?" in done.stderr
    for word in ("xyzzy", "bogus"):
        done = recipe(word)
        assert (done.returncode, "did you mean" in done.stderr) == (2, False)
        assert f"No such command '{word}'" in done.stderr


def test_last_is_the_newest(recipe, runs):
    make_run(runs, TWO, state="done")
    make_run(runs, ONE, state="done")
    assert json.loads(recipe("status", "last", "--json").stdout)["id"] == TWO


def test_of_one_second_the_last_is_the_one_that_was_written_last(recipe, runs):
    first, last = ONE.replace("ab12", "ffff"), ONE.replace("ab12", "0000")
    for at, name in ((1, first), (2, last)):
        os.utime(make_run(runs, name, state="done").recipe_lock, (at, at))
    assert json.loads(recipe("status", "last", "--json").stdout)["id"] == last
    for words in ([], ["--state", "done"]):
        listed = recipe("list", "--json", *words).stdout.splitlines()
        assert [json.loads(line)["id"] for line in listed] == [first, last]


def test_a_run_whose_folder_is_deleted_while_it_is_waited_for_is_lost(recipe, runs, fake_slurm):
    run = make_run(runs, ONE, state="running", phase="bench")
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    waiting = subprocess.Popen(
        [RECIPE, "wait", "last"], cwd=recipe.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: fake_slurm.calls("squeue"), what="the first squeue")
    shutil.rmtree(run.root)
    out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 102, out
    assert out.startswith(f"{ONE}: lost\n  its folder is gone")


def test_an_ambiguous_word_lists_the_runs_that_it_names(recipe, runs):
    make_run(runs, ONE, state="done")
    make_run(runs, TWO, state="done")
    done = recipe("status", "tiny")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: 'tiny' names 2 runs:")
    assert ONE in done.stderr
    assert TWO in done.stderr


@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
@pytest.mark.parametrize("word", ["nope", "./nope", "last"])
def test_an_unknown_run_is_refused(recipe, verb, word):
    done = recipe(verb, word)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "hint: " in done.stderr


def test_where_runs_are_found(recipe, tmp_path):
    for name in ("env", "given"):
        make_run(tmp_path / name, ONE.replace("tiny", name), state="done")
    assert "env" in recipe("list", RECIPE_RUNS=str(tmp_path / "env")).stdout
    given = recipe("list", "--runs", tmp_path / "given", RECIPE_RUNS=str(tmp_path / "env")).stdout
    assert "given" in given
    assert "env" not in given


# --- status


def test_status_shows_every_node_process_and_point(recipe, runs, fake_slurm):
    make_run(
        runs,
        ONE,
        state="running",
        phase="bench",
        nodes=[{"index": 0, "name": "n1", "address": "10.42.0.1", "state": "joined"}],
        processes={"serve-0": {"state": "ready", "node": 0, "pid": 41, "exit_code": None, "log": "x"}},
        points={"c1": "done", "c8": "running"},
    )
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    done = recipe("status", "last")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert f"{ONE}: running, phase bench" in text
    assert "slurm job 7 (RUNNING), attempt 0" in text
    assert "0 n1 10.42.0.1 joined" in text
    assert "serve-0 ready 0 41 -" in text
    assert "c1 done c8 running" in text


def test_status_of_a_broken_folder_says_what_is_broken(recipe, runs, fake_slurm):
    run = make_run(runs, ONE)
    run.state.write_text('{"state": "runn')
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    done = recipe("status", "last")
    assert done.returncode == 0
    assert "state.json: not JSON" in done.stderr


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "waits for Priority"),
        ("PartitionNodeLimit", "will not start as it is: the partition has, or allows, fewer nodes"),
    ],
)
def test_status_says_why_a_job_waits(recipe, runs, fake_slurm, reason, words):
    make_run(runs, ONE)
    fake_slurm.holds(f"7|PENDING|{reason}||0|0")
    assert words in recipe("status", "last").stdout


def test_wait_says_that_a_job_cannot_start(recipe, runs, fake_slurm):
    make_run(runs, ONE)
    fake_slurm.holds("7|PENDING|PartitionNodeLimit||0|0")
    done = recipe("wait", "last", "--timeout", "1")
    assert done.returncode == 101
    told = f"{ONE}: pending\n  will not start as it is: the partition has, or allows, fewer nodes "
    assert done.stderr.count(told) == 2  # at once, and in the end


# --- logs


@pytest.fixture
def logged(runs):
    run = make_run(runs, ONE, state="done")
    for attempt, text in ((0, "old\n"), (1, "one\ntwo\nthree\n")):
        node = run.attempt(attempt).node(0)
        node.mkdir(parents=True)
        (node / "serve-0.log").write_text(text)
        (node / "agent.log").write_text("agent\n")
    (run.job_folder / "7_0_log.out").write_text("job zero\n")
    (run.job_folder / "7_1_log.out").write_text("job one\n")
    return run


def test_logs_lists_what_there_is(recipe, logged):
    lines = [line.split()[:3] for line in recipe("logs", "last").stdout.splitlines()]
    assert lines == [
        ["LOG", "NODE", "BYTES"],
        ["agent-0", "0", "6"],
        ["serve-0", "0", "14"],
        ["job", "-", "9"],
        ["job", "-", "8"],
    ]
    assert json.loads(recipe("logs", "last", "--json").stdout.splitlines()[1])["name"] == "serve-0"


@pytest.mark.parametrize("words", [["-f"], ["-n", "5"]])
def test_logs_of_nothing_are_not_followed_in_silence(recipe, logged, words):
    done = recipe("logs", "last", *words)
    assert done.returncode == 2
    assert "need a PROCESS, or --all" in done.stderr


def test_logs_prints_the_last_attempts_log(recipe, logged):
    assert recipe("logs", "last", "serve-0").stdout == "one\ntwo\nthree\n"
    assert recipe("logs", "last", "serve-0", "-n", "2").stdout == "two\nthree\n"
    assert recipe("logs", "last", "serve-0", "-n", "0").stdout == ""
    assert recipe("logs", "last", "serve-0", "--attempt", "0").stdout == "old\n"
    assert recipe("logs", "last", "job").stdout == "job zero\njob one\n"


def test_logs_of_an_unknown_process_names_those_that_there_are(recipe, logged):
    done = recipe("logs", "last", "nope")
    assert done.returncode == 1
    assert "hint: logs: agent-0, serve-0, job" in done.stderr


def test_an_attempt_that_is_not_there_is_refused(recipe, logged):
    for words in ([], ["serve-0"]):
        done = recipe("logs", "last", *words, "--attempt", "7")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{ONE} has no attempt 7\nhint: attempts: 0, 1\n" in done.stderr


def test_logs_follows_until_the_run_ends(recipe, runs, fake_slurm):
    run = make_run(runs, ONE, state="running", phase="bench")
    node = run.attempt(0).node(0)
    node.mkdir(parents=True)
    log = node / "serve-0.log"
    log.write_text("first\n")
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    process = subprocess.Popen(
        [RECIPE, "logs", "last", "serve-0", "-f"], cwd=recipe.folder, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "first\n"
        with log.open("a") as file:
            file.write("second\n")
        assert process.stdout.readline() == "second\n"
        with log.open("a") as file:
            file.write("last")
        write_state(run, "done")
        assert process.stdout.read() == "last"
        assert process.wait(timeout=20) == 0


def test_logs_of_several_processes_begin_with_their_names(recipe, logged):
    done = recipe("logs", "last", "serve-0", "agent-0", "-n", "1")
    assert (done.returncode, done.stdout) == (0, "agent-0 | agent\nserve-0 | three\n")
    assert recipe("logs", "last", "serve*").stdout == "serve-0 | one\nserve-0 | two\nserve-0 | three\n"
    every = recipe("logs", "last", "--all").stdout.splitlines()
    assert every == [
        "agent-0 | agent",
        *(f"serve-0 | {word}" for word in ("one", "two", "three")),
        "job     | job zero",
        "job     | job one",
    ]
    assert recipe("logs", "last", "serve-0", "--all").returncode == 2
    nothing = recipe("logs", "last", "serve-0", "decode*")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "has no log 'decode*'" in nothing.stderr
    # One that is planned, of a run that is over, will not come any more.
    assert recipe("logs", "last", "agent-1", "-f").returncode == 1


def test_logs_are_in_colours_on_a_terminal_alone(recipe, logged):
    assert "\x1b" not in recipe("logs", "last", "--all").stdout
    for env, colours in (({}, True), ({"NO_COLOR": "1"}, False)):
        code, shown = on_a_terminal([RECIPE, "logs", "last", "serve-0", "job"], recipe.folder, **env)
        assert code == 0
        assert "three" in shown
        assert ("\x1b[36m" in shown) == colours


def on_a_terminal(words, folder, **env):
    """What a command prints on a terminal of 80 columns, and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(words[0], [str(word) for word in words], {**os.environ, "TERM": "xterm", **env})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that the other end is gone
        while data := os.read(terminal, 1 << 16):
            shown += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_logs_follow_several_as_they_come(recipe, runs, fake_slurm):
    """Whole lines, also of a process that starts later; the run's end ends it."""
    run = make_run(runs, ONE, state="running", phase="bench")
    plan = json.loads(run.plan.read_text())
    plan["processes"] = [{"name": "decode-0"}, {"name": "decode-1"}]
    run.plan.write_text(json.dumps(plan))
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    process = subprocess.Popen(
        [RECIPE, "logs", "last", "decode*", "-f"], cwd=recipe.folder, stdout=subprocess.PIPE, text=True
    )
    with process:
        node = run.attempt(0).node(0)
        node.mkdir(parents=True)
        with (node / "decode-0.log").open("w", buffering=1) as zero, (node / "decode-1.log").open("w") as one:
            zero.write("first\n10 %\r20 %\r30 %\nhalf a ")
            assert process.stdout.readline() == "decode-0 | first\n"
            assert process.stdout.readline() == "decode-0 | 30 %\n"
            one.write("of the other\n")
            one.flush()
            assert process.stdout.readline() == "decode-1 | of the other\n"
            zero.write("line\nwithout end")
            assert process.stdout.readline() == "decode-0 | half a line\n"
        (node / "router.log").write_text("not asked for\n")
        write_state(run, "done")
        assert process.stdout.read() == "decode-0 | without end\n"
        assert process.wait(timeout=20) == 0


def test_ctrl_c_ends_the_following_with_130(recipe, runs, fake_slurm):
    run = make_run(runs, ONE, state="running", phase="bench")
    log = run.attempt(0).process_log(0, "serve-0")
    log.parent.mkdir(parents=True)
    log.write_text("first\n")
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    process = subprocess.Popen(
        [RECIPE, "logs", "last", "--all", "-f"],
        cwd=recipe.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "serve-0 | first\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stderr.read() == ""


# --- wait


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"state": "done", "valid": True}, 0),
        ({"state": "done", "valid": False}, 104),
        ({"state": "failed", "message": "why"}, 100),
        ({"state": "cancelled"}, 103),
        ({"state": "timeout"}, 105),
    ],
)
def test_wait_exits_as_the_run_ended(recipe, runs, fake_slurm, state, code):
    make_run(runs, ONE, **state)
    fake_slurm.forgets()
    done = recipe("wait", "last")
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(f"{ONE}: {state['state']}")


@pytest.mark.parametrize(
    ("word", "code", "state"),
    [
        ("TIMEOUT", 105, "timeout"),
        ("CANCELLED by 1000", 103, "cancelled"),
        ("PREEMPTED", 106, "preempted"),
        ("NODE_FAIL", 100, "failed"),
        ("COMPLETED", 100, "failed"),
    ],
)
def test_wait_exits_as_accounting_says_where_the_run_could_not_write(recipe, runs, fake_slurm, word, code, state):
    make_run(runs, ONE, state="running", phase="ready")
    fake_slurm.forgets()
    fake_slurm.says("sacct", f"7|{word}|0:0|n1\n")
    done = recipe("wait", "last", "--json")
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["state"] == state


def test_wait_calls_a_job_that_is_gone_lost(recipe, runs, fake_slurm):
    make_run(runs, ONE, state="running", phase="ready")
    fake_slurm.forgets()
    done = recipe("wait", "last")
    assert done.returncode == 102
    assert "lost" in done.stdout
    assert "phase ready" in done.stdout


def test_the_last_state_may_arrive_after_the_job_has_gone(recipe, runs, fake_slurm):
    """A network file system shows a file seconds after it was written."""
    run = make_run(runs, ONE, state="running", phase="drain")
    fake_slurm.holds("7|COMPLETED|None|n1|0|0")
    process = subprocess.Popen([RECIPE, "wait", "last"], cwd=recipe.folder)
    wait_until(lambda: fake_slurm.calls("squeue"))
    write_state(run, "done")
    assert process.wait(timeout=20) == 0


def test_wait_gives_up_in_time(recipe, runs, fake_slurm):
    make_run(runs, ONE)
    fake_slurm.holds("7|PENDING|Priority||0|0")
    started = time.monotonic()
    done = recipe("wait", "last", "--timeout", "1s")
    assert done.returncode == 101
    assert "pending" in done.stderr
    assert time.monotonic() - started < 10


def test_wait_on_an_unknown_run_is_lost(recipe):
    assert recipe("wait", "nope").returncode == 102


@pytest.mark.parametrize("text", ["soon", "-1", "0", "1x"])
def test_wait_refuses_a_timeout_that_is_none(recipe, runs, text):
    make_run(runs, ONE)
    done = recipe("wait", "last", f"--timeout={text}")
    assert done.returncode == 2
    assert "--timeout" in done.stderr


def test_wait_follows_with_the_headline_figures_of_a_point(recipe, runs, fake_slurm):
    run = make_run(runs, ONE, state="done")
    run.bench("c8").mkdir(parents=True)
    result = {"requests": {"ok": 80, "failed": 0}, "ttft_ms": {"mean": 31.25}, "tpot_ms": None, "output_tps": 1234.5}
    (run.bench("c8") / "point.json").write_text(json.dumps({"result": result}))
    run.events.write_text(
        '{"t": 1, "event": "point_finished", "point": "c8", "valid": true}\n'
        '{"t": 2, "event": "point_finished", "point": "gone", "valid": false, "reasons": ["2 requests failed"]}\n'
    )
    one, two = recipe("wait", "last", "--follow").stderr.splitlines()
    assert one.endswith("point finished: point c8, valid True, ok 80, TTFT 31.25 ms, output 1234 tok/s")
    assert two.endswith("point finished: point gone, valid False, reasons [2 requests failed]")


def test_wait_follows_the_events_and_ctrl_c_detaches(recipe, runs, fake_slurm):
    run = make_run(runs, ONE, state="running", phase="bind")
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    run.events.write_text('{"t": 1.5, "event": "phase", "phase": "bind"}\n{"t": 2, "event": "ph')
    process = subprocess.Popen(
        [RECIPE, "wait", "last", "--follow"],
        cwd=recipe.folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr.readline().endswith(" phase bind\n")
        with run.events.open("a") as file:
            file.write(
                'ase", "phase": "ready"}\n{"t": 3, "event": "process_exited", "process": "serve-0", "code": 3}\n'
            )
        assert process.stderr.readline().endswith(" phase ready\n")
        assert process.stderr.readline().endswith(" process exited: process serve-0, code 3\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert out == ""
        assert f"come back: recipe wait --follow {ONE}" in err
        assert f"recipe cancel {ONE}" in err
    assert fake_slurm.calls("scancel") == []


# --- cancel


def test_a_cancelled_job_that_never_started_is_remembered_where_slurm_forgets_it(recipe, runs, fake_slurm):
    make_run(runs, ONE)
    fake_slurm.says("squeue", "7|PENDING|JobHeldUser||0|0|\n", call=1)
    fake_slurm.holds("7|CANCELLED|JobHeldUser||0|0")
    fake_slurm.says("scancel")
    assert recipe("cancel", "last").returncode == 0
    fake_slurm.forgets()
    done = recipe("wait", "last")
    assert done.returncode == 103, done.stdout
    assert done.stdout == f"{ONE}: cancelled\n  cancelled before it started\n"


def test_a_cancelled_job_that_wrote_no_end_is_remembered_where_slurm_forgets_it(recipe, runs, fake_slurm):
    run = make_run(runs, ONE, state="running", phase="bench")
    run.attempt(0).node(0).mkdir(parents=True)
    fake_slurm.says("squeue", "7|RUNNING|None|n1|0|0|\n", call=1)
    fake_slurm.holds("7|CANCELLED|None|n1|0|0")
    fake_slurm.says("scancel")
    assert recipe("cancel", "last").returncode == 0
    fake_slurm.forgets()
    done = recipe("wait", "last")
    assert done.returncode == 103, done.stdout
    assert done.stdout.startswith(f"{ONE}: cancelled\n  ended before the run could say so; last known: running, phase")


@pytest.mark.parametrize(("private", "state"), [("jobs,usage", "running"), ("none", "lost")])
def test_another_users_job_that_slurm_hides_is_not_lost(runs, fake_slurm, monkeypatch, private, state):
    run = make_run(runs, ONE, state="running", phase="bench")
    monkeypatch.setattr(record.os, "getuid", lambda: run.root.stat().st_uid + 1)
    fake_slurm.forgets()
    fake_slurm.says("scontrol", f"Configuration data as of now\nPrivateData             = {private}\n", call=2)
    told = run_state(run)
    assert told.state == state
    assert ("to its owner alone" in told.message) == (state == "running")


def test_a_job_that_slurm_hides_may_wait_for_days(runs, fake_slurm, monkeypatch):
    """And a scheduler that is gone is not waited for, unless the run itself still speaks."""
    run = make_run(runs, ONE)
    fake_slurm.forgets()
    fake_slurm.says("scontrol", "PrivateData             = jobs\n")
    monkeypatch.setattr(wait, "SILENCE_S", 0.2)
    monkeypatch.setattr(wait, "_delay", lambda *_: 0.1)
    monkeypatch.setattr(record.os, "getuid", lambda: run.root.stat().st_uid + 1)
    waited = wait.Waiter([run], timeout_s=1.0).next_end()
    assert (waited.state, waited.exit_code) == ("pending", 101)
    assert "hidden" not in waited.to_json()
    fake_slurm.says("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    fake_slurm.says("scontrol", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    assert wait.Waiter([run], timeout_s=30.0).next_end().state == "lost"
    ticks = iter(range(10**6))
    write_state(run, "running", updated=-1.0)
    speaking = wait.Waiter([run], 1.5, lambda *_: write_state(run, "running", updated=float(next(ticks))))
    assert speaking.next_end().state == "running"


def test_cancel_asks_slurm_and_waits(recipe, runs, fake_slurm):
    make_run(runs, ONE)
    fake_slurm.says("squeue", "7|PENDING|Priority||0|0|\n", call=1)
    fake_slurm.holds("7|CANCELLED|None||0|0")
    fake_slurm.says("scancel")
    done = recipe("cancel", "last")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ONE}: cancelled")
    assert [call["argv"] for call in fake_slurm.calls("scancel")] == [["7"]]


@pytest.mark.parametrize("state", ["done", "failed", "cancelled", "timeout"])
def test_cancel_of_an_ended_run_asks_nobody(recipe, runs, fake_slurm, state):
    make_run(runs, ONE, state=state)
    fake_slurm.forgets()
    done = recipe("cancel", "last")
    assert done.returncode == 0
    assert "it had ended already" in done.stdout
    assert fake_slurm.calls("scancel") == []


def test_cancel_that_slurm_refuses_is_an_error(recipe, runs, fake_slurm):
    make_run(runs, ONE)
    fake_slurm.holds("7|RUNNING|None|n1|0|0")
    fake_slurm.says("scancel", err="scancel: error: Kill job error on job id 7: Access/permission denied\n", code=1)
    done = recipe("cancel", "last")
    assert done.returncode == 1
    assert "permission denied" in done.stderr


def test_cancel_of_a_local_run_does_not_kill_whoever_has_its_pid_now(recipe, runs):
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        job = {"scheduler": "local", "job_id": str(sleeper.pid), "pid": sleeper.pid, "start_ticks": 1}
        make_run(runs, ONE, job={**job, "host": os.uname().nodename}, state="running")
        done = recipe("cancel", "last")
        assert done.returncode == 0, done.stderr
        assert "lost" in done.stdout
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_local_run_of_another_host_is_not_judged_here(recipe, runs):
    job = {"scheduler": "local", "job_id": "1", "pid": 1, "start_ticks": 1, "host": "elsewhere"}
    make_run(runs, ONE, job=job, state="running", phase="bench")
    assert "the run is on elsewhere" in recipe("status", "last").stdout
    done = recipe("cancel", "last")
    assert done.returncode == 1
    assert "hint: ssh elsewhere recipe cancel" in done.stderr
