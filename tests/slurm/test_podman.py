"""Engines in containers of a real podman, on a real Slurm."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkkit import asks_the_image
from podman_rig import IMAGE, Podman
from slurm_rig import find
from slurm_site import LONG, QUICK, Site, command, small_recipe
from submit_support import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.podman]

# A machine whose hard limits cannot be raised; production has no such line.
LIMITS = ["--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1000:1000"]


def site_of(rig, podman: Podman, folder: Path, path: str = "") -> Site:
    """A site whose simulated engine runs in the image; ``path``: a folder before all others on its PATH."""
    fields = {"tools": {"sim": {"image": IMAGE}}, "container": {"runtime": "podman", "args": LIMITS}}
    exports = [f"export {name}={value}" for name, value in podman.env.items()]
    exports += [f'export PATH="{path}:$PATH"'] if path else []
    return Site(rig, folder, fields=fields, setup=exports)


@pytest.fixture
def site(slurm_rig, podman, tmp_path):
    return site_of(slurm_rig, podman, tmp_path)


def test_a_run_in_containers_behind_its_setup_steps(site, podman):
    (site.folder / "mark.sh").write_text("#!/bin/sh -e\necho patched > /etc/recipe-mark\n")
    look = 'read -r found < /etc/recipe-mark; echo "found $found"'
    steps = [{"script": "mark.sh"}, {"name": "look", "run": look}]
    done = site.submit(small_recipe(QUICK, setup=steps), "--wait", "--json")
    assert done.returncode == 0, done.stderr
    run = site.runs / json.loads(done.stdout)["id"]
    for node in (0, 1):
        log = run / "attempts" / "0" / "nodes" / f"{node:02}" / f"serve-0.{node}.log"
        said = log.read_text().splitlines()
        assert said[:4] == ["setup: mark", "setup: look", "found patched", "setup: done"]
    assert not Path("/etc/recipe-mark").exists()
    results = json.loads((run / "results.json").read_text())
    mark = hashlib.sha256((site.folder / "mark.sh").read_bytes()).hexdigest()
    assert [step["name"] for step in results["setup"]] == ["mark", "look"]
    assert results["setup"][0]["sha256"] == mark
    assert podman.containers() == []


def test_a_setup_step_that_fails_names_itself(site, podman):
    done = site.submit(small_recipe(QUICK, setup=[{"name": "fix", "run": "echo no wheel\nexit 3"}]), "--wait", "--json")
    assert done.returncode == 100
    message = json.loads(done.stdout)["message"]
    assert re.match(
        r"(launch|ready): serve-0\.[01] on node [01] \(n\d\) exited with code 3: setup: fix failed", message
    )
    assert re.search(r"log: attempts/0/nodes/0[01]/serve-0\.[01]\.log\n.*\n  setup: fix\n  no wheel\n", message)
    assert podman.containers() == []


def test_a_cancelled_run_ends_its_engines_by_term(site, podman):
    recipe = small_recipe(LONG)
    recipe["deadlines"]["drain"] = 18  # below the cluster's KillWait; a busy machine is slow to stop containers
    run = site.start(recipe)
    run.starts("bench-c0")
    assert len(podman.containers()) == 2
    assert site.recipe("cancel", run.id).returncode == 0
    state = run.wait(103)
    # 143 is 128 + TERM: the signal has come through to the engine, and nobody had to kill it.
    assert {view["exit_code"] for name, view in state["processes"].items() if name.startswith("serve")} <= {0, 143}
    run.leaves_nothing()
    assert podman.containers() == []


def test_a_killed_agent_takes_its_container_along(site, podman):
    run = site.start(small_recipe(LONG))
    run.starts("bench-c0")
    os.kill(run.agent(1), signal.SIGKILL)
    state = run.wait(100)
    assert re.search(r"node 1 \(n\d\) is lost", state["message"])
    wait_until(lambda: podman.containers() == [], 30, "an end of the containers")
    run.leaves_nothing()


def test_an_engine_that_ignores_term_is_killed_in_its_container(site, podman):
    recipe = small_recipe(QUICK)
    recipe["engine"]["sim"]["fault"] = {"kind": "ignore_term"}
    run = site.start(recipe)
    state = run.wait(0)
    # KILL, because TERM was of no use.
    assert {view["exit_code"] for name, view in state["processes"].items() if name.startswith("serve")} == {-9}
    (drained,) = run.events("drained")
    assert drained["survivors"] == []
    assert podman.containers() == []


def test_a_killed_keeper_leaves_its_container_to_the_agent(site, podman):
    run = site.start(small_recipe(LONG))
    run.starts("bench-c0")
    (keeper,) = (pid for pid in site.rig.processes() if "keeper.py" in command(pid) and "serve-0.1" in command(pid))
    os.kill(keeper, signal.SIGKILL)
    assert "serve-0.1 on node 1" in run.wait(100)["message"]
    assert podman.containers() == []
    run.leaves_nothing()


def test_what_nobody_could_remove_is_removed_by_the_next_attempt(site, podman, tmp_path):
    go = tmp_path / "go"
    run = site.start(small_recipe(["sh", "-c", 'while ! test -e "$1"; do echo .; sleep 0.5; done', "sh", str(go)]))
    run.starts("bench-c0")
    names = set(podman.containers())
    assert names == {f"{run.id}-serve-0.0", f"{run.id}-serve-0.1"}
    # All at once, so that nobody is left who could clean up: as when the nodes' agents run out of memory.
    keepers = [pid for pid in site.rig.processes() if "keeper.py" in command(pid)]
    doomed = [run.agent(0), run.agent(1), *keepers]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in doomed:
            os.kill(pid, number)
    state = run.wait(100)
    assert set(podman.containers()) == names
    for node in (0, 1):
        assert re.search(rf"on n\d `\S+ rm [^`]*{run.id}-serve-0\.{node}`", state["message"])
    go.touch()
    assert site.rig.exec("scontrol", "requeue", run.job_id).returncode == 0
    wait_until(lambda: run.record.get("attempt") == 1, 60, "the second attempt")
    state = run.wait(0)
    assert (state["state"], state["attempt"]) == ("done", 1)
    found = run.events("leftovers_removed")
    assert sorted(name for event in found for name in event["processes"]) == ["serve-0.0", "serve-0.1"]
    assert podman.containers() == []


def test_an_image_that_is_missing_is_pulled_once(slurm_rig, podman, tmp_path):
    """No registry is here, so a program stands before podman that loads an archive where it is told to pull."""
    archive, pulls, front = tmp_path / "image.tar", tmp_path / "pulls", tmp_path / "bin" / "podman"
    podman.call("save", "--quiet", "--output", str(archive), IMAGE)
    podman.call("rmi", IMAGE)
    front.parent.mkdir()
    real = find("podman")
    load = f'[ "$1" != pull ] || {{ echo "$2" >>{pulls}; exec {real} load --quiet --input {archive}; }}'
    front.write_text(f'#!/bin/sh\n{load}\nexec {real} "$@"\n')
    front.chmod(0o755)
    run = site_of(slurm_rig, podman, tmp_path, str(front.parent)).start(small_recipe(QUICK))
    run.wait(0)
    # Two nodes of one host and one store: the second finds what the first has got.
    assert pulls.read_text() == f"{IMAGE}\n"
    (fetching,) = run.events("image_fetching")
    assert fetching["folder"] == str(podman.folder / "store")
    (image,) = run.events("image")
    assert "sha256:" in image["id"]
    assert image["id"] in podman.call("image", "inspect", "--format", "{{.Id}} {{.RepoDigests}}", IMAGE)
    assert json.loads((run.folder / "results.json").read_text())["images"] == {IMAGE: image["id"]}


def test_an_image_that_cannot_be_had_is_named_before_anything_starts(site):
    site.profile.write_text(site.profile.read_text().replace(IMAGE, "localhost/none:1"))
    done = site.submit(small_recipe(QUICK), "--wait", "--json")
    assert done.returncode == 100
    state = json.loads(done.stdout)
    assert re.search(r"^images: node [01] \(n\d\): image localhost/none:1 was not fetched: ", state["message"])
    assert re.search(r"^log: attempts/0/nodes/0[01]/image-0\.log$", state["message"], re.MULTILINE)
    assert {view["state"] for view in state["processes"].values()} == {"pending"}


def test_a_warning_that_reaches_podman_ends_no_program(site, podman):
    """Slurm sends the time limit's to every process of a job, and podman hands on what it gets."""
    run = site.start(small_recipe(LONG))
    run.starts("bench-c0")
    clients = [
        pid
        for pid in site.rig.processes()
        if {b"run", f"{run.id}-serve-0.0".encode()} <= set(command(pid).encode().split())
    ]
    assert clients
    for pid in clients:
        os.kill(pid, signal.SIGUSR2)
    log = run.folder / "attempts" / "0" / "nodes" / "00" / "bench-c0.log"
    lines = len(log.read_text().splitlines())
    wait_until(lambda: len(log.read_text().splitlines()) > lines + 5, what=f"a client that goes on: {run.record}")
    assert run.record["processes"]["serve-0.0"]["exit_code"] is None
    assert site.recipe("cancel", run.id).returncode == 0
    run.wait(103)
    assert podman.containers() == []


def test_global_options_come_before_every_command(slurm_rig, podman, tmp_path):
    """What an environment says otherwise: where images are, and how containers are run."""
    driver = podman.call("info", "--format", "{{.Store.GraphDriverName}}").strip()
    options = ["--root", f"{podman.folder}/store", "--runroot", f"{podman.folder}/run", "--storage-driver", driver]
    options += ["--runtime", "runc", "--cgroup-manager", "cgroupfs"]
    container = {"runtime": "podman", "args": LIMITS, "global_args": options}
    site = Site(slurm_rig, tmp_path, fields={"tools": {"sim": {"image": IMAGE}}, "container": container})
    state = site.start(small_recipe(QUICK)).wait(0)
    assert state["processes"]["serve-0.0"]["exit_code"] in (0, 143)
    assert podman.containers() == []


def test_an_image_is_asked_for_its_flags(podman, tmp_path):
    def recipe(*words, **env):
        command = [str(Path(sys.executable).with_name("recipe")), *map(str, words)]
        env = {**os.environ, **env}
        return subprocess.run(command, env=env, timeout=120, capture_output=True, text=True, check=False)

    asks_the_image(recipe, tmp_path, "podman", IMAGE, podman.env, args=LIMITS)
    assert podman.containers() == []
