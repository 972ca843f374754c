"""``recipe new``: by options in a script, and by a person at a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.recipe_loader import load_recipe
from terminal import Terminal

RECIPE = Path(sys.executable).with_name("recipe")
OPTIONS = (
    "--engine",
    "vllm",
    "--engine-version",
    "0.32.0",
    "--gpu",
    "B300",
    "--gpus-per-node",
    "8",
    "--client",
    "aiperf",
)
LOADS = ("--isl", "8192", "--osl", "1024", "--concurrency", "1,8,64", "--name", "glm-2p1d")


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch, tmp_path):
    """No Slurm, no environment, no home with profiles."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VIRTUAL_ENV", "RECIPE_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)


def test_options_alone_give_a_recipe_without_a_terminal(recipe):
    words = (*OPTIONS, *LOADS, "--profile", "-", "--model", "glm", "--prefill", "2:tp4", "--decode", "1:dp8,ep")
    done = recipe("new", "mine/glm.yaml", *words, "--shape", "disaggregated")
    assert (done.returncode, done.stdout) == (0, "mine/glm.yaml\n"), done.stderr
    assert "recipe validate mine/glm.yaml\n" in done.stderr
    made = load_recipe(recipe.folder / "mine" / "glm.yaml").recipe
    prefill, decode = made.roles
    assert (made.name, made.model.path, prefill.instances, prefill.parallel.tp) == ("glm-2p1d", "glm", 2, 4)
    assert (decode.parallel.dp, decode.parallel.ep, made.benchmarks[0].concurrency) == (8, True, (1, 8, 64))
    assert recipe("validate", "mine/glm.yaml").returncode == 0
    text = (recipe.folder / "mine" / "glm.yaml").read_text()
    head = text.splitlines()[0]
    assert head == "# yaml-language-server: $schema=.recipe/recipe.schema.json"
    assert (recipe.folder / "mine" / head.partition("=")[2]).is_file()


def test_a_recipe_and_its_profile_are_found_by_name(recipe):
    words = ("--profile", "big", "--scheduler", "slurm", "--partition", "gpu", "--account", "me", "--runtime", "docker")
    done = recipe("new", "--yes", *words, "--image", "my/vllm:1", "--model", "glm", "--model-path", "/m/glm")
    assert done.stdout.split() == ["recipes/glm-h200-agg.yaml", "recipes/clusters/big.yaml"], done.stderr
    cluster = load_profile(recipe.folder / "recipes" / "clusters" / "big.yaml").cluster
    assert (cluster.slurm.partition, cluster.slurm.account, cluster.container.runtime) == ("gpu", "me", "docker")
    assert (cluster.tools["vllm"].image, cluster.models) == ("my/vllm:1", {"glm": "/m/glm"})
    commands = [line.split() for line in done.stderr.splitlines() if line.startswith("  recipe ")]
    assert [words[1] for words in commands] == ["validate", "plan", "submit"]
    for words in commands[:2]:
        assert recipe(*words[1:]).returncode == 0, words
    for path in done.stdout.split():
        schema = (recipe.folder / path).read_text().splitlines()[0].partition("=")[2]
        assert (recipe.folder / path).parent.joinpath(schema).is_file()


