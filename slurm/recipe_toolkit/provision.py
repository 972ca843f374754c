"""The front of the playbooks in ``ansible/``: finds them, runs ansible-playbook, keeps what matters of its output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from recipe_toolkit.errors import RecipeError

# What Ansible prints of a task that did nothing on a node.
_QUIET = ("ok: ", "skipping: ", "included: ")


def find_playbooks(given: Path | None) -> Path:
    """The folder of ``site.yml``: the one given, or that of the checkout that this package runs from."""
    folder = given or Path(__file__).resolve().parents[2] / "ansible"
    if not (folder / "site.yml").is_file():
        hint = "clone Recipe Toolkit, and name its folder ansible with --playbooks"
        raise RecipeError(f"no playbooks in {folder}: site.yml is not there", hint=hint)
    return folder.resolve()


def find_ansible() -> str:
    """The program ``ansible-playbook``, beside this Python or on PATH."""
    beside = Path(sys.executable).with_name("ansible-playbook")
    found = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if not found:
        raise RecipeError("no ansible-playbook", hint="pip install 'ansible-core>=2.16'")
    return found


class Progress:
    """What is worth showing of ansible-playbook's output: plays, and tasks that changed or refused something."""

    def __init__(self) -> None:
        self.task = ""
        self._shown = ""
        self._hidden = False
        self._recap = False

    def feed(self, line: str) -> list[str]:
        """The lines to show now that ``line`` has come."""
        if line.startswith("PLAY RECAP"):
            self._recap = True
            return ["", line.rstrip(" *")]
        if self._recap:
            return [line] if line else []
        if line.startswith(("TASK [", "RUNNING HANDLER [")):
            self.task, self._hidden = line[line.index("[") + 1 : line.rindex("]")], True
            return []
        if line.startswith("PLAY ["):
            return ["", line.rstrip(" *")]
        if line and not line.startswith(" "):
            self._hidden = line.startswith(_QUIET) and not line.rstrip().endswith("=>")
        if self._hidden or not line:
            return []
        head = [] if self._shown == self.task or not self.task else [f"{self.task}:"]
        self._shown = self.task
        return [*head, f"  {line}"]


def provision(
    inventory: Path, playbooks: Path, names: Sequence[str], words: Sequence[str], show: Callable[[Progress, str], None]
) -> int:
    """Run the playbooks ``names`` (none: the whole site) and return ansible-playbook's exit code.

    ``show`` is called with each line of its output, and the progress that is to be fed with it. Raises RecipeError
    where a playbook or the program is not there.
    """
    paths = [playbooks / "playbooks" / f"{name}.yml" for name in names] or [playbooks / "site.yml"]
    for path in paths:
        if not path.is_file():
            there = ", ".join(sorted(each.stem for each in (playbooks / "playbooks").glob("*.yml")))
            raise RecipeError(f"no playbook {path.stem}", hint=f"there are {there}")
    argv = [find_ansible(), "-i", str(inventory.resolve()), *map(str, paths), *words]
    env = {**os.environ, "ANSIBLE_CONFIG": str(playbooks / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    progress = Progress()
    with subprocess.Popen(
        argv,
        cwd=playbooks,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            show(progress, line.rstrip("\n"))
        return process.wait()
