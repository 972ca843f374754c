"""Recipes and profiles in an editor: what the real yaml-language-server says of them with the installed schemas."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from lsp import LanguageServer
from recipe_support import GOOD
from recipe_toolkit.editors import install_schemas
from support import require

ROOT = Path(__file__).parents[2]
SERVER = Path(os.environ.get("RECIPE_YAML_SERVER", ROOT / ".cache" / "yaml-server"))
SHIPPED = sorted((ROOT / "recipes").rglob("*.yaml"))
PROFILE = "schema: 1\nname: site\nscheduler: slurm\nruns: /runs\n"


class Editor:
    """Opens texts as files of one folder, each with the line that names its schema."""

    def __init__(self, server: LanguageServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._count = 0

    def open(self, text: str, kind: str = "recipe") -> tuple[list[tuple[int, str]], Path, int, int]:
        """Diagnostics as (line, message), the file, and where ``|`` stood; the line of the schema is line 0."""
        self._count += 1
        path = self._folder / "mine" / f"{self._count}.yaml"
        text = f"# yaml-language-server: $schema=../.recipe/{kind}.schema.json\n{text}"
        at = max(text.find("|"), 0)
        line, column = text.count("\n", 0, at), at - text.rfind("\n", 0, at) - 1
        diagnostics = self._server.open(path, text.replace("|", "", 1))
        return [(item["range"]["start"]["line"], item["message"]) for item in diagnostics], path, line, column

    def offered(self, text: str, kind: str = "recipe") -> dict[str, str]:
        """What is offered at ``|``, with its explanation."""
        _, *where = self.open(text, kind)
        answer = self._server.at("completion", *where)
        items = answer["items"] if isinstance(answer, dict) else answer or []
        return {item["label"]: item.get("documentation") or "" for item in items}

    def inserted(self, text: str, label: str) -> list[str]:
        """What choosing ``label`` at ``|`` would write, once for each time that it is offered."""
        _, *where = self.open(text)
        answer = self._server.at("completion", *where)
        return [item["insertText"] for item in answer["items"] if item["label"] == label]

    def hover(self, text: str, kind: str = "recipe") -> str:
        """The explanation of what stands at ``|``."""
        _, *where = self.open(text, kind)
        return ((self._server.at("hover", *where) or {}).get("contents") or {}).get("value", "").replace("\\", "")


YAML = {"validate": True, "hover": True, "completion": True, "schemaStore": {"enable": False}}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a server for a new folder that has the schemas; ``settings`` are of the section ``yaml``."""
    program = SERVER / "node_modules" / ".bin" / "yaml-language-server"
    there = program.exists() and shutil.which("node") is not None
    require("editor", there, f"no {program} or no node: scripts/install-yaml-server .cache/yaml-server")
    servers = []

    def new(**settings):
        folder = tmp_path_factory.mktemp("editor")
        install_schemas(folder)
        servers.append(LanguageServer([str(program), "--stdio"], folder, {"yaml": {**YAML, **settings}}))
        return servers[-1], folder

    yield new
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def editor(start):
    server, folder = start()
    (folder / "mine").mkdir()
    return Editor(server, folder)


def test_a_good_recipe_has_no_fault(editor):
    assert editor.open(GOOD)[0] == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_shipped_has_no_fault(editor, path):
    kind = "cluster" if path.parent.name == "clusters" else "recipe"
    assert editor.open(path.read_text(), kind)[0] == []


def test_roles_are_offered_with_their_meaning(editor):
    offered = editor.offered("schema: 1\nroles:\n  |\n")
    assert list(offered) == ["serve", "prefill", "decode"]
    assert offered["decode"] == "Instances that take the KV cache over and generate."
    assert {"instances", "parallel", "args", "env", "sim"} <= set(editor.offered("roles:\n  serve:\n    |\n"))
    assert {"tp", "pp", "dp", "dcp", "ep"} <= set(editor.offered("roles:\n  serve:\n    parallel:\n      |\n"))


