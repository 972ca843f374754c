"""``scheduler: ssh``: runs on hosts that have sshd and no Slurm. The hosts are the private Slurm's namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.plan.model import plan_from_json
from recipe_toolkit.run import procfs
from recipe_toolkit.rundir import RunDir, read_json, write_json
from recipe_toolkit.submit import ssh
from slurm_rig import Rig, find
from slurm_site import LONG, QUICK, Site, small_recipe
from submit_support import wait_until
from support import require, short_folder

pytestmark = pytest.mark.slurm

HOSTS = ("n1", "n2", "n3", "n4")
SSHD = """
Port 22
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
"""
CONFIG = """
Host n*
  IdentityFile {folder}/user
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
"""
# Tells of the secret by its length alone.
TOLD = ["python3", "-c", "import os; print(len(os.environ['HF_TOKEN']), flush=True)"]


HOLD = """
import socket, time
held = socket.socket(socket.AF_UNIX)
held.bind("\\0recipe-toolkit-host")
print("held", flush=True)
time.sleep(300)
"""


class Hosts:
    """An sshd in each namespace. ``unshared``: a folder that is another one on the last host."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.folder = rig, short_folder("ssh")
        self.unshared = self.folder / "unshared"
        self.unshared.mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        (self.folder / "sshd_config").write_text(SSHD.format(folder=self.folder))
        config = CONFIG.format(folder=self.folder)
        for host in HOSTS:
            config += f"Host {host}\n  HostName {self.address(host)}\n"
        (self.folder / "config").write_text(config)
        Path("/run/sshd").mkdir(exist_ok=True)
        self.daemons = [self.daemon(host) for host in HOSTS]
        for host in HOSTS:
            wait_until(lambda host=host: self.answers(host), what=f"sshd on {host}")  # type: ignore[misc]

    def inside(self, host: str) -> list[str]:
        return ["nsenter", f"--net={self.rig.folder}/ns/{host}"]

    def address(self, host: str) -> str:
        shown = [*self.inside(host), "ip", "-j", "-4", "address", "show", "eth0"]
        found = json.loads(subprocess.run(shown, check=True, capture_output=True, text=True).stdout)
        return str(found[0]["addr_info"][0]["local"])

    def daemon(self, host: str) -> subprocess.Popen[bytes]:
        before = f"mount -t tmpfs none {self.unshared} && " if host == HOSTS[-1] else ""
        command = f"{before}hostname {host} && exec {find('sshd')} -D -f {self.folder}/sshd_config"
        with (self.folder / f"{host}.log").open("wb") as log:
            argv = [*self.inside(host), "unshare", "--uts", "--mount", "sh", "-c", command]
            return subprocess.Popen(argv, stdout=log, stderr=log)

    def answers(self, host: str) -> bool:
        done = self.rig.exec("ssh", "-F", self.folder / "config", "-o", "BatchMode=yes", host, "hostname")
        return done.stdout.strip() == host

    def site(self, folder: Path, **fields: Any) -> Site:
        ssh = {"hosts": list(HOSTS), "config": str(self.folder / "config")}
        given = {"scheduler": "ssh", "ssh": ssh, "interface": "eth0", "check": {"bind": False}, **fields}
        return Site(self.rig, folder, fields=given)

    def remove(self) -> None:
        for daemon in self.daemons:
            daemon.terminate()
            daemon.wait(30)
        subprocess.run(["rm", "-r", self.folder], check=True)


@pytest.fixture(scope="module")
def hosts(slurm_rig: Rig) -> Iterator[Hosts]:
    require("slurm", bool(find("sshd") and find("ssh-keygen")), "no sshd: apt-get install openssh-server")
    made = Hosts(slurm_rig)
    try:
        yield made
    finally:
        made.remove()


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def left(run: Path) -> list[str]:
    """Processes of a run, anywhere."""
    return [procfs.command(pid) for pid in procfs.table() if str(run) in procfs.command(pid)]


