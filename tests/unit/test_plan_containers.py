"""Each container runtime's commands: whole, and what holds for all of them."""

from __future__ import annotations

import dataclasses
import json
import shlex
from importlib.resources import files

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plankit import RECIPES, bindings
from recipe_toolkit.cluster import Cluster, Container, Tool
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.asking import asking
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.container.enroot import uri
from recipe_toolkit.plan.container.store import pinned
from recipe_toolkit.plan.model import Plan, plan_from_json
from recipe_toolkit.plan.values import resolve_words
from recipe_toolkit.recipe_loader import load_recipe

SCHEMA = json.loads((files("recipe_toolkit") / "schemas" / "plan.json").read_text(encoding="utf-8"))
RUNTIMES = ["docker", "podman", "enroot", "apptainer", "pyxis"]
IMAGE = "vllm/vllm-openai:v0.32.0@sha256:0000"
SETS = (
    f"engine.image={IMAGE}",
    "benchmarks=[{client: aiperf, isl: 64, osl: 8, concurrency: [2], requests: 4},"
    " {client: command, name: e, command: [lm-eval]}]",
)
CPU = ("resources={gpu: CPU, gpus_per_node: 1, device: cpu}", "roles={serve: {instances: 1, parallel: {tp: 1}}}")


def site(runtime: str, **fields: object) -> Cluster:
    container = Container(
        runtime,
        mounts=("/shared/cache:/root/.cache", "/data/x:/data:ro"),
        images={"mirror/aiperf:1": "/images/aiperf.sif" if runtime == "apptainer" else "/images/aiperf.sqsh"}
        if runtime in ("enroot", "apptainer", "pyxis")
        else {"mirror/aiperf:1": "registry.site:5000/aiperf:1"},
        cache="/shared/images" if runtime in ("enroot", "apptainer", "pyxis") else None,
    )
    given = {
        "name": "any",
        "scheduler": "slurm",
        "runs": "/runs",
        "models": {"moe": "/shared/models/moe"},
        "tools": {
            "vllm-router": Tool(image="router:1"),
            "aiperf": Tool(image="mirror/aiperf:1"),
            "lm-eval": Tool(image="evals:1"),
        },
        "container": container,
        "env": {"UCX_TLS": "site's own"},
        "secrets": ("HF_TOKEN",),
    }
    return Cluster(**{**given, **fields})  # type: ignore[arg-type]


def plan(runtime: str, *sets: str, recipe: str = "pd-over-nodes", **fields: object) -> Plan:
    return build_plan(load_recipe(RECIPES / f"{recipe}.yaml", [*SETS, *sets]).recipe, site(runtime, **fields))


def everything(what: Plan) -> list:
    return [*what.processes, *(point.process for point in what.benchmarks)]


def lines(what: Plan) -> str:
    found, text = bindings(what), []
    for process in everything(what):
        bound = bind_process(process, found)
        text += [f"{bound.name} on node {process.node} in {process.image}"]
        text += [f"  {key}={value}" for key, value in bound.env.items()]
        text += [f"  {word}" for word in bound.argv]
        text += [f"  pids: {shlex.join(bound.inspect)}"] if bound.inspect else []
        text += [f"  afterwards: {shlex.join(bound.cleanup)}"] if bound.cleanup else []
    bound_image = dataclasses.replace(found, image_part="<part>")
    for image in what.images:
        text += [f"{image.reference} on nodes {list(image.nodes)}, file {image.file}"]
        for kind in ("present", "fetch", "identify"):
            words = resolve_words(getattr(image, kind), bound_image, 0)
            text += [f"  {kind}: {shlex.join(words)}"] if words else []
        text += [f"  else {image.remedy}"]
    return "\n".join(text) + "\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("shape", ["gpu", "cpu"])
def test_whole_commands(runtime, shape, golden):
    """Prefill and decode over two nodes each, the first of which alone has RDMA; and one engine on CPU."""
    made = plan(runtime) if shape == "gpu" else plan(runtime, *CPU, recipe="base")
    jsonschema.validate(json.loads(json.dumps(made.to_json())), SCHEMA)
    assert plan_from_json(json.loads(json.dumps(made.to_json()))) == made
    golden(f"plan/containers/{runtime}-{shape}.txt", lines(made))