def test_benchmarks_are_offered_what_their_client_takes(editor):
    assert list(editor.offered("benchmarks:\n  - client: |\n")) == ["aiperf", "vllm-bench", "lm-eval", "command"]
    load = editor.offered("benchmarks:\n  - client: aiperf\n    |\n")
    assert {"isl", "osl", "concurrency", "request_rate", "warmup"} <= set(load)
    assert "command" not in load
    assert load["isl"] == "Input length of each request, in tokens."
    command = editor.offered("benchmarks:\n  - client: command\n    |\n")
    assert {"command", "timeout"} <= set(command)
    assert "isl" not in command


def test_null_deletes_what_a_base_has(editor):
    text = "extends: base.yaml\nroles: {serve: null, decode: {args: {max-num-seqs: null}}}\nslo: {ttft_s: null}\n"
    assert (
        editor.open(f"{text}description: null\nbenchmarks: null\nengine: {{env: {{OMP_NUM_THREADS: null}}}}\n")[0] == []
    )
    assert editor.open(f"{text}resources: {{gpus_per_node: null}}\n")[0] == [(4, 'Incorrect type. Expected "integer".')]


def test_what_is_required_is_offered_as_one_piece(editor):
    (text,) = editor.inserted("|\n", "a whole recipe")
    keys = [line.partition(":")[0] for line in text.splitlines() if line[0].isalpha()]
    assert keys == ["schema", "name", "model", "engine", "resources", "roles", "benchmarks"]


def test_a_chosen_key_presumes_nothing(editor):
    assert editor.inserted("engine:\n  args:\n    |\n", "block-size") == ["block-size: "]
    assert editor.inserted("benchmarks:\n  - |\n", "client") == ["client: "]
    for key in ("model", "engine", "resources", "kv_transfer"):
        assert [text.split() for text in editor.inserted("|\n", key)] == [[f"{key}:"]], key


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("engine:\n  kind: |\n", ["vllm", "sim"]),
        ("kv_transfer:\n  connector: |\n", ["nixl", "example"]),
        ("roles:\n  serve:\n    parallel:\n      dp_lb: |\n", ["internal", "hybrid"]),
        ("resources:\n  device: |\n", ["gpu", "cpu"]),
    ],
)
def test_choices_are_offered(editor, text, choices):
    assert list(editor.offered(text))[:2] == choices


def test_the_flags_of_vllm_are_offered_and_explained(editor):
    flags = editor.offered("engine:\n  kind: vllm\n  args:\n    |\n")
    assert {"max-model-len", "gpu-memory-utilization", "kv-cache-dtype"} <= set(flags)
    assert not {"port", "tensor-parallel-size", "kv-transfer-config"} & set(flags)
    assert flags["max-num-seqs"].startswith("--max-num-seqs of vLLM ")
    assert "max-num-seqs" in editor.offered("roles:\n  decode:\n    args:\n      |\n")
    assert "fp8" in editor.offered("roles:\n  decode:\n    args:\n      kv-cache-dtype: |\n")
    assert "max-num-seqs" not in editor.offered("router:\n  args:\n    |\n")


def test_flags_and_values_that_no_list_knows_are_no_fault(editor):
    text = GOOD.replace("{max-model-len: 4096}", "{of-tomorrow: 3, kv-cache-dtype: new}")
    assert text != GOOD
    assert editor.open(text)[0] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nroles: {dec|ode: {}}\n", "Instances that take the KV cache over and generate."),
        ("roles: {decode: {parallel: {t|p: 2}}}\n", "Tensor parallel size, in GPUs. Default 1."),
        ("benchmarks: [{client: aiperf, is|l: 3}]\n", "Input length of each request, in tokens."),
        ("benchmarks: [{cli|ent: aiperf}]\n", "`command`: any program."),
        ("deadlines: {rea|dy: 30m}\n", "Until every engine is healthy, loading and compilation included. Default 1h."),
        ("na|me: x\n", "Name of the recipe; it begins the names of runs and of the Slurm job."),
        ("engine: {args: {max-model|-len: 3}}\n", ": an integer, or such as 64K or auto."),
        ("engine: {args: {of-to|morrow: 3}}\n", "A flag and its value"),
        ("engine: {env: {OMP_NUM|_THREADS: '1'}}\n", "A variable and its value, a string"),
        ("time|_limit: '1:00:00'\n", "Time limit of the job as sbatch takes it"),
    ],
)
def test_hover_explains(editor, text, said):
    assert said in editor.hover(text)


