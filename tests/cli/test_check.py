"""``recipe check`` as a user types it, with an ssh that runs what it is given on this machine."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from checkkit import cpu_recipe
from slurm_site import small_recipe

H200 = Path(__file__).parents[2] / "recipes" / "llama-8b-shape" / "h200-agg.yaml"

PROFILE = """
schema: 1
name: here
scheduler: slurm
runs: .
check: {hosts: [one, root@two, gone]}
"""
SSH = """#!/bin/sh
echo "$@" >> {log}
echo welcome to the node
for word; do last=$word; [ "$before" = -- ] && host=$word; before=$word; done
[ "$host" = gone ] && {{ echo 'ssh: connect to host gone port 22: No route to host' >&2; exit 255; }}
[ "$host" = silent ] && exec sleep 60
[ "$host" = bare ] && {{ echo 'python3: not found' >&2; exit 127; }}
exec sh -c "$last"
"""


@pytest.fixture
def nodes(recipe, tmp_path, monkeypatch):
    """A profile with three hosts, of which one does not answer; the log of the fake ssh's words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    ssh, log = folder / "ssh", tmp_path / "ssh.log"
    ssh.write_text(SSH.format(log=log))
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (recipe.folder / "here.yaml").write_text(PROFILE)
    return log


def outcome(done, check):
    return next(item for item in json.loads(done.stdout)["checks"] if item["id"] == check)


def test_the_list_needs_no_node(recipe):
    done = recipe("check", "--list")
    assert done.returncode == 0
    assert "LANE.MTU" in done.stdout
    listed = json.loads(recipe("check", "--list", "--json").stdout)
    assert len(listed) == 41
    assert {"id", "scope", "severity", "holds", "breaks", "reads", "remedy", "bind", "deep", "source"} == set(listed[0])


def test_this_machine(recipe):
    done = recipe("check", "--only", "disk.free,OS.SAME")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fit: 1 node; checks: 2 passed, 0 failed, 0 unknown, 0 skipped" in done.stdout


def test_nothing_that_was_checked_is_no_pass(recipe):
    done = recipe("check", "--only", "ENROOT.NS")
    assert done.returncode == 1
    assert "skipped, nothing here asks for it: ENROOT.NS" in done.stdout


def test_a_node_that_does_not_answer_is_named_and_the_others_are_judged(recipe, nodes):
    done = recipe("check", "-c", "./here.yaml")
    assert done.returncode == 1
    assert "SSH.BATCH (error): each node answers without asking for anything" in done.stdout
    assert "gone: ssh: connect to host gone port 22: No route to host" in done.stdout
    assert "mend:" in done.stdout
    assert "not fit: 3 nodes" in done.stdout
    done = recipe("check", "-c", "./here.yaml", "--json")
    report = json.loads(done.stdout)
    assert (report["ok"], report["nodes"]) == (False, ["one", "two", "gone"])
    assert outcome(done, "SSH.BATCH")["findings"][0]["nodes"] == ["gone"]
    assert outcome(done, "OS.SAME")["status"] == "passed"


def test_one_connection_a_node_that_asks_nothing(recipe, nodes):
    assert (
        recipe("check", "-c", "./here.yaml", "--hosts", "one,root@two", "-F", "cfg", "--only", "DISK.FREE").returncode
        == 0
    )
    lines = nodes.read_text().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("-F cfg -T -o BatchMode=yes -o ConnectTimeout=10") for line in lines)
    assert any(" -- root@two python3 -u -c " in line for line in lines)


def test_a_node_without_python(recipe, nodes):
    done = recipe("check", "-c", "./here.yaml", "--hosts", "one,bare", "--json")
    assert "python3: not found" in outcome(done, "SSH.BATCH")["findings"][0]["found"]


def test_a_fault_is_told_with_its_remedy(recipe, nodes, tmp_path):
    (recipe.folder / "here.yaml").write_text(PROFILE.replace("gone]", "two], disk: {/: 99999999}"))
    done = recipe("check", "-c", "./here.yaml", "--hosts", "one,two")
    assert done.returncode == 1
    assert "DISK.FREE (error)" in done.stdout
    assert "free for /; wanted: 99999999.0 GiB" in done.stdout
    assert "breaks: half a model" in done.stdout
    assert "mend:   make room" in done.stdout
    assert recipe("check", "-c", "./here.yaml", "--hosts", "one", "--skip", "DISK.FREE").returncode == 0


