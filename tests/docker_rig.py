"""Docker of one's own, for tests: a daemon in a scratch folder, with a small image of this machine's Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from podman_rig import root_file_system
from slurm_rig import find
from submit_support import wait_until
from support import require, short_folder

IMAGE = "tiny-python:1"


def require_docker() -> None:
    """Skip, or fail where RECIPE_REQUIRE names docker, unless this machine can run a daemon."""
    missing = [name for name in ("docker", "dockerd", "containerd", "runc", "ldd") if not find(name)]
    require("docker", not missing, f"no {', '.join(missing)}: apt-get install docker.io")
    require("docker", os.geteuid() == 0, "the daemon runs as root, and this is not root")


class Docker:
    """A daemon and its settings. ``env``: what every docker that is meant for it must find in its environment."""

    def __init__(self) -> None:
        self.folder = short_folder("docker")
        self.env = {"DOCKER_HOST": f"unix://{self.folder}/docker.sock"}
        with (self.folder / "log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [
                    find("dockerd") or "dockerd", "--host", self.env["DOCKER_HOST"],
                    "--data-root", self.folder / "data",
                    "--exec-root", self.folder / "exec", "--pidfile", self.folder / "pid", "--storage-driver", "vfs",
                    "--iptables=false", "--ip-forward=false", "--bridge=none",
                    "--exec-opt", "native.cgroupdriver=cgroupfs",
                ],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_until(lambda: self.run("version").returncode == 0, 60, f"a docker daemon: see {self.folder}/log")

    def run(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """docker, on this daemon."""
        env = {**os.environ, **self.env}
        return subprocess.run(["docker", *words], env=env, input=data, capture_output=True, timeout=120, check=False)

    def containers(self) -> list[str]:
        """Names of all containers, whatever their state."""
        return self.run("ps", "--all", "--format", "{{.Names}}").stdout.decode().split()

    def import_image(self) -> None:
        """The image, whose programs are on its PATH."""
        done = self.run("import", "--change", "ENV PATH=/usr/bin:/bin", "-", IMAGE, data=root_file_system())
        assert done.returncode == 0, done.stderr.decode()

    def remove(self) -> None:
        """The daemon, its containers and its folder."""
        for name in self.containers():
            self.run("rm", "--force", name)
        self.daemon.terminate()
        self.daemon.wait(30)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=True)  # the network namespace of the host stays mounted
        shutil.rmtree(self.folder)


def make_docker() -> Iterator[Docker]:
    """For a fixture."""
    require_docker()
    docker = Docker()
    try:
        docker.import_image()
        yield docker
    finally:
        docker.remove()
