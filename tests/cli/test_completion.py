"""Completion as real shells do it: keys on a terminal, what stands on the line after Tab."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest

from recipe_toolkit.cli import VERBS
from recipe_toolkit.cli.group import group
from submit_support import make_run
from support import require
from terminal import Terminal

BIN = Path(sys.executable).parent
OLD = "2026-11-28T12-00-00-tiny-ab12"
NEW = "2026-11-29T13-00-00-glm-cd34"
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SET_UP = {
    "bash": "PS1='ready> '; bind 'set enable-bracketed-paste off'; bind 'set show-all-if-ambiguous on'; . {script}\n",
    "zsh": "PS1='ready> '; autoload -U compinit; compinit -u -D; . {script}\n",
}


@pytest.fixture
def here(recipe):
    """A folder with runs, a profile and recipes."""
    runs = recipe.folder / "runs"
    make_run(runs, OLD)
    run = make_run(runs, NEW)
    logs = run.attempt(0).root / "nodes" / "00"
    logs.mkdir(parents=True)
    for name in ("prefill-0", "prefill-1", "decode-0", "agent"):
        (logs / f"{name}.log").touch()
    folder = recipe.folder / "recipes"
    (folder / "clusters").mkdir(parents=True)
    (folder / "clusters" / "mysite.yaml").write_text("schema: 1\nname: mysite\nscheduler: slurm\nruns: /nowhere\n")
    (folder / "tiny").mkdir()
    for name in ("one.yaml", "two.yaml", "notes.md"):
        (folder / "tiny" / name).touch()
    return recipe.folder


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RECIPE_") and key != "CI"}
    home.mkdir(exist_ok=True)
    return {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", "COLUMNS": "200"}


@pytest.fixture(params=["bash", "zsh"])
def shell(request, recipe, here, tmp_path):
    """A shell on a terminal that has read the script, at its prompt."""
    name = request.param
    require("shells", shutil.which(name) is not None, f"{name} is not installed")
    script = tmp_path / f"completion.{name}"
    script.write_text(recipe("completion", name).stdout)
    terminal = Terminal(START[name], cwd=here, env=environment(tmp_path / "home"))
    try:
        terminal.type(SET_UP[name].format(script=script))
        terminal.type("echo set-up-$((1 + 1))\n")
        terminal.expect(r"set-up-2\n(.|\n)*ready> $")
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("recipe stat\t", ["recipe", "status"]),
        ("recipe status --js\t", ["recipe", "status", "--json"]),
        ("recipe status 2026-11-28\t", ["recipe", "status", OLD]),
        ("recipe status glm\t", ["recipe", "status", NEW]),
        ("recipe logs last age\t", ["recipe", "logs", "last", "agent-0"]),
        ("recipe plan rec\ttiny/t\t", ["recipe", "plan", "recipes/tiny/two.yaml"]),
        ("recipe plan x.yaml -c my\t", ["recipe", "plan", "x.yaml", "-c", "mysite"]),
        ("recipe new --shape di\t", ["recipe", "new", "--shape", "disaggregated"]),
        ("recipe completion zs\t", ["recipe", "completion", "zsh"]),
        ("recipe status --runs ru\t", ["recipe", "status", "--runs", "runs/"]),
    ],
)
def test_one_candidate_is_written_out(shell, typed, words):
    shell.type(f"{typed}X\x01printf '<%s>' \n")  # Ctrl-A: the whole line becomes what printf prints
    last = words[-1] + "X" if words[-1].endswith("/") else words[-1] + "><X"
    shell.expect(re.escape("".join(f"<{word}>" for word in [*words[:-1], last])))


def test_several_candidates_are_shown(shell):
    shell.type("recipe logs last \t")
    shell.expect_all("agent-0", "decode-0", "prefill-0", "prefill-1")
    shell.type("\x15recipe \t")
    shell.expect_all(*VERBS)


def test_fish(recipe, here, tmp_path):
    require("shells", shutil.which("fish") is not None, "fish is not installed")
    script = tmp_path / "recipe.fish"
    script.write_text(recipe("completion", "fish").stdout)
    wanted = {
        "recipe stat": ["status\tShow the state of a run and of each of its processes."],
        "recipe logs last pre": ["prefill-0", "prefill-1"],
        "recipe plan recipes/tiny/": ["recipes/tiny/one.yaml", "recipes/tiny/two.yaml"],
        "recipe wait --timeo": ["--timeout\tGive up after 90, 30m or 1h30m, with exit code 101."],
        "recipe list -c my": ["mysite"],
    }
    for line, candidates in wanted.items():
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
            cwd=here,
            env=environment(tmp_path / "home"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout.splitlines(), done.stderr) == (candidates, ""), line


def complete(recipe, *words, **env):
    """click's protocol, as the scripts speak it: one ``TYPE,VALUE`` a line."""
    line = " ".join(["recipe", *words])
    done = recipe(_RECIPE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)), **env)
    assert done.stderr == ""
    return [item.partition(",")[2] for item in done.stdout.split()]


def test_runs_are_offered_the_newest_first_each_once(recipe, here):
    assert complete(recipe, "status", "''") == [NEW, OLD, "last"]
    assert complete(recipe, "report", NEW, "''") == [OLD, "last"]
    assert complete(recipe, "status", "2026-11") == [NEW, OLD]
    assert complete(recipe, "status", "00-00") == []
    assert complete(recipe, "status", "runs/2026-11-28") == [f"runs/{OLD}/"]


def test_where_there_is_nothing_the_prompt_stays_clean(recipe, here):
    assert complete(recipe, "status", "--runs", "nowhere", "''") == []
    assert complete(recipe, "logs", "nothing", "''") == []
    assert complete(recipe, "plan", "nowhere/x") == []
    assert complete(recipe, "status", "-c", "recipes/clusters/none.yaml", "''") == []
    assert complete(recipe, "xyz") == []


def test_profiles_by_name_and_by_path(recipe, here):
    assert complete(recipe, "plan", "x.yaml", "-c", "''") == ["local", "mysite"]
    assert complete(recipe, "plan", "x.yaml", "-c", "recipes/c") == ["recipes/clusters/"]


def test_verbs_are_offered_without_importing_them():
    probe = """
        import sys
        from recipe_toolkit.cli import main
        try:
            main()
        finally:
            print([name for name in ("yaml", "jsonschema", "submitit") if name in sys.modules])
    """
    env = {**os.environ, "_RECIPE_COMPLETE": "bash_complete", "COMP_WORDS": "recipe ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(probe)], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert [line.partition(",")[2] for line in done.stdout.splitlines()[:-1]] == list(VERBS)


def test_every_argument_is_completed():
    ctx = click.Context(group)
    bare = []
    for verb in VERBS:
        for param in group.get_command(ctx, verb).params:
            named = {"-c", "--cluster"} & set(param.opts) or param.param_type_name == "argument"
            if named and not param._custom_shell_complete and not isinstance(param.type, click.Choice):
                bare.append(f"{verb} {param.name}")
    assert bare == []