def test_what_would_be_run(recipe, nodes):
    done = recipe("check", "-c", "./here.yaml", "--plan")
    assert done.returncode == 0
    assert "gone: ssh -T -o BatchMode=yes" in done.stdout
    assert not nodes.exists()
    planned = json.loads(recipe("check", "-c", "./here.yaml", "--plan", "--json").stdout)
    assert [node["name"] for node in planned["nodes"]] == ["one", "two", "gone"]
    assert "ping" in planned["commands"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "LANE.MUT"), "no such check LANE.MUT: did you mean"),
        (("--skip", "NONE"), "no such check NONE"),
        (("-c", "./slurm.yaml"), "no nodes are named"),
        (("--hosts", ""), "no nodes are named"),
        (("--hosts", "-oProxyCommand=sh"), "is no host"),
        (("--set", "name=x"), "--set changes a recipe, and none is given"),
    ],
)
def test_what_is_refused(recipe, words, said):
    (recipe.folder / "slurm.yaml").write_text(PROFILE.replace("check: {hosts: [one, root@two, gone]}", ""))
    done = recipe("check", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_recipe_that_is_wrong_is_refused_before_anybody_is_asked(recipe, nodes):
    (recipe.folder / "bad.yaml").write_text("schema: 1\nname: x\nmodle: {}\n")
    done = recipe("check", "bad.yaml", "-c", "./here.yaml")
    assert done.returncode == 1
    assert "bad.yaml:3" in done.stderr
    assert not nodes.exists()


LOCAL = "schema: 1\nname: mine\nscheduler: local\nruns: runs\n"
WRONG = "check: {disk: {/: 99999999}, ports: [1]}\n"


@pytest.fixture
def job(recipe):
    """Runs a small recipe on this machine under a profile; its folder, and what submit --wait said."""

    def run(profile, **fields):
        (recipe.folder / "mine.yaml").write_text(LOCAL + profile)
        (recipe.folder / "small.yaml").write_text(json.dumps(small_recipe(**fields)))
        done = recipe("submit", "small.yaml", "-c", "./mine.yaml", "--wait", timeout=120)
        (folder,) = (recipe.folder / "runs").glob("*-small-*")
        return folder, done

    return run


def test_a_node_that_would_fail_is_named_before_engines_start(job):
    folder, done = job(WRONG)
    assert done.returncode == 100, done.stderr
    message = json.loads((folder / "state.json").read_text())["message"]
    assert "bind: DISK.FREE: node 0 (" in message
    assert "free for /; wanted: 99999999.0 GiB" in message
    assert "hint: make room" in message
    events = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert "process_started" not in events
    report = json.loads((folder / "attempts" / "0" / "check.json").read_text())
    assert report["counts"]["failed"] == 1


def test_a_profile_may_leave_the_check_out_or_a_part_of_it(job):
    folder, done = job(WRONG.replace("{disk", "{bind: false, disk"))
    assert done.returncode == 0, done.stderr
    assert not (folder / "attempts" / "0" / "check.json").exists()


def test_what_a_job_has_checked_is_kept(job):
    folder, done = job("check: {disk: {/: 0.001}}\n")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (checked,) = [event for event in events if event["event"] == "checked"]
    assert checked["passed"] >= 4
    assert checked["failed"] == 0


SMI = """#!/bin/sh
case $* in *memory.free*) for gpu in '0, 143000' '1, 900'; do
  echo "${gpu%,*}, NVIDIA H200, 580.95.05, 143771, ${gpu#*, }"
done;; esac
"""
GPUS = ("DRIVER.LOADED", "DRIVER.HELD", "DRIVER.PIN", "GPU.FABRIC", "LIMIT.MEMLOCK", "LIMIT.NOFILE", "OS.SAME")


@pytest.mark.parametrize(
    ("visible", "slots", "said"),
    [
        ("0", 1, "serve-0 on node 0"),
        ("0,1", 2, "serve-0 on node 0"),
        ("1,0", 2, "bind: MEM.FREE: node 0"),
        ("GPU-9ca", 1, "bind: MEM.FREE: node 0"),
    ],
)
def test_a_neighbour_may_fill_the_gpus_that_a_run_does_not_use(recipe, tmp_path, monkeypatch, visible, slots, said):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("nvidia-smi", SMI), ("vllm", "#!/bin/sh\nexit 3\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    profile = {"schema": 1, "name": "here", "scheduler": "local", "runs": "runs", "check": {"skip": GPUS}}
    profile |= {"models": {"llama-8b-shape": str(tmp_path)}, "tools": {"vllm": {"path": str(folder / "vllm")}}}
    (recipe.folder / "here.yaml").write_text(json.dumps(profile))
    fields = {"schema": 1, "name": "one", "extends": str(H200), "resources": {"gpus_per_node": slots}}
    (recipe.folder / "one.yaml").write_text(json.dumps(fields))
    done = recipe("submit", "one.yaml", "-c", "./here.yaml", "--wait", "--json", timeout=60)
    message = json.loads(done.stdout)["message"]
    assert said in message, message
    assert "GPU 0" not in message


def test_a_vllm_that_is_on_no_node_is_no_pass(recipe):
    (recipe.folder / "flags.yaml").write_text(json.dumps(cpu_recipe()))
    profile = {"schema": 1, "name": "here", "scheduler": "local", "runs": "runs", "tools": {"vllm": {"venv": "/none"}}}
    (recipe.folder / "here.yaml").write_text(json.dumps(profile))
    done = recipe("check", "flags.yaml", "-c", "./here.yaml", "--only", "VLLM.FLAGS")
    assert done.returncode == 1
    assert "cannot be told: /none/bin/vllm: vllm serve --help=all: no /none/bin/vllm on PATH" in done.stdout
    planned = json.loads(recipe("check", "flags.yaml", "-c", "./here.yaml", "--plan", "--json").stdout)
    assert planned["request"]["vllm"]["head"] == ["/none/bin/vllm"]


def test_what_is_left_out_is_not_asked(recipe):
    """vLLM's help takes half a minute."""
    (recipe.folder / "flags.yaml").write_text(json.dumps(cpu_recipe()))
    words = ("check", "flags.yaml", "--plan", "--json", "--skip", "VLLM.FLAGS,VLLM.VERSION")
    planned = json.loads(recipe(*words).stdout)
    assert "vllm" not in planned["request"]["sections"]
    assert "disk" in planned["request"]["sections"]
