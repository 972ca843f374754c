"""Setup steps in a plan, in a run folder, and run by a real shell."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from plankit import RECIPES, plan_of, profile
from recipe_toolkit.cluster import Container, Tool
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.draw import draw
from recipe_toolkit.plan.rehearsal import notice
from recipe_toolkit.plan.values import PackagePath, RunPath
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.run import logs
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.folder import write_run

RUNNER = RunPath("setup/run.sh")


def test_engines_alone_stand_behind_the_steps() -> None:
    plan = plan_of("podman")
    engines = [process for process in plan.processes if process.role == "serve"]
    assert len(engines) == len(plan.processes) == 2
    for process in engines:
        at = process.argv.index(RUNNER)
        assert process.argv[at - 2 : at] == ("sh", "/bin/sh")
        assert process.argv[at + 1 : at + 3] == ("vllm", "serve")
    assert not any(RUNNER in point.process.argv for point in plan.benchmarks)


def test_each_step_has_the_hash_of_its_file(tmp_path: Path) -> None:
    loaded, plan = load_recipe(RECIPES / "podman.yaml"), plan_of("podman")
    run = write_run(RunDir(tmp_path / "2026-01-02T03-04-05-x-abcd"), loaded.data, {"schema": 1}, plan)
    assert [step.name for step in plan.setup] == ["tokenizers", "warn"]
    for step in plan.setup:
        assert hashlib.sha256((run.root / step.path).read_bytes()).hexdigest() == step.sha256
    script = RECIPES / "patches" / "tokenizers.sh"
    assert (run.root / "setup" / "01-tokenizers.sh").read_bytes() == script.read_bytes()
    # Again from the lock, without the script.
    again = build_plan(load_recipe(run.recipe_lock).recipe, profile("podman"))
    assert again == plan


def test_a_rehearsal_skips_them_and_says_so() -> None:
    plan = plan_of("podman", rehearse=True)
    assert not any(RUNNER in process.argv for process in plan.processes)
    assert "the setup steps are skipped" in notice(plan)
    assert "setup: skipped in a rehearsal" in draw(plan)
    assert "setup" not in notice(plan_of("docker", rehearse=True))


@pytest.mark.parametrize("container", [Container(), Container("docker")])
def test_a_node_is_not_changed(container: Container) -> None:
    recipe = load_recipe(RECIPES / "podman.yaml", ["engine.image=null"]).recipe
    with pytest.raises(InputError) as refused:
        build_plan(recipe, replace(profile("podman"), container=container))
    (problem,) = refused.value.problems
    assert problem.field == "setup"
    assert "whose own environment the steps would change" in problem.message
    assert "--set setup=null" in str(problem.hint)
    build_plan(load_recipe(RECIPES / "podman.yaml", ["setup=null"]).recipe, profile("podman"))


def test_the_simulated_engine_in_an_image() -> None:
    site = replace(profile("plain"), container=Container("podman"), tools={"sim": Tool(image="small:1")})
    recipe = load_recipe(RECIPES / "sim-pd.yaml", ["setup=[{name: a, run: 'true'}]"]).recipe
    process = build_plan(recipe, site).processes[0]
    at = process.argv.index("small:1")
    assert process.argv[at + 3 : at + 9] == ("sh", "/bin/sh", RUNNER, "python3", "-m", "recipe_toolkit.sim")
    assert process.env["PYTHONPATH"] == PackagePath("..")


def folder(tmp_path: Path, *steps: tuple[str, str]) -> Path:
    """A run folder's ``setup``, as :func:`write_run` makes it; the runner's path."""
    sets = ", ".join(f"{{name: {name}, run: {json.dumps(text)}}}" for name, text in steps)
    loaded = load_recipe(RECIPES / "podman.yaml", [f"setup=[{sets}]"])
    plan = build_plan(loaded.recipe, profile("podman"))
    return write_run(RunDir(tmp_path / "2026-01-02T03-04-05-x-abcd"), loaded.data, {}, plan).setup / "run.sh"


def execute(runner: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", runner, *argv], capture_output=True, text=True, timeout=30, check=False)


def test_the_steps_run_in_order_and_the_program_is_what_it_was(tmp_path: Path) -> None:
    done = execute(folder(tmp_path, ("b", "echo first"), ("a", "echo second")), "printf", "%s|", "x y", "*", "")
    assert done.stdout == "setup: b\nfirst\nsetup: a\nsecond\nsetup: done\nx y|*||"
    assert done.returncode == 0


def test_a_step_ends_at_its_first_failure_and_names_itself(tmp_path: Path) -> None:
    runner = folder(tmp_path, ("fix-1.2", "(exit 7)\necho further"), ("later", "echo later"))
    done = execute(runner, "echo", "served")
    assert done.returncode == 7
    assert done.stdout == "setup: fix-1.2\nsetup: fix-1.2 failed with exit code 7\n"
    cause = "ImportError: torch\n" + done.stdout
    assert logs.cause(cause) == "setup: fix-1.2 failed with exit code 7"


def test_the_interpreter_of_a_script_is_its_own(tmp_path: Path) -> None:
    bash = "#!/usr/bin/env -S bash -u\nif [[ a == a ]]; then echo bash; fi"
    done = execute(folder(tmp_path, ("own", bash)), "true")
    assert "bash" in done.stdout.splitlines()
    missing = execute(folder(tmp_path / "second", ("own", "#!/nowhere/bash\n")), "true")
    assert missing.returncode == 127
    assert "setup: own failed with exit code 127" in missing.stdout


def test_steps_may_be_anybodys_and_need_not_be_executable(tmp_path: Path) -> None:
    runner = folder(tmp_path, ("a", "true"))
    for path in runner.parent.iterdir():
        path.chmod(0o444)
    assert execute(runner, "true").returncode == 0