def test_faults_are_shown_where_they_are(editor):
    text = GOOD
    for old, new in (("roles:", "rolls:"), ("isl: 1024", "isl: many"), ("connector: nixl", "connector: nixxl")):
        assert old in text
        text = text.replace(old, new)
    lines = ["", *text.splitlines()]
    found = {(lines[line].split(":")[0].strip(" -{"), message) for line, message in editor.open(text)[0]}
    assert ("rolls", "Property rolls is not allowed.") in found
    said = "\n".join(message for _, message in found)
    for part in ('Expected "integer".', 'Valid values: "nixl", "example"', 'Missing property "roles".'):
        assert part in said


def test_profiles_are_helped_too(editor):
    assert editor.open(PROFILE, "cluster")[0] == []
    assert list(editor.offered("scheduler: |\n", "cluster")) == ["slurm", "ssh", "local"]
    slurm = editor.offered(f"{PROFILE}slurm:\n  |\n", "cluster")
    assert slurm["account"] == "Account (--account)."
    assert {"venv", "path", "image"} <= set(editor.offered(f"{PROFILE}tools:\n  vllm:\n    |\n", "cluster"))
    assert "hf:ORG/REPO" in editor.hover(f"{PROFILE}models: {{gl|m: /models/glm}}\n", "cluster")
    assert "Partition (--partition)." in editor.hover(f"{PROFILE}slurm: {{part|ition: x}}\n", "cluster")
    faults = editor.open(f"{PROFILE}slurm: {{partitio: gpu, exclusive: 3}}\n", "cluster")[0]
    assert [message for _, message in sorted(faults)] == [
        'Incorrect type. Expected "boolean".',
        "Property partitio is not allowed.",
    ]


def test_the_settings_of_the_page_map_folders_to_schemas(start):
    block = (ROOT / "docs" / "editors.md").read_text().partition("```json\n")[2].partition("```")[0]
    server, folder = start(schemas=json.loads(block)["yaml.schemas"])
    for path, text, kind in (
        ("recipes/mine/a.yaml", GOOD, "Recipe"),
        ("recipes/a.yaml", GOOD, "Recipe"),
        ("recipes/clusters/site.yaml", PROFILE, "Cluster profile"),
    ):
        assert server.open(folder / path, text) == []
        wrong = server.open(folder / f"{path}.wrong.yaml", f"{text}unknown: 1\n")
        assert [item["source"] for item in wrong] == [f"yaml-schema: {kind}"]


# --- recipe schema


def test_schemas_are_installed_where_the_tree_begins(recipe):
    (recipe.folder / ".git").mkdir()
    deep = recipe.folder / "recipes" / "mine"
    deep.mkdir(parents=True)
    done = recipe("schema", "--install", cwd=deep)
    folder = recipe.folder / ".recipe"
    assert done.stdout.split() == [str(folder / "recipe.schema.json"), str(folder / "cluster.schema.json")]
    assert "# yaml-language-server: $schema=../../.recipe/recipe.schema.json" in done.stderr
    assert done.returncode == 0
    for path in folder.iterdir():
        assert json.loads(path.read_text())["$schema"].endswith("2020-12/schema")
    before = [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]
    (folder / "cluster.schema.json").write_text("{}")
    assert recipe("schema", "--install").returncode == 0
    after = [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)  # the old one anew, the other as it was


def test_schemas_stand_beside_the_recipes_where_there_is_no_tree(recipe):
    assert recipe("schema", "--install").returncode == 0
    assert sorted(path.name for path in (recipe.folder / ".recipe").iterdir()) == [
        "cluster.schema.json",
        "recipe.schema.json",
    ]


def test_a_schema_or_all_of_them(recipe):
    for words in (("schema",), ("schema", "recipe", "--install")):
        done = recipe(*words)
        assert (done.returncode, "give NAME, or --install" in done.stderr) == (2, True)


def test_a_folder_that_cannot_be_written_is_told(recipe):
    (recipe.folder / ".recipe").write_text("")
    done = recipe("schema", "--install")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {recipe.folder}/.recipe: File exists")
