"""Setup steps of a recipe: read with it, kept with it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_support import GOOD, said
from recipe_toolkit.document import dump_yaml
from recipe_toolkit.recipe import Step
from recipe_toolkit.recipe_loader import load_recipe

FIX = "#!/bin/bash -eu\n# fixes it\nsed -i s/a/b/ /opt/x\n"


def recipe(folder: Path, setup: str, name: str = "r") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"{GOOD}setup: {setup}\n")
    return path


def script(folder: Path, content: str | bytes = FIX, name: str = "patches/fix.sh") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_script_and_commands(tmp_path: Path) -> None:
    script(tmp_path)
    loaded = load_recipe(recipe(tmp_path, "[{script: patches/fix.sh}, {name: deps, run: pip install x}]"))
    assert loaded.recipe.setup == (Step("fix", FIX), Step("deps", "#!/bin/sh -e\npip install x"))


def test_the_resolved_recipe_needs_no_script(tmp_path: Path) -> None:
    path = script(tmp_path)
    loaded = load_recipe(recipe(tmp_path, "[{script: patches/fix.sh, name: other}, {name: deps, run: 'a\\n'}]"))
    path.unlink()
    lock = tmp_path / "elsewhere" / "recipe.lock.yaml"
    lock.parent.mkdir()
    lock.write_text(dump_yaml(loaded.data))
    assert load_recipe(lock).recipe == loaded.recipe
    assert "    # fixes it\n" in lock.read_text()


def test_a_path_begins_at_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, name="base/patches/fix.sh")
    recipe(tmp_path / "base", "[{script: patches/fix.sh}]", "base")
    over = tmp_path / "over" / "r.yaml"
    over.parent.mkdir()
    over.write_text("extends: ../base/base.yaml\nname: over\n")
    assert load_recipe(over).recipe.setup == (Step("fix", FIX),)
    over.write_text("extends: ../base/base.yaml\nsetup: [{script: own.sh}]\n")
    script(over.parent, "#!/usr/bin/env sh\n", "own.sh")
    assert load_recipe(over).recipe.setup == (Step("own", "#!/usr/bin/env sh\n"),)
    monkeypatch.chdir(tmp_path / "base")
    assert load_recipe(over, ["setup=[{script: patches/fix.sh}]"]).recipe.setup == (Step("fix", FIX),)
    assert load_recipe(over, ["setup=null"]).recipe.setup == ()


LINE = GOOD.count("\n") + 1
BROKEN = [
    (None, "no such file or directory\n  hint: the path is relative to the file that names it"),
    ("echo hello\n", "the script does not begin with #!\n  hint: begin it with #!/bin/sh -e"),
    (b"#!/bin/sh\necho \xff\n", "byte 0xff in line 2 is not UTF-8 text\n  hint: name a shell script"),
    ("#!/usr/bin/python3\n", "'#!/usr/bin/python3' is not sh or bash"),
    ("#!/bin/bashful\n", "'#!/bin/bashful' is not sh or bash"),
    ("#!/bin/sh\r\necho\r\n", "the script has the line ends of Windows, which no shell takes"),
    ("#!/bin/sh\n\0\n", "the script holds a NUL byte"),
    ("#!/bin/sh\n" + "x" * 65536, "patches/fix.sh is larger than 64 KiB"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_a_script_that_cannot_be_taken(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    if content is not None:
        script(tmp_path, content)
    (problem,) = said(tmp_path, f"{GOOD}setup: [{{script: patches/fix.sh}}]\n")
    assert problem.startswith(f"r.yaml:{LINE}:18: setup.0.script: ")
    assert message in problem


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    assert said(tmp_path, f"{GOOD}setup: [{{script: patches}}]\n") == [
        f"r.yaml:{LINE}:18: setup.0.script: patches is a folder\n  hint: name a script"
    ]


ONE_OF = "\n  hint: {script: FILE}, or {name: NAME, run: COMMANDS}"
WRONG = [
    ("[{name: a}]", f"{LINE}:9: setup.0: has neither script nor run{ONE_OF}"),
    ("[{run: a}]", f"{LINE}:9: setup.0.name: missing: what messages and results call these commands{ONE_OF}"),
    ("[{script: f.sh, run: a}]", f"{LINE}:24: setup.0.run: script and run exclude each other{ONE_OF}"),
    ("[{name: a, run: 1}]", f'{LINE}:24: setup.0.run: 1 is not a string\n  hint: in quotes it is a string: "1"'),
    ("[{name: a b, run: a}]", f"{LINE}:16: setup.0.name: 'a b' is not a name (letters, digits, '.', '_' and '-', with"),
    ("[{nam: a, run: a}]", f"{LINE}:10: setup.0.nam: unknown key\n  hint: did you mean `name`?"),
    ("[{name: a, run: a}, {name: a, run: b}]", f"{LINE}:28: setup.1: two steps are called 'a'"),
    ('[{name: a, run: "#!/usr/bin/perl"}]', f"{LINE}:24: setup.0.run: '#!/usr/bin/perl' is not sh or bash"),
    ("[a.sh]", f"{LINE}:9: setup.0: 'a.sh' is not a mapping"),
    ("a.sh", f"{LINE}:8: setup: 'a.sh' is not a list"),
    ("[{name: a, run: export X=hf_abcdefghijklmnopqrstuvwx}]", f"{LINE}:9: setup.0: a holds what looks like a secret"),
]


@pytest.mark.parametrize(("setup", "message"), WRONG, ids=[item[0] for item in WRONG])
def test_steps_that_are_refused(tmp_path: Path, setup: str, message: str) -> None:
    problems = said(tmp_path, f"{GOOD}setup: {setup}\n")
    assert any(problem.startswith(f"r.yaml:{message}") for problem in problems), problems


def test_all_steps_together_have_a_limit(tmp_path: Path) -> None:
    steps = ", ".join(f"{{name: s{index}, run: {'x' * 60_000}}}" for index in range(3))
    assert said(tmp_path, f"{GOOD}setup: [{steps}]\n")[0].endswith("all steps together are larger than 128 KiB")


def test_a_broken_script_hides_no_other_fault(tmp_path: Path) -> None:
    text = GOOD.replace("tp: 4", "tp: 3")
    problems = said(tmp_path, f"{text}setup: [{{script: none.sh}}]\n")
    assert [problem.split(": ")[1] for problem in problems][0::2] == ["roles.decode.parallel.tp", "setup.0.script"]
