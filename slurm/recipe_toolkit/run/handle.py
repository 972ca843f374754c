"""What a container runtime runs for a program, elsewhere than below it.

A container of docker is no descendant of the ``docker run`` that asked for it, and a step of Slurm
none of its ``srun``: a command of the plan (``Process.inspect``) prints the pids of their roots.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from recipe_toolkit.run import procfs

_INSPECT_S = 20.0


class Outside:
    """The processes of one container or step."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = list(command)
        self._env = env
        self._roots: list[procfs.Stat] = []

    def refresh(self) -> None:
        """Ask for the roots, unless those that were told still run. May take a while: not for a loop."""
        if self._command and not self._live():
            self._roots = [item for item in map(procfs.stat, self._ask()) if item is not None]

    def pids(self, processes: Mapping[int, procfs.Stat] | None = None) -> list[int]:
        """The roots that were told last, where they still run, and everything below them."""
        roots = [item.pid for item in self._live()]
        return [*roots, *(item.pid for item in procfs.descendants(roots, processes))] if roots else []

    def _live(self) -> list[procfs.Stat]:
        now = ((root, procfs.stat(root.pid)) for root in self._roots)
        return [root for root, item in now if item is not None and item.start == root.start and item.state not in "ZX"]

    def _ask(self) -> list[int]:
        try:
            done = subprocess.run(
                self._command, env=dict(self._env), capture_output=True, text=True, timeout=_INSPECT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
        # docker says 0 of a container that does not run.
        words = done.stdout.split() if done.returncode == 0 else []
        return [int(word) for word in words if word.isdigit() and int(word) > 0]
