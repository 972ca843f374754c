"""The front of the playbooks in ``ansible/``: finds them, runs ansible-playbook, keeps what matters of its output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RecipeError

_RECAP = re.compile(r"(\S+)\s+: ok=\d+\s+changed=\d+\s+unreachable=(\d+)\s+failed=(\d+)")
# Where in a role a task stands that failed; what it said follows.
_EXCERPT = re.compile(r"\[ERROR\]: Task failed|Origin: .*/roles/|\d+( |$)")
# What Ansible prints of a task that did nothing on a node.
_QUIET = ("ok: ", "skipping: ", "included: ")


def find_playbooks(given: Path | None) -> Path:
    """The folder of ``site.yml``: the one given, that of the checkout that this package runs from, or the wheel's."""
    here = Path(__file__).resolve()
    shipped = (here.parents[2] / "ansible", here.with_name("ansible"))
    folder = given or next((each for each in shipped if (each / "site.yml").is_file()), shipped[-1])
    if not (folder / "site.yml").is_file():
        hint = "clone Recipe Toolkit, and name its folder ansible with --playbooks"
        raise RecipeError(f"no playbooks in {folder}: site.yml is not there", hint=hint)
    return folder.resolve()


def list_playbooks(folder: Path) -> str:
    """The playbooks in the order of ``site.yml``, each with its role's description, and the example inventories."""
    import yaml

    def load(path: Path) -> Any:
        return yaml.safe_load(path.read_text(encoding="utf-8"))

    names = [Path(play["ansible.builtin.import_playbook"]).stem for play in load(folder / "site.yml")]
    width = max(map(len, names))
    lines = [f"{folder}/site.yml:"]
    for name in names:
        specs = load(folder / "roles" / name / "meta" / "argument_specs.yml")["argument_specs"]
        lines.append(f"  {name:{width}}  {specs['main']['short_description']}")
    return "\n".join([*lines, "", f"example inventories: {', '.join(_examples(folder))}"])


def _examples(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in (folder / "inventory").glob("*.example.yml"))


def read_example(folder: Path, name: str) -> str:
    """The text of an example inventory. Raises RecipeError."""
    path = folder / "inventory" / f"{name}.example.yml"
    if not path.is_file():
        raise RecipeError(f"no example {name}", hint=f"there are {', '.join(_examples(folder))}")
    return path.read_text(encoding="utf-8")


def find_ansible() -> str:
    """The program ``ansible-playbook``, beside this Python or on PATH."""
    beside = Path(sys.executable).with_name("ansible-playbook")
    found = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if not found:
        raise RecipeError("no ansible-playbook", hint="pip install 'ansible-core>=2.16'")
    return found


class Progress:
    """What is worth showing of ansible-playbook's output: plays, and tasks that changed or refused something.

    ``nodes``, ``unreached``, ``failed``: as its recap has them; ``nodes`` is None before there is one.
    """

    def __init__(self) -> None:
        self.task = ""
        self._shown = ""
        self._hidden = False
        self._recap = False
        self.nodes: list[str] | None = None
        self.unreached: list[str] = []
        self.failed: list[str] = []

    def feed(self, line: str) -> list[str]:
        """The lines to show now that ``line`` has come."""
        if line.startswith("PLAY RECAP"):
            self._recap, self.nodes = True, self.nodes or []
            return ["", line.rstrip(" *")]
        self._recap = self._recap and not line.startswith("PLAY [")  # each playbook has its recap
        if self._recap:
            self._count(line)
            return [line] if line else []
        if line.startswith(("TASK [", "RUNNING HANDLER [")):
            self.task, self._hidden = line[line.index("[") + 1 : line.rindex("]")], True
            return []
        if line.startswith("PLAY ["):
            return ["", line.rstrip(" *")]
        if line and not line.startswith(" "):
            quiet = line.startswith(_QUIET) and not line.rstrip().endswith("=>")
            self._hidden = quiet or bool(_EXCERPT.match(line))
        if self._hidden or not line:
            return []
        head = [] if self._shown == self.task or not self.task else [f"{self.task}:"]
        self._shown = self.task
        return [*head, f"  {line}"]

    def _count(self, line: str) -> None:
        if match := _RECAP.match(line):
            name, unreached, failed = match.groups()
            self.nodes = [*(self.nodes or []), name]
            self.unreached += [name] if int(unreached) and name not in self.unreached else []
            self.failed += [name] if int(failed) and name not in self.failed else []


def provision(
    inventory: Path, playbooks: Path, names: Sequence[str], words: Sequence[str], show: Callable[[Progress, str], None]
) -> None:
    """Run the playbooks ``names`` (none: the whole site).

    ``show`` is called with each line of its output, and the progress that is to be fed with it. Raises RecipeError
    where a playbook or the program is not there, and with the nodes that failed or were not reached.
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
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            show(progress, line.rstrip("\n"))
        code = process.wait()
    if not code and progress.nodes == []:
        hint = "put the nodes under all.children.nodes.hosts, as --example shows"
        raise RecipeError(f"{inventory}: no host is in the group nodes: nothing was done", hint=hint)
    if code:
        nodes = {"failed": progress.failed, "not reached": progress.unreached}
        told = "; ".join(f"{what}: {', '.join(names)}" for what, names in nodes.items() if names)
        hint = "run it again when that is mended: it goes on; --limit '!NODE' leaves a node out"
        raise RecipeError(f"ansible-playbook: {told or f'exit code {code}'}", hint=hint if told else None)
