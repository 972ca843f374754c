"""A rehearsal is the recipe's own plan with another engine in it."""

from __future__ import annotations

import dataclasses
import difflib
import json
from importlib.resources import files

import jsonschema
import pytest

from plankit import CASES, RECIPES, bindings, plan_of, profile
from recipe_toolkit import vllm_args
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.draw import draw
from recipe_toolkit.plan.model import plan_from_json
from recipe_toolkit.plan.values import PackagePath, Program, Python
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.sim import options
from recipe_toolkit.sim.flags import layout, parse

LISTED = json.loads((files("recipe_toolkit") / "schemas" / "vllm" / "0.32.0.json").read_text("utf-8"))["options"]
HEAD = (Python(), "-m", "recipe_toolkit.sim")
REAL = [name for name in CASES if not name.startswith("sim-")]
SHAPES = ["pd-1p-tep4-17d-tp4", "pd-7p-dp4-2d-dp16"]


def words(process):
    """vLLM's words from ``serve`` on, whatever stands before."""
    return process.argv[process.argv.index("serve") :]


@pytest.mark.parametrize("name", REAL)
def test_only_the_heads_of_the_engines_differ(name):
    real, rehearsal = plan_of(name), plan_of(name, rehearse=True)
    parts = {key: getattr(real, key) for key in ("engine", "rehearsal", "processes", "benchmarks", "images", "check")}
    assert dataclasses.replace(rehearsal, **parts) == real
    assert rehearsal.check["device"] == "cpu"  # nothing is asked of GPUs, networks or weights
    assert not {"env", "lanes", "images", "model"} & set(rehearsal.check)
    assert (rehearsal.engine, rehearsal.rehearsal) == ("sim", True)
    for one, other in zip(real.processes, rehearsal.processes, strict=True):
        if one.role == "router":
            assert other == one
            continue
        outside = {"argv": one.argv, "env": one.env, "cleanup": one.cleanup, "inspect": one.inspect, "image": one.image}
        assert dataclasses.replace(other, **outside) == one
        assert other.cleanup == other.inspect == ()
        assert other.argv[:3] == HEAD
        said = words(other)
        assert said[: len(words(one))] == words(one)
        assert said[len(words(one)) :][:1] in ((), ("--sim",))
        env = dict(other.env)
        assert (env.pop("RECIPE_INSTANCE"), env.pop("RECIPE_RANK")) == (str(one.instance), str(one.rank))
        assert env == one.env


@pytest.mark.parametrize("name", ["docker", "pd-share-node", "dp16-internal"])
def test_what_differs(name, golden):
    """Clients and the router stay where the profile runs them; the tokenizer is the simulated engine's."""
    drawn = [draw(plan_of(name, rehearse=rehearse)).splitlines() for rehearse in (False, True)]
    changed = difflib.unified_diff(*drawn, "plan", "rehearsal", n=0, lineterm="")
    golden(f"plan/rehearsal/{name}.diff", "\n".join(changed) + "\n")


@pytest.mark.parametrize("name", REAL)
def test_every_command_is_one_that_the_simulated_engine_takes(name):
    plan = plan_of(name, rehearse=True)
    found = bindings(plan)
    for process in plan.processes:
        if process.argv[:3] != HEAD:
            continue
        bound = bind_process(process, found)
        flags = parse(bound.argv[3:])
        assert layout(flags).dp_ranks == process.dp_ranks
        tokens = int(options.parse(flags.sim, bound.env)["kv_cache_tokens"])
        assert 0 < flags.fitted(tokens)["max-model-len"] <= tokens


@pytest.mark.parametrize("name", [*SHAPES, "docker"])
def test_there_and_back(name):
    plan = plan_of(name, rehearse=True)
    data = json.loads(json.dumps(plan.to_json()))
    jsonschema.validate(data, json.loads((files("recipe_toolkit") / "schemas" / "plan.json").read_text("utf-8")))
    assert plan_from_json(data) == plan