def test_a_whole_run(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    site = hosts.site(tmp_path, secrets=["HF_TOKEN"])
    done = site.submit(small_recipe(TOLD), "--wait", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads(done.stdout)
    run = Path(state["folder"])
    assert (state["scheduler"], state["state"]) == ("ssh", "done")
    job = json.loads((run / "job.json").read_text())
    assert job["hosts"] == ["n1", "n2"]
    assert [node["name"] for node in state["nodes"]] == ["n1", "n2"]
    assert (run / "results.json").exists()
    assert site.recipe("logs", run.name, "bench-c0").stdout.splitlines()[-1] == "7"
    assert "n1" in site.recipe("status", run.name).stdout
    assert not [path for path in run.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    wait_until(lambda: not left(run), what="an end of everything")


def test_hosts_are_taken_whole_and_nothing_outlives_a_controller(hosts: Hosts, tmp_path: Path) -> None:
    site = hosts.site(tmp_path)
    first, second = (site.start(small_recipe(LONG)) for _ in range(2))
    jobs = [json.loads((run.folder / "job.json").read_text()) for run in (first, second)]
    assert [job["hosts"] for job in jobs] == [["n1", "n2"], ["n3", "n4"]]
    refused = site.submit(small_recipe(QUICK))
    assert refused.returncode == 1
    assert "needs 2 hosts, and 0 of 4 are free; with another run: n1, n2, n3, n4" in refused.stderr
    for run in (first, second):
        run.starts("bench-c0")
    assert site.recipe("wait", first.id, "--timeout", "1s").returncode == 101
    assert site.recipe("cancel", first.id).returncode == 0
    assert first.wait(103)["state"] == "cancelled"
    os.kill(jobs[1]["pid"], signal.SIGKILL)
    wait_until(lambda: not left(first.folder) and not left(second.folder), 60, what="an end of everything")
    assert second.wait(103)["state"] == "cancelled"
    third = site.start(small_recipe(LONG))
    assert site.recipe("cancel", third.id).returncode == 0  # the agents may not have begun
    assert third.wait(103)["state"] == "cancelled"


def test_the_time_limit_keeps_what_was_measured(hosts: Hosts, tmp_path: Path) -> None:
    site = hosts.site(tmp_path)
    done = site.submit(small_recipe(QUICK, LONG, time_limit="00:00:30"), "--wait", "--json")
    state = json.loads(done.stdout)
    assert (done.returncode, state["state"]) == (105, "timeout"), done.stdout
    assert state["points"]["c0"] == "done"
    wait_until(lambda: not left(Path(state["folder"])), what="an end of everything")


def test_what_cannot_run_is_refused_before_anything_starts(hosts: Hosts, tmp_path: Path) -> None:
    away = hosts.site(tmp_path, ssh={"hosts": ["n1", "nowhere.invalid"], "config": str(hosts.folder / "config")})
    done = away.submit(small_recipe(QUICK))
    assert done.returncode == 1
    assert "hosts that cannot take part:\n  nowhere.invalid: ssh: Could not resolve hostname" in done.stderr
    (run,) = away.runs.iterdir()
    assert not (run / "attempts").exists()
    assert "failed" in away.recipe("list").stdout
    unshared = hosts.site(tmp_path, runs=str(hosts.unshared))
    done = unshared.submit(small_recipe(QUICK))
    assert done.returncode == 1
    assert "  n4: " in done.stderr
    assert "No such file or directory there" in done.stderr
    assert "n1:" not in done.stderr
    python = hosts.site(tmp_path, python="/usr/bin/python3", pythonpath=["/nowhere"])
    assert "n1: " in (said := python.submit(small_recipe(QUICK)).stderr)
    assert "No module named" in said
    good = hosts.site(tmp_path)
    many = hosts.rig.recipe("plan", good.file(small_recipe(nodes=5)), "-c", good.profile)
    assert "needs 5 nodes, and the profile site has at most 4" in many.stderr
    shown = good.submit(small_recipe(QUICK), "--dry-run")
    assert shown.stdout.count("-m recipe_toolkit.run.seat") == 2
    checked = json.loads(hosts.rig.recipe("check", "-c", good.profile, "--only", "OS.SAME", "--json").stdout)
    assert (checked["ok"], checked["nodes"]) == (True, list(HOSTS))


def test_a_host_that_another_run_takes_at_the_last_moment(hosts: Hosts, tmp_path: Path) -> None:
    site = hosts.site(tmp_path)
    held = {host: subprocess.Popen([*hosts.inside(host), sys.executable, "-c", HOLD], stdout=-1) for host in HOSTS}
    try:
        for holder in held.values():
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
        assert "0 of 4 are free" in site.submit(small_recipe(QUICK)).stderr
        (folder,) = site.runs.iterdir()
        for host in ("n1", "n3", "n4"):
            end(held.pop(host))
        run, cluster = RunDir(folder), load_profile(site.profile).cluster
        plan = plan_from_json(read_json(run.plan))
        seats = {"hosts": ["n1", "n2"], "argv": [ssh.argv(cluster, host) for host in ("n1", "n2")], "secrets": []}
        write_json(run.job_folder / "seats.json", {**seats, "order": ssh.order(run, plan), "warn_s": 90, "limit_s": 99})
        done = hosts.rig.exec(sys.executable, "-m", "recipe_toolkit.submit.ssh_controller", run.root)
        state = read_json(run.state)
        assert state["state"] == "failed", done.stdout + done.stderr
        assert state["message"] == "node 1 (n2) did not start: another run has taken n2"
        wait_until(lambda: not left(folder), what="an end of everything")
    finally:
        for holder in held.values():
            end(holder)
