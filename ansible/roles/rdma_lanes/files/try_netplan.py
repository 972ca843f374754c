"""Let netplan read a file in a root of its own: its exit code is netplan's. The argument is the file."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as root:
    place = pathlib.Path(root, "etc/netplan/40-try.yaml")
    place.parent.mkdir(parents=True)
    shutil.copy(sys.argv[1], place)
    place.chmod(0o600)
    sys.exit(subprocess.call(["netplan", "generate", "--root-dir", root]))
