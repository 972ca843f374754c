"""The private Slurm, for tests: scripts/mini-slurm in a scratch folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support import require, short_folder

MINI_SLURM = Path(__file__).parents[1] / "scripts" / "mini-slurm"
NODES = 4


@dataclass
class Rig:
    """One private cluster. ``jobs_before``: ids that earlier tests have used."""

    folder: Path
    extra: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)

    def call(self, *words: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run scripts/mini-slurm."""
        return subprocess.run(
            [MINI_SLURM, *map(str, words)],
            env={**os.environ, **self.env, "MINI_SLURM_DIR": str(self.folder)},
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )

    def up(self) -> None:
        """Make the cluster."""
        done = self.call("up", str(NODES), *self.extra)
        assert done.returncode == 0, done.stderr

    def down(self) -> None:
        """Remove the cluster."""
        done = self.call("down")
        assert done.returncode == 0, done.stderr

    def exec(self, *words: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command beside the controller."""
        return self.call("exec", *words, timeout=timeout)

    def recipe(self, *words: str | Path, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run ``recipe`` on the cluster's login node, so to say."""
        return self.exec(Path(sys.executable).with_name("recipe"), *words, timeout=timeout)

    def argv(self, *words: str | Path) -> list[str]:
        """The argv that runs ``recipe`` there, for a process that a test holds on to."""
        return [str(MINI_SLURM), "exec", str(Path(sys.executable).with_name("recipe")), *map(str, words)]

    def processes(self) -> list[int]:
        """Every process in the cluster's namespaces."""
        inodes = {(path.stat().st_dev, path.stat().st_ino) for path in (self.folder / "ns").iterdir()}
        found = []
        for entry in Path("/proc").iterdir():
            try:
                stat = (entry / "ns" / "net").stat() if entry.name.isdigit() else None
            except OSError:
                continue
            if stat and (stat.st_dev, stat.st_ino) in inodes:
                found.append(int(entry.name))
        return found

    def story(self) -> str:
        """What Slurm says of itself, and the ends of its daemons' logs."""
        parts = [self.exec(*words).stdout for words in (("sinfo", "-Nel"), ("squeue", "--states=all", "-l"))]
        for log in sorted((self.folder / "log").glob("*.log")):
            parts.append(f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
        return "\n".join(parts)


def require_slurm() -> None:
    """Skip, or fail where RECIPE_REQUIRE names slurm, unless this machine can hold a private Slurm."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "ip", "nsenter") if not find(name)]
    require("slurm", not missing, f"no {', '.join(missing)}: apt-get install slurm-wlm munge iproute2")
    require("slurm", os.geteuid() == 0, "the private Slurm makes namespaces, and this is not root")


def require_slurmdbd() -> None:
    """The same for its accounting in a database."""
    missing = [name for name in ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults") if not find(name)]
    require(
        "slurm",
        not missing,
        f"no {', '.join(missing)}: apt-get install slurmdbd mariadb-server-core mariadb-client-core",
    )


def find(program: str) -> str | None:
    """The program, on root's PATH too."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def make_rig(*extra: str) -> Iterator[Rig]:
    """A cluster that is up, and gone afterwards."""
    require_slurm()
    folder = short_folder("slurm")
    rig = Rig(folder / "rig", extra)
    try:
        rig.up()
        yield rig
    finally:
        rig.down()
        folder.rmdir()
