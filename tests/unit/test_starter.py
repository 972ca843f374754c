"""A first recipe and profile: the texts that answers make, and what is wrong with an answer."""

from __future__ import annotations

import itertools

import pytest

from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.document import parse_yaml
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.starter.draft import answer, faults
from recipe_toolkit.starter.questions import QUESTIONS, RUNTIMES, Site, presumed
from recipe_toolkit.starter.texts import profile_text, recipe_text, value
from recipe_toolkit.starter.values import numbers, role, short

SITE = Site(sbatch=True, partitions={"gpu": ("B300", 4), "cpu": None}, version="0.32.0")
BY_KEY = {question.key: question for question in QUESTIONS}


def files(tmp_path, answers):
    recipe, profile = tmp_path / "recipe.yaml", tmp_path / "profile.yaml"
    recipe.write_text(recipe_text(answers))
    profile.write_text(profile_text(answers))
    return load_recipe(recipe), load_profile(profile)


@pytest.mark.parametrize(
    ("engine", "shape", "scheduler", "runtime", "model", "partition"),
    [
        *itertools.product(
            ("vllm", "sim"),
            ("aggregated", "disaggregated"),
            ("slurm", "local"),
            ("none", "docker"),
            ("glm", "/models/glm", "hf:Org/Glm"),
            ("-", "gpu"),
        )
    ],
)
def test_whatever_is_answered_gives_files_that_load_and_plan(
    tmp_path, engine, shape, scheduler, runtime, model, partition
):
    said = {"engine": engine, "shape": shape, "profile": "site", "scheduler": scheduler, "model": model}
    if scheduler == "slurm":
        said["partition"] = None if partition == "-" else partition
    if engine == "vllm":
        said["runtime"] = runtime
    recipe, profile = files(tmp_path, presumed(said, SITE))
    # A model of the hub has no revision until somebody chooses one; a first try may leave GPUs of a node idle.
    assert {item.rule for item in recipe.warnings} <= {"model-without-revision", "gpus-idle"}
    assert profile.warnings == ()
    plan = build_plan(recipe.recipe, profile.cluster)
    assert plan.engine == engine
    assert profile.cluster.slurm.partition == said.get("partition")
    assert recipe.recipe.disaggregated == (shape == "disaggregated")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_whatever_runs_images_the_files_plan(tmp_path, runtime):
    said = {"profile": "site", "engine": "vllm", "scheduler": "slurm", "runtime": runtime, "model": "hf:Org/Glm"}
    recipe, profile = files(tmp_path, presumed(said, SITE))
    plan = build_plan(recipe.recipe, profile.cluster)
    assert profile.cluster.container.runtime == runtime
    assert bool(plan.images) == (runtime != "none")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aggregated", {"profile": None}),
        (
            "disaggregated",
            {
                "profile": "big",
                "partition": "gpu",
                "account": "my-account",
                "runtime": "docker",
                "model": "glm",
                "model_path": "/shared/models/glm",
                "shape": "disaggregated",
                "prefill": role("2:tp4"),
                "decode": role("1:dp8,ep"),
                "isl": 8192,
                "osl": 1024,
                "concurrency": [1, 8, 64],
            },
        ),
    ],
)
def test_texts_are_as_they_were_read(golden, name, said):
    answers = presumed(said, SITE)
    golden(f"starter/{name}.yaml", recipe_text(answers))
    if answers["profile"]:
        golden(f"starter/{name}.profile.yaml", profile_text(answers))


def test_what_the_comments_show_would_load_too(tmp_path):
    """Each commented field, taken in by itself, is valid."""
    answers = presumed({"profile": "site", "partition": "gpu", "shape": "disaggregated", "venv": "/v"}, SITE)
    for text, load in ((recipe_text(answers), load_recipe), (profile_text(answers), load_profile)):
        lines = text.splitlines()
        shown = [index for index, line in enumerate(lines) if line.lstrip().startswith("# ")]
        assert len(shown) > 3
        for index in shown:
            path = tmp_path / "one.yaml"
            taken = lines[index].replace("# ", "", 1)
            path.write_text("\n".join([*lines[:index], taken, *lines[index + 1 :]]) + "\n")
            load(path)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("2:tp4", {"instances": 2, "parallel": {"tp": 4}}),
        ("1:dp8,ep", {"instances": 1, "parallel": {"dp": 8, "ep": True}}),
        ("ep dp=2 tp=2", {"instances": 1, "parallel": {"tp": 2, "dp": 2, "ep": True}}),
        ("3 : tp1", {"instances": 3, "parallel": {}}),
        ("1:tp:4", {"instances": 1, "parallel": {"tp": 4}}),
    ],
)
def test_instances_and_sizes(text, data):
    assert role(text) == data


@pytest.mark.parametrize("text", ["", "tp", "0:tp1", "1:tp0", "1:xp4", "1:tp2,tp4", "x:tp4", "-1:tp4", "1:tp4;rm"])
def test_what_are_no_instances_and_sizes(text):
    with pytest.raises(ValueError, match=r"INSTANCES:SIZES|positive integer"):
        role(text)


def test_numbers_and_names():
    assert numbers("1, 8 64") == numbers("[1,8,64]") == [1, 8, 64]
    with pytest.raises(ValueError, match="'x' is not a positive integer"):
        numbers("1,x")
    assert [short(name) for name in ("hf:Org/A_b-3.1@main", "/m/Glm 5/", "hf:x/---")] == ["a_b-3.1", "glm-5", "model"]


@pytest.mark.parametrize(
    "data", ["a b", "it's", 'say "x"', "0.32", "yes", "null", "/a:b", "a: b", "#x", "-", "", "{x}", "ü", "a,b"]
)
def test_a_value_reads_as_itself_in_a_line_and_in_brackets(data):
    for text in (f"x: {value(data)}  # c", f"x: {{y: {value(data)}}}", f"x: {value([data])}"):
        read = parse_yaml(text, "x").data["x"]
        assert data in ([read] if isinstance(read, str) else list(read.values()) if isinstance(read, dict) else read)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("engine", "vlm", "'vlm' is not one of vllm, sim"),
        ("name", "a b", "name: 'a b' is not a name"),
        ("profile", "a/b", "name: 'a/b' is not a name"),
        ("profile", "local", "the package's own profile"),
        ("serve", "1:tp3", "roles.serve.parallel.tp: a replica of tp 3 x pp 1 = 3 GPUs does not divide"),
        ("engine_version", "new", "engine.version: 'new' is not a version"),
        ("gpus_per_node", "2000", "resources.gpus_per_node: 2000 is more than 1024"),
        ("concurrency", "8,8", "benchmarks.0.concurrency: 8 stands twice"),
        ("runs", "$NOWHERE/x", "runs: $NOWHERE is not set"),
    ],
)
def test_a_wrong_answer_is_told_at_its_question(key, text, said):
    before = {"profile": "site"} if key == "runs" else {"profile": None} if key != "profile" else {}
    with pytest.raises(ValueError) as caught:
        answer(BY_KEY[key], text, before, SITE, None)
    assert said in str(caught.value)


def test_a_presumption_that_does_not_fit_is_not_told_at_another_question():
    site = Site(version="0.32.0", partitions={})
    tight = {"profile": None, "gpus_per_node": 1, "shape": "disaggregated", "prefill": role("1:tp1")}
    assert answer(BY_KEY["isl"], "5000", tight, site, None) == 5000
    broken = {**tight, "gpus_per_node": 2, "decode": role("1:tp3")}
    assert faults(presumed(broken, site), None)
    assert answer(BY_KEY["isl"], "5000", broken, site, None) == 5000
