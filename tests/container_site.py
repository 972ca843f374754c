"""Sites whose runs go through fake container runtimes, which really run the programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from submit_support import wait_until

FAKE = Path(__file__).parent / "fakes" / "runtimes.py"
# What a client sees in its container; it writes into its working directory.
PROBE = f"""#!{sys.executable}
import json, os
seen = {{"env": dict(os.environ), "cwd": os.getcwd()}}
json.dump(seen, open("seen.json", "w"))
print("probed", flush=True)
"""


class Runtimes:
    """Fake runtimes in ``bin``, an image's programs in ``image``, and files that stand for images."""

    def __init__(self) -> None:
        # A socket's path may have 107 bytes: pytest's folders are longer.
        self.folder = Path(tempfile.mkdtemp(prefix="runtimes-", dir="/tmp"))
        self.bin, image = self.folder / "bin", self.folder / "image"
        self.bin.mkdir()
        image.mkdir()
        for name in ("docker", "enroot", "apptainer", "srun"):
            self.program(self.bin / name, f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE} {self.folder} {name} "$@"\n')
        self.program(image / "probe", PROBE)
        self.file = self.folder / "image.sqsh"
        self.file.touch()
        (self.folder / "srun").write_text(shutil.which("srun") or "")
        self.daemon: subprocess.Popen[bytes] | None = None

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def start_daemon(self) -> None:
        """What containers of docker are children of."""
        self.daemon = subprocess.Popen([sys.executable, str(FAKE), str(self.folder), "dockerd"])
        wait_until(lambda: (self.folder / "docker.sock").exists(), what="a fake docker daemon")

    def calls(self, *words: str) -> list[list[str]]:
        """The calls so far that begin with these words."""
        found = [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]
        return [call for call in found if tuple(call[: len(words)]) == words]

    def profile(self, runtime: str, **container: Any) -> dict[str, Any]:
        """Fields of a profile where the engine and the client ``probe`` run in images."""
        image = "registry/sim@sha256:00" if runtime == "docker" else str(self.file)
        return {
            "tools": {"sim": {"image": image}, "probe": {"image": image}, "sleeper": {"image": image}},
            "container": {"runtime": runtime, **container},
            "env": {"PROBED": "the site's"},
            "secrets": ["HF_TOKEN"],
        }

    def remove(self) -> None:
        """End the daemon and remove all files."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
        shutil.rmtree(self.folder)


def runtimes() -> Iterator[Runtimes]:
    """For a fixture."""
    made = Runtimes()
    try:
        yield made
    finally:
        made.remove()


def check_seen(run: Path, point: str) -> None:
    """What the probe must have seen, whatever the runtime."""
    seen = json.loads((run / "bench" / point / "seen.json").read_text())
    env = seen["env"]
    assert seen["cwd"] == str(run / "bench" / point)
    assert env["RECIPE_ARTIFACTS"] == str(run / "bench" / point)
    assert (env["PROBED"], env["IMAGE_SAYS"], env["HF_TOKEN"]) == ("the site's", "yes", "hunter2")
    assert "127.0.0.1" in env["NO_PROXY"] or "10.42." in env["NO_PROXY"]
    assert "OF_THE_SHELL" not in env
    assert not [name for name in env if name.startswith(("SLURM", "PMI", "SUBMITIT", "APPTAINERENV"))]
    written = [path for path in run.rglob("*") if path.is_file() and path.name != "seen.json"]
    assert not [path for path in written if b"hunter2" in path.read_bytes()]
