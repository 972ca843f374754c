"""What the planner refuses, and single decisions of it."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest

from plankit import RECIPES, ROOT, bindings, plan_of, profile
from recipe_toolkit.cluster import Container, Slurm, Tool
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.flags import number, render
from recipe_toolkit.plan.model import Image, SetupStep, plan_from_json
from recipe_toolkit.plan.topology import place
from recipe_toolkit.plan.values import (
    Address,
    Host,
    ImagePart,
    JobId,
    Join,
    Json,
    NodeFolder,
    PackagePath,
    Port,
    Program,
    Python,
    RunId,
    RunPath,
    User,
    WhereThere,
    decode,
    encode,
    resolve,
    show,
)
from recipe_toolkit.recipe import Parallel, Resources, Role
from recipe_toolkit.recipe_loader import load_recipe

PLAIN = profile("plain")
SCHEMA = "slurm/recipe_toolkit/schemas/plan.json"


def recipe(name="tp2-one-node", *sets):
    return load_recipe(RECIPES / f"{name}.yaml", sets).recipe


def refused(made, cluster=PLAIN):
    with pytest.raises(InputError) as caught:
        build_plan(made, cluster)
    (problem,) = caught.value.problems
    return problem


def test_more_nodes_than_the_profile_has():
    cluster = dataclasses.replace(PLAIN, max_nodes=2)
    problem = refused(recipe("pd-4p-dp4-1d-dp8"), cluster)
    assert (problem.field, problem.message) == ("roles", "needs 3 nodes, and the profile plain has at most 2")


def test_longer_than_the_profile_allows():
    cluster = dataclasses.replace(PLAIN, slurm=Slurm(max_time_s=1800))
    assert refused(recipe(), cluster).field == "time_limit"


def test_model_that_the_profile_lacks():
    problem = refused(recipe("tp2-one-node", "model.path=moee"))
    assert (problem.field, problem.hint) == ("model.path", "did you mean `moe`?")
    assert "tokenizer" in refused(recipe("tp2-one-node", "model.tokenizer=other")).field


def test_simulated_engine_needs_no_model():
    plan = plan_of("sim-pd")
    assert plan.processes[0].argv[3:5] == ("serve", "anything")
    tokenizer = plan.benchmarks[0].process.argv
    assert tokenizer[tokenizer.index("--tokenizer") + 1] == PackagePath("sim/tokenizer")


def test_image_without_a_runtime():
    cluster = dataclasses.replace(PLAIN, tools={"vllm": Tool(image="x")})
    problem = refused(recipe(), cluster)
    assert (problem.file, problem.field) == ("profile plain", "tools.vllm.image")


def test_image_of_the_recipe_is_used_where_there_is_a_runtime():
    made = recipe("tp2-one-node", "engine.image=mine@sha256:1")
    assert "mine@sha256:1" not in build_plan(made, PLAIN).processes[0].argv
    inside = dataclasses.replace(PLAIN, container=Container("docker"), tools={"vllm": Tool(image="the-site's")})
    assert "mine@sha256:1" in build_plan(made, inside).processes[0].argv


@pytest.mark.parametrize(
    ("sets", "field"),
    [
        ('router={args: {port: 1}, kind: vllm-router}', "router.args.port"),
        ('router={args: {prefill_policy: random, worker_urls: x}}', "router.args.worker_urls"),
        ("benchmarks=[{client: aiperf, isl: 1, osl: 1, concurrency: [1], requests: 1, args: {random-seed: 3}}]",
         "benchmarks.0.args.random-seed"),
    ],
)  # fmt: skip
def test_flags_that_the_plan_sets(sets, field):
    assert refused(recipe("packed-tp2", sets)).field == field


def test_several_servers_and_no_router():
    made = dataclasses.replace(recipe("packed-tp2"), router=dataclasses.replace(recipe().router, kind="none"))
    assert refused(made).field == "router.kind"


@pytest.mark.parametrize(
    ("parallel", "field"),
    [(Parallel(dp=3), "dp"), (Parallel(tp=3), "tp"), (Parallel(tp=3, pp=1, dp=2), "tp"), (Parallel(tp=1, pp=3), "pp")],
)
def test_parts_that_would_differ(parallel, field):
    with pytest.raises(InputError) as caught:
        place([Role("serve", 1, parallel)], Resources("G", 2))
    assert caught.value.problems[0].field == f"roles.serve.parallel.{field}"


def test_order_of_environments():
    """The profile, the engine, the role, and last the toolkit's own."""
    made = recipe("pd-share-node", "engine.env={A: engine, B: engine, C: engine}", "roles.decode.env={C: role}")
    cluster = dataclasses.replace(PLAIN, env={"A": "site", "B": "site", "D": "site", "VLLM_HOST_IP": "1.2.3.4"})
    env = build_plan(made, cluster).process("decode-0").env
    assert {key: env[key] for key in "ABCD"} == {"A": "engine", "B": "engine", "C": "role", "D": "site"}
    assert env["VLLM_HOST_IP"] == Address(0)