def test_without_a_terminal_every_missing_option_is_named_and_nothing_is_written(recipe):
    done = recipe("new", "x.yaml", *OPTIONS, "--profile", "-")
    assert done.returncode == 2
    assert (
        "no terminal to ask on; missing: --model, --shape, --serve, --isl, --osl, --concurrency, --name" in done.stderr
    )
    done = recipe("new", "--yes", "--profile", "site", "--model", "glm")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "Error: nothing can be presumed for --model-path")
    assert list(recipe.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--serve", "1:tp3"), "Invalid value for --serve: roles.serve.parallel.tp: a replica of tp 3 x pp 1 = 3 GPUs"),
        (("--isl", "0"), "Invalid value for --isl: '0' is not a positive integer"),
        (("--engine", "vlm"), "Invalid value for --engine: 'vlm' is not one of vllm, sim"),
        (("--serve", "1:tp1", "--decode", "1:tp1"), "--serve means nothing beside the other answers"),
        (("--partition", "gpu"), "--partition means nothing beside the other answers"),
        (("-c", "local", "--profile", "x"), "give one of them"),
        (
            ("-c", "local", "--model", "glm"),
            "Invalid value for --model: model.path: 'glm' is no model of the profile local",
        ),
        (("--name", "a\x1b[2Jb"), "Invalid value for --name:"),
        (("--model", ""), "Invalid value for --model: model.path: is empty"),
    ],
)
def test_a_wrong_option_is_named(recipe, words, said):
    done = recipe("new", "x.yaml", "--yes", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(recipe.folder.iterdir()) == []


def test_nothing_is_overwritten_unless_forced(recipe):
    path = recipe.folder / "x.yaml"
    path.write_text("mine\n")
    done = recipe("new", "x.yaml", "--yes")
    assert (done.returncode, path.read_text()) == (1, "mine\n")
    assert done.stderr == "Error: x.yaml: is there already\nhint: name another file, or replace it with --force\n"
    assert recipe("new", "x.yaml", "--yes", "--force").returncode == 0
    assert load_recipe(path).recipe.engine.kind == "vllm"
    (recipe.folder / "recipes" / "clusters").mkdir(parents=True)
    profile = recipe.folder / "recipes" / "clusters" / "site.yaml"
    profile.write_text("mine\n")
    done = recipe("new", "y.yaml", "--yes", "--profile", "site", "--model", "hf:a/b")
    assert (done.returncode, profile.read_text()) == (1, "mine\n")
    assert not (recipe.folder / "y.yaml").exists()


def test_a_file_that_cannot_be_written_is_told(recipe):
    (recipe.folder / "file").write_text("")
    done = recipe("new", "file/x.yaml", "--yes")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_the_models_of_the_profile_that_is_used_are_presumed(recipe):
    site = "schema: 1\nname: site\nscheduler: slurm\nruns: /runs\nmodels: {llama: /m/llama}\n"
    (recipe.folder / "site.yaml").write_text(site)
    done = recipe("new", "x.yaml", "--yes", "-c", "./site.yaml")
    assert done.returncode == 0, done.stderr
    assert load_recipe(recipe.folder / "x.yaml").recipe.model.path == "llama"
    assert "recipe plan x.yaml -c ./site.yaml\n" in done.stderr
    done = recipe("new", "y.yaml", "--yes", RECIPE_CLUSTER="./site.yaml")
    assert load_recipe(recipe.folder / "y.yaml").recipe.model.path == "llama", done.stderr
    done = recipe("new", "z.yaml", "--yes", "--profile", "-", RECIPE_CLUSTER="./site.yaml")
    assert load_recipe(recipe.folder / "z.yaml").recipe.model.path == "hf:Qwen/Qwen3-0.6B", done.stderr


def test_slurm_says_which_partitions_and_gpus_there_are(recipe, fake_slurm, monkeypatch):
    monkeypatch.setenv("PATH", f"{fake_slurm.bin}:/bin:/usr/bin")
    fake_slurm.says("sinfo", "cpu|(null)\nbig*|gpu:gb300:4(S:0-1)\n")
    done = recipe("new", "--yes")
    assert done.stdout.split() == ["recipes/qwen3-0.6b-gb300-agg.yaml", "recipes/clusters/mysite.yaml"], done.stderr
    made = load_recipe(recipe.folder / "recipes" / "qwen3-0.6b-gb300-agg.yaml").recipe
    assert (made.resources.gpu, made.resources.gpus_per_node) == ("GB300", 4)
    assert load_profile(recipe.folder / "recipes" / "clusters" / "mysite.yaml").cluster.slurm.partition == "big"


def test_an_active_environment_with_vllm_is_taken(recipe, monkeypatch, tmp_path):
    for name, wanted in (("empty", None), ("full", "full")):
        venv = tmp_path / name
        (venv / "bin").mkdir(parents=True)
        if wanted:
            (venv / "bin" / "vllm").touch()
        monkeypatch.setenv("VIRTUAL_ENV", str(venv))
        assert recipe("new", "--yes", "--force", "--profile", "site").returncode == 0
        tool = load_profile(recipe.folder / "recipes" / "clusters" / "site.yaml").cluster.tools.get("vllm")
        assert (tool and tool.venv) == (wanted and str(venv))


# --- at a terminal


@pytest.fixture
def dialogue(recipe):
    open_terminals = []

    def start(*words):
        env = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
        terminal = Terminal([str(RECIPE), "new", *words], cwd=recipe.folder, env=env)
        open_terminals.append(terminal)
        return terminal

    yield start
    for terminal in open_terminals:
        terminal.close()


def test_questions_have_presumptions_and_wrong_answers_are_asked_again(recipe, dialogue):
    terminal = dialogue("--engine-version", "0.32.0", "--client", "aiperf")
    for question, keys in (
        (r"Engine.*\(vllm, sim\) \[vllm\]: $", "vlm\n"),
        (r"Error: 'vlm' is not one of vllm, sim\n.*\[vllm\]: $", "\n"),
        (r"profile.*\[-\]: $", "big site\n"),
        (r"Error: name: 'big site' is not a name.*\n.*\[-\]: $", "big\n"),
        (r"Scheduler \(slurm, local\) \[local\]: $", "slurm\n"),
        (r"Folder of the runs.*\[~/recipe-runs\]: $", "\n"),
        (r"Partition.*\[-\]: $", "gpu\n"),
        (r"Account.*\[-\]: $", "\n"),
        (r"Container runtime \(none, docker.*\) \[none\]: $", "\n"),
        (r"Virtual environment.*\[-\]: $", "/shared/venvs/vllm\n"),
        (r"Model: .*\[hf:.*\]: $", "glm\n"),
        (r"Where that model is.*: $", "/models/glm\n"),
        (r"Kind of GPU \[H200\]: $", "B300\n"),
        (r"GPUs of a node \[8\]: $", "four\n"),
        (r"Error: 'four' is not a positive integer\n.*: $", "4\n"),
        (r"Prefill and decode.*\[aggregated\]: $", "disaggregated\n"),
        (r"Prefill instances.*\[1:tp1\]: $", "2:tp3\n"),
        (r"Error: roles.prefill.parallel.tp: .*\n  hint: sizes that divide it: 1, 2, 4.*\n.*: $", "2:tp2\n"),
        (r"Decode instances.*\[1:tp1\]: $", "1:dp4,ep\n"),
        (r"Input length.*\[1024\]: $", "\n"),
        (r"Output length.*\[128\]: $", "\n"),
        (r"Requests in flight.*\[1,8,32\]: $", "1 4\n"),
        (r"Name of the recipe \[glm-b300-2p1d\]: $", "\n"),
    ):
        terminal.expect(question)
        terminal.type(keys)
    terminal.expect("recipe submit recipes/glm-b300-2p1d.yaml -c big --follow")
    assert terminal.code() == 0
    assert recipe("validate", "recipes", "-c", "big").returncode == 0
    made = load_recipe(recipe.folder / "recipes" / "glm-b300-2p1d.yaml").recipe
    assert [(role.instances, role.parallel.size) for role in made.roles] == [(2, 2), (1, 4)]
    assert (
        load_profile(recipe.folder / "recipes" / "clusters" / "big.yaml").cluster.tools["vllm"].venv
        == "/shared/venvs/vllm"
    )


def test_ctrl_c_leaves_nothing(recipe, dialogue):
    terminal = dialogue("x.yaml")
    terminal.expect(r"Engine.*\]: $")
    terminal.until_it_waits()
    terminal.type("\x03")
    assert terminal.code() == 130
    assert "Traceback" not in terminal.text
    assert list(recipe.folder.iterdir()) == []


def test_yes_asks_nothing_at_a_terminal_either(recipe, dialogue):
    terminal = dialogue("x.yaml", "--yes")
    assert terminal.code() == 0
    assert "[" not in terminal.text.partition("next:")[0]
    assert load_recipe(recipe.folder / "x.yaml").recipe.name == "qwen3-0.6b-h200-agg"