@pytest.mark.parametrize("name", SHAPES)
def test_nodes_of_the_shapes(name):
    """As many as the published systems have, every GPU of them at work."""
    plan = plan_of(name, rehearse=True)
    assert len(plan.nodes) == {"pd-1p-tep4-17d-tp4": 18, "pd-7p-dp4-2d-dp16": 15}[name]
    assert {node.gpus for node in plan.nodes} == {4}


def test_names_that_the_profile_lacks_do_not_matter():
    recipe = load_recipe(RECIPES / "base.yaml", ["model.path=other", "model.tokenizer=another"]).recipe
    with pytest.raises(InputError):
        build_plan(recipe, profile("plain"))
    plan = build_plan(recipe, profile("plain"), rehearse=True)
    assert words(plan.processes[0])[1] == "other"
    argv = plan.benchmarks[0].process.argv
    assert argv[argv.index("--tokenizer") + 1] == PackagePath("sim/tokenizer")


@pytest.mark.parametrize(
    ("sets", "sim"),
    [
        (["engine.args.max-model-len=256K"], {}),
        (["engine.args.max-model-len=1M"], {"kv_cache_tokens": 2 * 2**20}),
        (["engine.args.max-model-len=auto", "benchmarks.0.isl=500000"], {"kv_cache_tokens": 1000256}),
        (["engine.args.max-model-len=1M", "engine.sim.kv_cache_tokens=5000000"], {"kv_cache_tokens": 5000000}),
        (["engine.sim.startup_s=0", "roles.serve.sim.tpot_base_ms=1"], {"startup_s": 0, "tpot_base_ms": 1}),
    ],
)  # fmt: skip
def test_how_the_simulated_engine_is_told_to_behave(sets, sim):
    plan = plan_of("base", *sets, rehearse=True)
    argv = bind_process(plan.processes[0], bindings(plan)).argv
    assert json.loads(parse(argv[3:]).sim) == sim


def test_what_is_meant_for_vllms_own_python_is_left_out():
    env = (
        plan_of("base", "engine.env={PYTHONPATH: /opt/plugins, LD_PRELOAD: /x.so, A: b}", rehearse=True)
        .processes[0]
        .env
    )
    assert env["A"] == "b"
    assert not {"PYTHONPATH", "LD_PRELOAD"} & set(env)


@pytest.mark.parametrize("name", sorted(LISTED.keys() - vllm_args.RESERVED.keys() - vllm_args.PARALLEL.keys()))
def test_no_flag_of_a_recipe_is_refused(name):
    """Every flag that a recipe may give vLLM, with a value of its kind."""
    option = LISTED[name]
    if option["kind"] in ("bool", "flag"):
        values = [True, False] if option["kind"] == "bool" else [True]
    elif option["kind"] == "json":
        values = [{"a": 1}]
    else:
        kinds = {
            "int": [3, -1],
            "float": [0.5],
            "human_int": ["8k", "1.5M", 3],
            "human_int_or_auto": ["auto", -1, "1M"],
        }
        values = option.get("choices") or kinds.get(option.get("type"), ["text"])
    for value in values:
        rendered = vllm_args.render({name: value}, "0.32.0")
        flags = parse(["serve", "model", *rendered, "--port", "9"])
        assert (flags.model, flags["port"], flags["data-parallel-size"]) == ("model", 9, 1)
        assert flags.fitted(4096)["max-model-len"] > 0


def test_vllms_own_client_stays_where_vllm_is():
    client = "benchmarks=[{client: vllm-bench, isl: 8, osl: 8, concurrency: [1], requests: 1}]"
    plan = plan_of("docker", client, rehearse=True)
    assert plan.benchmarks[0].process.argv[0] == Program("docker")
    assert "vllm/vllm-openai@sha256:0000" in plan.benchmarks[0].process.argv
    assert all("vllm/vllm-openai@sha256:0000" not in process.argv for process in plan.processes)