OF_HOOKS = {"ENROOT_MOUNT_HOME", "ENROOT_LOGIN_SHELL", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
VARIABLES = st.dictionaries(
    st.from_regex(r"X_[A-Z0-9_]{1,8}", fullmatch=True),
    # No value that a command could hold for another reason.
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(lambda text: f"«{text}»"),
    max_size=4,
)


@pytest.mark.parametrize("runtime", RUNTIMES)
@settings(max_examples=20, deadline=None)
@given(of_site=VARIABLES, of_engine=VARIABLES, of_role=VARIABLES, of_client=VARIABLES)
def test_no_value_of_a_variable_in_a_command(runtime, of_site, of_engine, of_role, of_client):
    """Whoever says it; and each is handed on by its name."""
    recipe = load_recipe(RECIPES / "pd-over-nodes.yaml", SETS).recipe
    recipe = dataclasses.replace(
        recipe,
        engine=dataclasses.replace(recipe.engine, env=of_engine),
        roles=tuple(dataclasses.replace(role, env=of_role) for role in recipe.roles),
        benchmarks=tuple(dataclasses.replace(item, env=of_client) for item in recipe.benchmarks),
    )
    made = build_plan(recipe, site(runtime, env=of_site))
    found = bindings(made)
    for process in everything(made):
        bound = bind_process(process, found)
        assert not any("«" in word for word in [*bound.argv, *bound.cleanup, *bound.inspect])
        names = ",".join(bound.argv).replace("=", ",").split(",")
        assert {*process.env, *process.secrets} - OF_HOOKS <= set(names)
        assert {*of_site, *process.secrets} <= {*process.env, *process.secrets}
    assert {key: made.processes[0].env[key] for key in of_role} == of_role


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_arguments_of_a_site_come_after_ours(runtime):
    own = Container(runtime, args=("--own", "x"), cache="/c" if runtime not in ("docker", "podman") else None)
    argv = bind_process((made := plan(runtime, container=own)).processes[0], bindings(made)).argv
    at = argv.index("--own")
    assert argv[at + 1] == "x"
    ours = [word for word in argv[at + 2 : argv.index("vllm")] if word.startswith("--") and word != "--entrypoint"]
    assert ours == []


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_global_arguments_come_before_every_command(runtime):
    made = plan(
        runtime, container=Container(runtime, global_args=("--debug",), cache="/c" if runtime == "apptainer" else None)
    )
    found = dataclasses.replace(bindings(made), image_part="x")
    commands = [bind_process(process, found).argv for process in everything(made)]
    commands += [resolve_words(image.fetch, found, 0) for image in made.images]
    for command in commands:
        assert command[command.index(f"/usr/bin/{runtime}") + 1] == "--debug"


def test_rdma_is_asked_for_where_a_node_has_it():
    """docker and podman refuse to start with a device that is not there."""
    made = plan("docker")
    found = bindings(made)
    with_device = {process.node for process in made.processes if "/dev/infiniband" in bind_process(process, found).argv}
    assert with_device == {0}
    assert any(process.node > 0 and "IPC_LOCK" in process.argv for process in made.processes)


@pytest.mark.parametrize("runtime", ["enroot", "apptainer", "pyxis"])
def test_a_reference_needs_a_file(runtime):
    with pytest.raises(InputError) as caught:
        plan(runtime, container=Container(runtime))
    (problem,) = caught.value.problems
    assert (problem.file, problem.field) == ("recipe", "engine.image")
    assert f"{runtime} starts from a file, and the profile has none for {IMAGE}" in problem.message
    assert "cache: DIR" in problem.hint


def test_a_file_is_no_reference():
    with pytest.raises(InputError, match="is a file, and docker takes the names of images"):
        plan("docker", container=Container("docker", images={IMAGE: "/images/x.sqsh"}))


def test_a_model_that_cannot_be_mounted():
    with pytest.raises(InputError, match="holds a space, and enroot cannot mount that"):
        plan("enroot", 'model.path="/models/my moe"')


def test_setup_steps_are_root_of_the_container():
    step = 'setup=[{name: fix, run: "true"}]'
    for runtime, option in (("docker", "--user"), ("apptainer", "--fakeroot")):
        without, prepared = plan(runtime), plan(runtime, step)
        assert (option in without.processes[0].argv) != (option in prepared.processes[0].argv)
        client = prepared.benchmarks[0].process.argv
        assert (option in client) == (runtime == "docker")


def test_a_user_of_the_site():
    """As with a rootless daemon, or an image that keeps its Python in root's home."""
    argv = plan("docker", container=Container("docker", args=("--user", "0:0"))).processes[0].argv
    assert (argv.count("--user"), "--tmpfs" in argv, "HOME=/root" in argv) == (1, False, True)


def test_a_home_of_the_site():
    argv = plan("docker", env={"HOME": "/data/home"}).processes[0].argv
    assert "HOME=/root" not in argv
    assert argv[argv.index("HOME") - 1] == "--env"


@pytest.mark.parametrize(
    ("mounts", "folders"),
    [
        ((), ["/root"]),
        (("/x:/root",), []),
        (("/x:/root/.cache", "/y:/rooted/a/b"), ["/root"]),
        (("/x:/root/.cache/a/b/", "/y:/root/.cache/c"), ["/root", "/root/.cache", "/root/.cache/a"]),
        (("/x:/root/.cache", "/y:/root/.cache/a/b"), ["/root", "/root/.cache/a"]),
    ],
)
def test_folders_of_a_home_that_its_user_can_write_to(mounts, folders):
    """Docker makes the folders between for root."""
    argv = plan("docker", container=Container("docker", mounts=mounts)).processes[0].argv
    found = [argv[at + 1] for at, word in enumerate(argv) if word == "--tmpfs"]
    assert found == [f"{folder}:exec,mode=1777" for folder in folders]


@pytest.mark.parametrize(
    ("reference", "plain", "source"),
    [
        ("a", "a", "docker://a"),
        ("a/b:1", "a/b:1", "docker://a/b:1"),
        ("a/b:1@sha256:0", "a/b@sha256:0", "docker://a/b@sha256:0"),
        ("nvcr.io/nvidia/vllm:1", "nvcr.io/nvidia/vllm:1", "docker://nvcr.io#nvidia/vllm:1"),
        ("localhost:5000/x@sha256:0", "localhost:5000/x@sha256:0", "docker://localhost:5000#x@sha256:0"),
        ("localhost/x:1", "localhost/x:1", "docker://localhost#x:1"),
    ],
)
def test_references(reference, plain, source):
    assert pinned(reference) == plain
    assert uri(reference) == source


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_image_is_asked_for_its_flags_as_its_engines_are_run(runtime: str) -> None:
    recipe = load_recipe(RECIPES / "pd-over-nodes.yaml", [*SETS, "engine.env.VLLM_X=its value"]).recipe
    cluster = site(runtime)
    asked = asking(recipe, build_plan(recipe, cluster), cluster)
    head = " ".join(asked["head"])
    assert set(asked["commands"]) == {"prefill", "decode"}
    assert all(words[0] == "serve" for commands in asked["commands"].values() for words in commands)
    assert "its value" not in head
    assert "its value" in asked["env"].values()
    assert "/shared/cache" in head  # a site may keep a vLLM of its own there
    for none in ("/runs", "pull " if runtime != "docker" else "fetch", "/shared/models"):
        assert none not in head
    first, last = {
        "docker": (
            "docker run --rm --pull=never --name {name} --network none --gpus all ",
            "vllm vllm/vllm-openai@sha256:0000",
        ),
        "podman": ("podman run --rm --pull=never --name {name} --network none ", "vllm vllm/vllm-openai@sha256:0000"),
        "enroot": ("enroot start --root --rw --rc {rc} ", ".sqsh vllm"),
        "pyxis": ("enroot start --root --rw --rc {rc} ", ".sqsh vllm"),
        "apptainer": ("apptainer exec --cleanenv --no-eval --no-home --pwd / --nv ", ".sif vllm"),
    }[runtime]
    assert head.startswith(first)
    assert head.endswith(last)
    assert bool(asked["remove"]) == (runtime in ("docker", "podman"))
