"""Engines and clients in containers of a real docker, on local nodes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from checkkit import asks_the_image
from docker_rig import IMAGE, Docker, make_docker
from recipe_toolkit.run import procfs
from slurm_site import LONG, small_recipe
from submit_support import wait_until

pytestmark = pytest.mark.docker

# A machine whose hard limits cannot be raised, and an image whose Python may be in root's home: the user is root's.
ARGS = ["--user", "0:0", "--ulimit", "nofile=1024:4096", "--ulimit", "memlock=65536:65536"]
WRITE = "import os; open('here', 'w').write(os.environ['HOME']); print(os.getcwd())"


@pytest.fixture(scope="module")
def docker():
    yield from make_docker()


@pytest.fixture
def site(recipe, docker: Docker):
    """Submits clients, and waits for an end with an exit code."""
    image = {"image": IMAGE}
    profile = {
        "schema": 1,
        "name": "here",
        "scheduler": "local",
        "runs": "runs",
        "tools": {"sim": image, "python3": image},
    }
    (recipe.folder / "here.yaml").write_text(json.dumps({**profile, "container": {"runtime": "docker", "args": ARGS}}))

    def submit(*commands: list[str]) -> Path:
        (recipe.folder / "tiny.yaml").write_text(json.dumps(small_recipe(*commands)))
        done = recipe("submit", "tiny.yaml", "-c", "./here.yaml", "--json", **docker.env)
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)["folder"])

    def wait(run: Path, code: int) -> dict:
        done = recipe("wait", run.name, "--runs", "runs", "--json", "--timeout", "90s")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    submit.wait, submit.recipe = wait, recipe
    yield submit
    wait_until(lambda: docker.containers() == [], what="an end of all containers")


def starts(run: Path, process: str) -> None:
    path = run / "events.jsonl"
    wait_until(lambda: path.exists() and f'"process_started", "process": "{process}"' in path.read_text(), 60)


def clients(name: str) -> list[int]:
    """The ``docker run`` of a container."""
    return [pid for pid in procfs.table() if f"run --rm --init --name {name}" in procfs.command(pid)]


def test_a_whole_run(site, docker):
    run = site(["python3", "-c", WRITE])
    state = site.wait(run, 0)
    assert (run / "bench" / "c0" / "here").read_text() == "/root"
    assert {process["exit_code"] for process in state["processes"].values()} == {0}, "TERM has reached the engines"
    logs = [path.read_text() for path in run.glob("attempts/0/nodes/*/*.log")]
    assert not any("No such container" in text for text in logs), "it is gone already, as it should be"
    images = json.loads((run / "results.json").read_text())["images"]
    assert docker.run("image", "inspect", "--format", "{{.Id}}", IMAGE).stdout.decode().strip() in json.dumps(images)


def test_a_warning_and_a_cancel(site):
    run = site(LONG)
    starts(run, "bench-c0")
    name = f"{run.name}-serve-0.0"
    wait_until(lambda: clients(name), what="a client of docker")
    for pid in clients(name):
        os.kill(pid, signal.SIGUSR2)
    log = run / "attempts" / "0" / "nodes" / "00" / "bench-c0.log"
    lines = len(log.read_text().splitlines())
    wait_until(lambda: len(log.read_text().splitlines()) > lines + 5, what="a client that goes on")
    assert clients(name)
    assert site.recipe("cancel", run.name, "--runs", "runs").returncode == 0
    site.wait(run, 103)


def test_an_agent_that_is_killed(site):
    run = site(LONG)
    starts(run, "bench-c0")  # its container may not be there yet: the daemon makes it all the same
    (agent,) = [
        item.pid
        for item in procfs.table().values()
        if f"{run}/job" in procfs.command(item.pid)
        and b"SUBMITIT_LOCAL_GLOBALID=1\0" in Path(f"/proc/{item.pid}/environ").read_bytes()
    ]
    os.kill(agent, signal.SIGKILL)
    assert "node 1" in site.wait(run, 100)["message"]


def test_an_image_is_asked_for_its_flags(recipe, docker):
    asks_the_image(recipe, recipe.folder, "docker", IMAGE, docker.env, args=["--ulimit", "nofile=1024:4096"])
    assert docker.containers() == []