def test_interface_of_the_profile_stands():
    made = recipe("tp2-two-nodes")
    env = build_plan(made, dataclasses.replace(PLAIN, env={"NCCL_SOCKET_IFNAME": "ib0,ib1"})).process("serve-0.1").env
    assert env["NCCL_SOCKET_IFNAME"] == "ib0,ib1"
    assert show(env["GLOO_SOCKET_IFNAME"]) == "<interface of node 1>"
    assert "GLOO_SOCKET_IFNAME" not in build_plan(recipe(), PLAIN).process("serve-0").env


def test_a_folder_of_targets_stands_in_the_plan_where_the_profile_names_one():
    told = build_plan(recipe(), dataclasses.replace(PLAIN, metrics_targets="/shared/targets"))
    assert told.to_json()["metrics_targets"] == "/shared/targets"
    assert "metrics_targets" not in build_plan(recipe(), PLAIN).to_json()


def test_device_ids_where_a_version_knows_them_and_peers_are_seen():
    argv = plan_of("pd-share-node").process("decode-0").argv
    assert argv[argv.index("--device-ids") + 1] == "0"
    assert "--device-ids" not in plan_of("pd-4p-dp4-1d-dp8").process("decode-0").argv


def test_flags_of_a_role_replace_those_of_the_engine():
    argv = plan_of("pd-4p-dp4-1d-dp8").process("prefill-0").argv
    assert argv.count("--compilation-config") == 1
    assert argv[argv.index("--compilation-config") + 1] == '{"cudagraph_mode":"NONE"}'
    other = plan_of("tp2-one-node", "engine.args={device-memory-utilization: 0.8}", "roles.serve.args={gpu-memory-utilization: 0.5}")  # fmt: skip  # noqa: E501
    words = [word for word in other.processes[0].argv if isinstance(word, str) and "memory" in word]
    assert words == ["--gpu-memory-utilization"]


def test_proof():
    proof = plan_of("pd-share-node", "engine.args.block-size=128").proof
    assert (proof.kind, proof.two_step) == ("kv_transfer", True)
    assert proof.prompt_words > 128
    files = plan_of("example-connector").proof
    assert (files.kind, files.two_step) == ("kv_transfer", False)
    assert files.prompt_words > 128, "vLLM's block on CPU"
    assert plan_of("tp2-one-node").proof.kind == "generate"


def test_offline_hub_is_taken_from_aiperf_for_local_tokenizers_alone():
    local = plan_of("tp2-one-node").benchmarks[0].process
    assert "HF_HUB_OFFLINE" in local.unset
    assert "HF_HUB_OFFLINE" not in local.env
    hub = plan_of("clients").benchmarks[0].process
    assert hub.unset == ()
    assert hub.env["HF_HUB_OFFLINE"] == "1"


def test_no_value_of_a_variable_in_a_container_command():
    plan = plan_of("docker", "engine.env={SECRETIVE: hush}")
    argv = [show(word) for word in plan.process("prefill-0").argv]
    assert argv[argv.index("SECRETIVE") - 1] == "--env"
    assert argv[argv.index("HF_TOKEN") - 1] == "--env"
    assert not any("hush" in word for word in argv)


def test_a_profile_s_own_limits_stand_in_the_place_of_ours():
    limits = Container("podman", args=("--ulimit", "nofile=1024:4096"))
    inside = dataclasses.replace(PLAIN, container=limits, tools={"vllm": Tool(image="the-site's")})
    process = build_plan(load_recipe(RECIPES / "base.yaml").recipe, inside).processes[0]
    assert [word for word in process.argv if word == "--ulimit"] == ["--ulimit"]
    assert "host" not in process.argv[process.argv.index("--ulimit") :]


