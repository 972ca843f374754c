"""Podman of one's own, for tests: a small image of this machine's Python and shell, in a store of its own."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_rig import find
from support import require, short_folder

IMAGE = "localhost/tiny-python:1"
# Of the standard library, what the simulated engine never imports, and what brings large libraries.
_LEFT_OUT = {"__pycache__", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data"}
_LEFT_OUT |= {"site-packages", "test", "tkinter", "turtledemo", "unittest"}
_MODULES_LEFT_OUT = ("_curses", "_dbm", "_gdbm", "_sqlite3", "_test", "_tkinter", "_xxtest", "readline")


def require_podman() -> None:
    """Skip, or fail where RECIPE_REQUIRE names podman, unless this machine can run containers."""
    missing = [name for name in ("podman", "runc", "catatonit", "ldd") if not find(name)]
    require("podman", not missing, f"no {', '.join(missing)}: apt-get install podman runc catatonit")
    require("podman", os.geteuid() == 0, "the nodes' podman runs as root, and this is not root")


@dataclass(frozen=True)
class Podman:
    """A store and its settings. ``env``: what every podman that is meant for it must find in its environment."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def call(self, *words: str, data: bytes | None = None, timeout: float = 60) -> str:
        """The output of podman; AssertionError where it fails."""
        done = subprocess.run(
            ["podman", *words],
            env={**os.environ, **self.env},
            input=data,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"podman {' '.join(words)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def containers(self) -> list[str]:
        """Names of all containers, whatever their state."""
        return self.call("ps", "--all", "--format", "{{.Names}}").split()

    def make(self) -> None:
        """Write the settings and import the image."""
        driver = subprocess.run(
            ["podman", "info", "--format", "{{.Store.GraphDriverName}}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "{driver}"\ngraphroot = "{self.folder}/store"\nrunroot = "{self.folder}/run"\n'
        )
        # Nothing is shared with another podman of this machine: its state, its locks.
        # crun refuses hybrid cgroups; there is no systemd that could hold the groups.
        (self.folder / "containers.conf").write_text(
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
            f'lock_type = "file"\ntmp_dir = "{self.folder}/state"\n'
        )
        self.call("import", "--quiet", "-", IMAGE, data=root_file_system(), timeout=120)

    def remove(self) -> None:
        """Every container, image and mount of the store."""
        self.call("rm", "--all", "--force", "--time", "0")
        self.call("rmi", "--all", "--force")
        # Not `system reset`, which removes what every podman of the machine shares. An overlay's folder is a mount.
        subprocess.run(["umount", self.folder / "store" / "overlay"], check=False, capture_output=True, timeout=60)
        shutil.rmtree(self.folder)


def make_podman() -> Iterator[Podman]:
    """A podman that is ready, and gone afterwards."""
    require_podman()
    podman = Podman(short_folder("podman"))
    podman.make()
    try:
        yield podman
    finally:
        podman.remove()


# What `vllm` of the image says; its help is what vLLM 0.32.0 has printed, shortened.
_VLLM = """#!/usr/bin/python3 -IS
import os, sys
if sys.argv[1:] == ["--version"]:
    print("0.32.0+cu130")
elif sys.argv[1:] == ["serve", "--help=all"]:
    print(open("/vllm-help.txt").read().replace("--max-num-seqs", "--" + os.environ.get("RENAMED", "max-num-seqs")))
else:
    sys.exit(f"vllm: {sys.argv[1:]}")
"""
_HELP = Path(__file__).parent / "data" / "vllm-help" / "serve-0.32.0.txt"


def root_file_system() -> bytes:
    """A tar of this machine's Python, its shell, and the libraries that they need; and of a vLLM that only speaks."""
    python, shell = Path(sys.executable).resolve(), Path("/bin/sh").resolve()
    files = {python: python, Path("/bin/sh"): shell}
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")]
        wanted = (Path(folder, name) for name in names if not name.startswith(_MODULES_LEFT_OUT))
        files |= {path: path.resolve() for path in wanted}
    programs = [file for file in files.values() if file.suffix == ".so" or file in (python, shell)]
    files |= {library: library.resolve() for library in _libraries(programs)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for folder in ("tmp", "proc", "sys", "dev", "etc", "run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
        link = tarfile.TarInfo("usr/bin/python3")  # it finds its library from where it is itself
        link.type, link.linkname = tarfile.SYMTYPE, str(python)
        archive.addfile(link)
        for name, data in (("usr/bin/vllm", _VLLM.encode()), ("vllm-help.txt", _HELP.read_bytes())):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
        for inside, file in sorted(files.items()):
            archive.add(file, str(inside).lstrip("/"), recursive=False)
    return packed.getvalue()


def _libraries(programs: list[Path]) -> Iterator[Path]:
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False, timeout=60)
    for line in done.stdout.splitlines():
        for word in line.split():
            if word.startswith("/") and not word.endswith(":"):
                yield Path(word)
