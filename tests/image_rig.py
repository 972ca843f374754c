"""Images for bare nodes, for tests: a registry of tiny ones, and this machine's podman or docker on a node."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ansible_rig import Nodes
from apt_rig import ADDRESS
from slurm_rig import find
from support import require, short_folder

REGISTRY = Path(__file__).parent / "ansible" / "stubs" / "registry"
PORT = 5000
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def write_image(folder: Path, name: str, text: str) -> str:
    """An image of one file, in a registry's folder; its reference with the digest and no tag."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("file")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
    layer = gzip.compress(packed.getvalue(), mtime=0)
    inner = f"sha256:{hashlib.sha256(packed.getvalue()).hexdigest()}"
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]}}
    config["rootfs"] = {"type": "layers", "diff_ids": [inner]}
    blobs = folder / name / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)

    def blob(data: bytes, kind: str) -> dict[str, str | int]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.docker.{kind}", "size": len(data), "digest": digest}

    manifest = {"schemaVersion": 2, "mediaType": MANIFEST}
    manifest["config"] = blob(json.dumps(config).encode(), "container.image.v1+json")
    manifest["layers"] = [blob(layer, "image.rootfs.diff.tar.gzip")]
    data = json.dumps(manifest).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    (folder / name / "manifests").mkdir(exist_ok=True)
    (folder / name / "manifests" / digest).write_bytes(data)
    return f"{ADDRESS}:{PORT}/{name}@{digest}"


@contextmanager
def registry(nodes: Nodes, folder: Path) -> Iterator[None]:
    """A registry beside the nodes that hands out what lies in the folder."""
    with nodes.start("exec", "--", sys.executable, REGISTRY, ADDRESS, str(PORT), str(folder)):
        look = ["python3", "-c", f"import socket; socket.create_connection(('{ADDRESS}', {PORT}), 2)"]
        deadline = time.monotonic() + 30
        while nodes.call("exec", "--", *look).returncode:
            assert time.monotonic() < deadline, "waited 30 s for the registry"
            time.sleep(0.1)
        yield


def send(nodes: Nodes, node: str, files: dict[str, Path | str]) -> None:
    """Put files on a node, with their modes; a text becomes a file that can be run."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, file in files.items():
            if isinstance(file, Path):
                archive.add(file.resolve(), path.lstrip("/"))
                continue
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(file.encode()), 0o755
            archive.addfile(entry, io.BytesIO(file.encode()))
    argv = ["ssh", "-F", str(nodes.folder / "ssh_config"), node, "tar", "-xf", "-", "-C", "/"]
    enter = ["nsenter", f"--net={nodes.folder / 'ns' / 'ctl'}"]
    subprocess.run([*enter, *argv], input=packed.getvalue(), check=True, timeout=120, capture_output=True)


def with_libraries(nodes: Nodes, node: str, program: Path) -> dict[str, Path | str]:
    """A program of this machine, and the libraries that the node lacks."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, timeout=60).stdout
    needed = [line.split()[2] for line in told.splitlines() if "=> /" in line]
    there = nodes.on(node, "".join(f"test -e {path} && echo {path}\n" for path in needed) + "true").split()
    return {path: Path(path) for path in needed if path not in there}


STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "/var/lib/podman"\nrunroot = "/run/podman"\n'
ENGINE = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
conmon_path = ["/usr/local/bin/conmon"]
[engine.runtimes]
runc = ["/usr/local/bin/runc"]
"""
PODMAN = {
    "/etc/containers/policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
    "/etc/containers/registries.conf": f'[[registry]]\nlocation = "{ADDRESS}:{PORT}"\ninsecure = true\n',
    "/etc/containers/storage.conf": STORAGE,
    "/etc/containers/containers.conf": ENGINE,
    # Nothing is run: these are asked for their versions alone.
    "/usr/local/bin/conmon": "#!/bin/sh\necho conmon version 2.1.6\n",
    "/usr/local/bin/runc": "#!/bin/sh\necho runc version 1.1.5\n",
}


def put_podman(nodes: Nodes, names: Sequence[str]) -> None:
    """This machine's podman on the nodes, with a store of its own on each."""
    program = find("podman")
    require("podman", bool(program), "no podman: apt-get install podman")
    for name in names:
        libraries = with_libraries(nodes, name, Path(str(program)))
        send(nodes, name, {**PODMAN, **libraries, "/usr/local/bin/podman": Path(str(program))})
        nodes.on(name, "ldconfig")


@contextmanager
def dockers(nodes: Nodes, names: Sequence[str]) -> Iterator[None]:
    """A real docker daemon for each of the nodes, in its network, behind its /run/docker.sock."""
    missing = [name for name in ("docker", "dockerd", "containerd", "runc") if not find(name)]
    require("docker", not missing, f"no {', '.join(missing)}: apt-get install docker.io")
    folder = short_folder("dockers")
    daemons = []
    try:
        for name in names:
            program = Path(str(find("docker")))
            send(nodes, name, {**with_libraries(nodes, name, program), "/usr/local/sbin/docker": program})
            daemons.append(start_daemon(nodes, name, folder / name))
        for name in names:
            deadline = time.monotonic() + 60
            while nodes.call("exec", "--on", name, "--", "docker", "version").returncode:
                assert time.monotonic() < deadline, f"waited 60 s for a docker daemon: see {folder}/{name}/log"
                time.sleep(0.2)
        yield
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(30)
        for name in names:
            nodes.call("exec", "--on", name, "--", "rm", "-f", "/usr/local/sbin/docker", "/run/docker.sock")
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(folder)


def mounts_of(process: Path) -> str:
    """The mount namespace of a process; nothing where it is gone, or nobody may know."""
    try:
        return str((process / "ns/mnt").readlink())
    except OSError:
        return ""


def start_daemon(nodes: Nodes, node: str, folder: Path) -> subprocess.Popen[bytes]:
    """A daemon of this machine in a node's network; its socket is the node's."""
    folder.mkdir()
    inside = nodes.on(node, "readlink /proc/self/ns/mnt").strip()
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and mounts_of(entry) == inside]
    # The first is unshare(1), whose root is this machine's; what it started is the node.
    pid = sorted(int(entry.name) for entry in processes)[1]
    argv = [
        "nsenter", f"--net={nodes.folder / 'ns' / node}", find("dockerd") or "dockerd",
        "--host", f"unix:///proc/{pid}/root/run/docker.sock", "--data-root", folder / "data",
        "--exec-root", folder / "exec", "--pidfile", folder / "pid", "--storage-driver", "vfs", "--iptables=false",
        "--ip-forward=false", "--bridge=none", "--exec-opt", "native.cgroupdriver=cgroupfs",
        "--insecure-registry", f"{ADDRESS}:{PORT}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