def test_cleanup_removes_the_container_by_its_name():
    plan = plan_of("docker")
    process = plan.process("router")
    bound = [resolve(word, bindings(plan), 0) for word in process.cleanup]
    assert bound == ["/usr/bin/docker", "rm", "--force", "--volumes", "2026-01-02T03-04-05-test-abcd-router"]
    argv = bind_process(process, bindings(plan)).argv
    assert argv[argv.index("--name") + 1] == bound[-1]
    assert plan_of("tp2-one-node").processes[0].cleanup == ()


@pytest.mark.parametrize(
    ("value", "text"), [(1e-05, "0.00001"), (2.0, "2"), (2.5, "2.5"), (10, "10"), (1e21, "1" + "0" * 21)]
)
def test_number(value, text):
    assert number(value) == text


def test_flags_of_other_programs():
    args = {"a_b": True, "no": False, "list": [1, "x"], "map": {"k": [1]}, "rate": 0.5}
    assert render(args) == ["--a-b", "--list", "1", "x", "--map", '{"k":[1]}', "--rate", "0.5"]


REFERENCES = [
    Address(1),
    Port("a", "http", -3),
    RunPath("x/y"),
    RunId(),
    PackagePath("sim/tokenizer"),
    Python(),
    Program("vllm"),
    Host(2),
    JobId(),
    User(),
    NodeFolder(),
    ImagePart(),
    WhereThere("/dev/infiniband", ("--device", RunPath("x"))),
    Join((RunPath(""), ":", Address(0))),
    Json({"a": [Port("a", "http"), {"b": RunPath("kv")}], "n": 1, "t": True}),
]


@pytest.mark.parametrize("value", REFERENCES, ids=lambda value: type(value).__name__)
def test_reference_there_and_back(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value
    assert "<" in show(value) or isinstance(value, Program)


def test_references_of_the_own_node():
    plan = plan_of("sim-pd")
    found = bindings(plan)
    assert resolve(RunId(), found, 0) == "2026-01-02T03-04-05-test-abcd"
    assert resolve(RunPath(""), found, 0) == "/runs/2026-01-02T03-04-05-test-abcd"
    assert resolve(PackagePath("sim/tokenizer"), found, 1) == "/opt/toolkit/recipe_toolkit/sim/tokenizer"
    document = Json({"port": Port("prefill-0", "http"), "where": RunPath("kv")})
    assert json.loads(resolve(document, found, 0)) == {"port": 15000, "where": "/runs/2026-01-02T03-04-05-test-abcd/kv"}
    nodes = tuple(dataclasses.replace(node, package="") for node in found.nodes)
    with pytest.raises(KeyError, match="where the package is on node 0"):
        resolve(PackagePath("x"), dataclasses.replace(found, nodes=nodes), 0)


def test_references_of_the_job_and_its_nodes():
    found = bindings(plan_of("pd-4p-dp4-1d-dp8"))
    assert [resolve(item, found, 0) for item in (Host(2), JobId(), User())] == ["host2", "7", "1000:100"]
    assert resolve(ImagePart(), dataclasses.replace(found, image_part="/images/x.sqsh.part"), 0).endswith(".part")
    with pytest.raises(KeyError, match="the file that an image is fetched into"):
        resolve(ImagePart(), found, 0)
    nodes = (dataclasses.replace(found.nodes[0], host="slurm-1"), *found.nodes[1:])
    assert resolve(Host(0), dataclasses.replace(found, nodes=nodes), 1) == "slurm-1"


def test_images_and_setup_there_and_back():
    image = Image("a@sha256:1", (0, 2), Join((RunPath(""), "/x.sif")), ("true",), ("get", ImagePart()), ("id",), "do")
    plan = dataclasses.replace(plan_of("base"), images=(image,), setup=(SetupStep("a.sh", "00", "setup/01-a.sh"),))
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan
    jsonschema.validate(plan.to_json(), json.loads((ROOT / SCHEMA).read_text(encoding="utf-8")))


def test_plan_of_another_schema():
    data = plan_of("base").to_json() | {"schema": 99}
    with pytest.raises(ValueError, match="plan schema 99"):
        plan_from_json(data)
