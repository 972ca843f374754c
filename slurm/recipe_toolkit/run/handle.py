"""What belongs to a program that runs in a container.

A container of docker is no descendant of the ``docker run`` that asked for it, so its processes are
found through the runtime. Its name is the last word of the command that removes it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from recipe_toolkit.run import procfs

_INSPECT_S = 20.0


def container_pids(cleanup: Sequence[str]) -> list[int]:
    """Processes of the container that ``cleanup`` (``RUNTIME rm ... NAME``) would remove; none if it does not run."""
    if not cleanup:
        return []
    command = [cleanup[0], "inspect", "--format", "{{.State.Pid}}", cleanup[-1]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSPECT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    text = done.stdout.strip()
    if done.returncode != 0 or not text.isdigit() or text == "0":
        return []
    root = int(text)
    return [root, *(item.pid for item in procfs.descendants([root]))]
