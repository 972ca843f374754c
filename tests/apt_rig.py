"""A repository of apt, for tests: real packages with nothing much in them, signed, served to the nodes by http."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from ansible_rig import Nodes
from support import require, short_folder

ADDRESS = "10.91.0.254"  # the controller's, on the nodes' management network


class Repository:
    """A flat repository; ``add`` packages, then ``publish``. ``url``, ``key``: where nodes find it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://{ADDRESS}:{port}"
        self.key = f"{self.url}/key.asc"
        folder.mkdir()
        self._home = short_folder("gpg")
        self._gpg("--quick-gen-key", "rig", "ed25519", "sign", "never")
        (folder / "key.asc").write_bytes(self._gpg("--armor", "--export", "rig"))

    def _gpg(self, *words: str | Path) -> bytes:
        argv = ["gpg", "--homedir", self._home, "--batch", "--yes", "--quiet", "--passphrase", "", *words]
        return subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout

    def source(self, name: str = "rig") -> dict[str, str]:
        """What the role ``packages`` takes as ``packages_source``."""
        return {"name": name, "uris": self.url, "suites": "./", "key": self.key}

    def add(
        self,
        name: str,
        version: str = "1.0",
        files: Mapping[str, str] | None = None,
        *,
        size_kb: int = 1,
        **fields: str,
    ) -> None:
        """A package of these files (what lies in a folder ``bin`` or ``sbin`` can be run).

        ``fields``: of its control file, such as ``depends``; ``postinst`` is its script.
        """
        tree = self.folder / "tree"
        script = fields.pop("postinst", None)
        control = {"Package": name, "Version": version, "Architecture": "all", "Maintainer": "rig <rig@example.org>"}
        control |= {"Installed-Size": str(size_kb), "Description": "of the rig"}
        control |= {key.replace("_", "-").title(): value for key, value in fields.items()}
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()))
        if script:
            (tree / "DEBIAN/postinst").write_text(script)
            (tree / "DEBIAN/postinst").chmod(0o755)
        for path, text in (files or {}).items():
            file = tree / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if file.parent.name in ("bin", "sbin") else 0o644)
        place = self.folder / f"{name}_{version.replace(':', '%3a')}.deb"
        argv = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, place]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        shutil.rmtree(tree)

    def publish(self) -> None:
        """Write and sign the lists of what has been added."""
        entries = []
        for path in sorted(self.folder.glob("*.deb")):
            control = subprocess.run(
                ["dpkg-deb", "--field", path], check=True, capture_output=True, text=True, timeout=60
            ).stdout.strip()
            data = path.read_bytes()
            name = path.name.replace("%", "%25")
            entries.append(
                f"{control}\nFilename: ./{name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
            )
        (self.folder / "Packages").write_text("\n".join(entries))
        data = (self.folder / "Packages").read_bytes()
        lines = ["Origin: rig", "Label: rig", f"Date: {formatdate(usegmt=True)}", "SHA256:"]
        lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} Packages")
        (self.folder / "Release").write_text("\n".join(lines) + "\n")
        self._gpg("--clearsign", "--output", self.folder / "InRelease", self.folder / "Release")

    def remove(self) -> None:
        """End gpg's agent and remove its keys."""
        subprocess.run(["gpgconf", "--homedir", self._home, "--kill", "all"], check=False, timeout=60)
        shutil.rmtree(self._home, ignore_errors=True)


def make_repository(nodes: Nodes, folder: Path, port: int = 8099) -> Iterator[Repository]:
    """A repository beside the nodes, served, and gone afterwards."""
    require("ansible", bool(shutil.which("gpg") and shutil.which("dpkg-deb")), "no gpg: apt-get install gnupg")
    repository = Repository(folder / "apt", port)
    with serve(nodes, repository.folder, port):
        yield repository
    repository.remove()


@contextmanager
def serve(nodes: Nodes, folder: Path, port: int) -> Iterator[None]:
    """A folder, served to the nodes by http."""
    words = ["-m", "http.server", str(port), "--bind", ADDRESS, "--directory", str(folder)]
    with nodes.start("exec", "--", sys.executable, *words):
        look = ["python3", "-c", f"import socket; socket.create_connection(('{ADDRESS}', {port}), 2)"]
        deadline = time.monotonic() + 30
        while nodes.call("exec", "--", *look).returncode:
            assert time.monotonic() < deadline, f"waited 30 s for http on {ADDRESS}:{port}"
            time.sleep(0.1)
        yield
