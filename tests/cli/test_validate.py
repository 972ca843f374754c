"""``recipe validate`` and ``recipe schema`` as a user types them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recipe_support import GOOD, changed

PROFILE = "schema: 1\nname: site\nscheduler: slurm\nruns: /runs\nmax_nodes: 2\nmodels: {llama: /m/llama}\n"


@pytest.fixture
def files(recipe: Any) -> Any:
    """Writes files beside where the command runs."""

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (recipe.folder / f"{name}.yaml").write_text(text, encoding="utf-8")

    return write


def test_one_line_a_good_file(recipe: Any, files: Any) -> None:
    files(good=GOOD, site=PROFILE)
    done = recipe("validate", "good.yaml", "site.yaml")
    assert done.stdout == "good.yaml: ok (good, 2 nodes, 12 GPUs)\nsite.yaml: ok (profile site, slurm)\n"
    assert (done.stderr, done.returncode) == ("", 0)


def test_numbers_are_counted(recipe: Any, files: Any) -> None:
    parts = (("instances: 2, parallel: {tp: 2}", "parallel: {}"), ("tp: 4, dp: 2", ""), ("gpu: H200,", "device: cpu,"))
    files(one=changed(*parts, ("gpus_per_node: 8", "gpus_per_node: 1")))
    assert recipe("validate", "one.yaml").stdout == "one.yaml: ok (good, 2 nodes, 2 CPU slots)\n"


def test_all_problems_of_all_files(recipe: Any, files: Any) -> None:
    files(good=GOOD, one=changed(("tp: 4", "tp: x"), ("isl: 1024", "isl: y")), two="a: [\n")
    done = recipe("validate", "one.yaml", "good.yaml", "two.yaml", "none.yaml")
    assert done.stdout.splitlines() == ["good.yaml: ok (good, 2 nodes, 12 GPUs)"]
    assert done.stderr.splitlines() == [
        "one.yaml:12:41: roles.decode.parallel.tp: 'x' is not an integer",
        "one.yaml:16:27: benchmarks.0.isl: 'y' is not an integer",
        "two.yaml:2:1: not YAML: did not find expected node content while parsing a flow node",
        "none.yaml: cannot be read: no such file or directory",
        "3 of 4 files refused",
    ]
    assert done.returncode == 1


def test_a_recipe_that_is_refused_for_its_base_is_named(recipe: Any, files: Any) -> None:
    files(bad=changed(("tp: 4", "tp: x")), child="extends: bad.yaml\nname: child\n")
    done = recipe("validate", "child.yaml", "bad.yaml")
    fault = "bad.yaml:12:41: roles.decode.parallel.tp: 'x' is not an integer"
    named = "child.yaml: refused for what it extends"
    assert done.stderr.splitlines() == [fault, named, fault, "2 of 2 files refused"]


def test_json_is_an_object_a_file(recipe: Any, files: Any) -> None:
    files(good=GOOD, bad=changed(("connector: nixl", "connector: nixxl")), site=PROFILE)
    done = recipe("validate", "--json", "good.yaml", "bad.yaml", "site.yaml")
    good, bad, site = (json.loads(line) for line in done.stdout.splitlines())
    assert good == {
        "file": "good.yaml",
        "kind": "recipe",
        "ok": True,
        "name": "good",
        "nodes": 2,
        "device": "gpu",
        "gpus": 12,
        "problems": [],
    }
    assert bad == {
        "file": "bad.yaml",
        "kind": "recipe",
        "ok": False,
        "problems": [
            {
                "file": "bad.yaml",
                "line": 13,
                "column": 26,
                "field": "kv_transfer.connector",
                "message": "'nixxl' is not one of nixl, example, decode-bench",
                "hint": "did you mean `nixl`?",
                "severity": "error",
                "rule": None,
            }
        ],
    }
    assert site["kind"] == "profile"
    assert (done.stderr, done.returncode) == ("", 1)


def test_a_profile_is_known_by_its_keys(recipe: Any, files: Any) -> None:
    files(site=PROFILE.replace("scheduler: slurm\n", ""))
    done = recipe("validate", "site.yaml")
    assert done.stderr.startswith("site.yaml:1:1: scheduler: missing\n")


def test_warnings_refuse_nothing(recipe: Any, files: Any) -> None:
    files(r=changed(("04:00:00", "04:00")))
    done = recipe("validate", "r.yaml")
    assert done.stdout == "r.yaml: ok (good, 2 nodes, 12 GPUs)\n"
    assert done.stderr.startswith("r.yaml:19:13: warning: time_limit: 04:00 is 4 minutes")
    assert done.returncode == 0


def test_what_is_to_be_said_of_a_base_is_said_once(recipe: Any, files: Any) -> None:
    files(
        base=changed(("04:00:00", "04:00")),
        one="extends: base.yaml\nname: one\n",
        two="extends: base.yaml\nname: two\n",
    )
    files_ = ["base.yaml", "one.yaml", "two.yaml"]
    done = recipe("validate", *files_)
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.count("base.yaml:19:13: warning: time_limit") == 1
    # Each refusal says why, and each object of a script's is whole.
    assert recipe("validate", *files_, "--strict").stderr.count("base.yaml:19:13: warning: time_limit") == 3
    assert all(json.loads(line)["problems"] for line in recipe("validate", *files_, "--json").stdout.splitlines())
    assert recipe("plan", "one.yaml").stderr.count("time_limit") == 1


def test_what_is_to_be_said_of_the_profile_is_said(recipe: Any, files: Any) -> None:
    files(r=GOOD, site=PROFILE.rstrip() + "\nslurm: {max_time: '12:00'}\n")
    said = recipe("validate", "r.yaml", "-c", "./site.yaml").stderr
    assert "slurm.max_time: 12:00 is 12 minutes" in said


def test_a_folder_stands_for_the_recipes_in_it(recipe: Any) -> None:
    root = recipe.folder / "recipes"
    for name, text in {
        "b/good.yaml": GOOD,
        "a/child.yml": "extends: ../b/good.yaml\nname: child\n",
        "a/broken.yaml": "schema: 1\nroles: [\n",
        "clusters/site.yaml": PROFILE,
        "notes.yaml": "title: x\nschema: 3\n",
        "other.yaml": "a: [\n",
        "data.json": "{}",
        ".hidden/r.yaml": "schema: 1\nroles: {}\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    done = recipe("validate", "recipes")
    assert done.stdout.splitlines() == [
        "recipes/a/child.yml: ok (child, 2 nodes, 12 GPUs)",
        "recipes/b/good.yaml: ok (good, 2 nodes, 12 GPUs)",
        "recipes/clusters/site.yaml: ok (profile site, slurm)",
    ]
    assert done.stderr.splitlines() == [
        "recipes/a/broken.yaml:3:1: not YAML: did not find expected node content while parsing a flow node",
        "1 of 4 files refused",
    ]
    assert done.returncode == 1


def test_a_folder_without_recipes(recipe: Any) -> None:
    (recipe.folder / "empty").mkdir()
    done = recipe("validate", "empty")
    assert done.stderr == (
        "empty: no recipe in this folder\n  hint: recipes are *.yaml with `schema` and `roles`, or `extends`\n"
    )
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x7fELF\x02\x01\x00", "f.yaml:1:1: character '\\x7f' is not text"),
        (b"a: \xff\n", "f.yaml:1:4: byte 0xff is not UTF-8 text\n  hint: save it as UTF-8"),
        (b"", "f.yaml:1:1: is empty"),
        (b"just text", "f.yaml:1:1: holds 'just text', not a mapping"),
        (b"\xff\xfea\x00:\x00", "f.yaml:1:1: is UTF-16, not UTF-8 text\n  hint: save it as UTF-8"),
    ],
)
def test_files_that_are_no_recipes(recipe: Any, raw: bytes, message: str) -> None:
    (recipe.folder / "f.yaml").write_bytes(raw)
    done = recipe("validate", "f.yaml")
    assert (done.stdout, done.stderr, done.returncode) == ("", f"{message}\n", 1)


def test_a_file_that_cannot_be_read(recipe: Any) -> None:
    done = recipe("validate", "/proc/self/mem")
    assert done.stderr == "/proc/self/mem: cannot be read: input/output error\n"
    assert done.returncode == 1


def test_against_a_profile(recipe: Any, files: Any) -> None:
    files(
        r=changed(("instances: 2, parallel: {tp: 2}", "instances: 16, parallel: {tp: 2}")),
        site=PROFILE,
        alias=changed(("path: /models/llama", "path: lama")),
    )
    assert recipe("validate", "r.yaml").stdout == "r.yaml: ok (good, 5 nodes, 40 GPUs)\n"
    done = recipe("validate", "r.yaml", "alias.yaml", "-c", "./site.yaml")
    assert done.stdout == ""
    assert "r.yaml:10:1: roles: needs 5 nodes, and the profile site has at most 2" in done.stderr
    assert "alias.yaml:3:15: model.path:" in done.stderr
    assert done.returncode == 1


def test_a_profile_that_is_not_there(recipe: Any, files: Any) -> None:
    files(r=GOOD)
    done = recipe("validate", "r.yaml", "-c", "nowhere")
    assert "no profile 'nowhere'" in done.stderr
    assert (done.stdout, done.returncode) == ("", 1)


def test_sets_are_applied_to_every_recipe(recipe: Any, files: Any) -> None:
    files(one=GOOD, two=changed(("name: good", "name: two")), site=PROFILE)
    done = recipe("validate", "--set", "roles.prefill.instances=4", "one.yaml", "two.yaml", "site.yaml")
    assert done.stdout.splitlines() == [
        "one.yaml: ok (good, 2 nodes, 16 GPUs)",
        "two.yaml: ok (two, 2 nodes, 16 GPUs)",
        "site.yaml: ok (profile site, slurm)",
    ]
    done = recipe("validate", "--set", "roles.prefil.instances=4", "one.yaml")
    assert done.stderr == (
        "--set roles.prefil.instances=4: roles.prefil: unknown key\n  hint: did you mean `prefill`?\n"
    )


def test_usage(recipe: Any) -> None:
    assert recipe("validate").returncode == 2
    assert recipe("schema", "nothing").returncode == 2


@pytest.mark.parametrize("name", ["recipe", "cluster", "plan", "results"])
def test_schemas_are_printed_whole(recipe: Any, name: str) -> None:
    done = recipe("schema", name)
    schema = json.loads(done.stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert done.returncode == 0


def test_strict_refuses_for_a_warning_and_an_answer_lets_pass(recipe, tmp_path):
    text = changed(("max-num-seqs: 16", "max-num-seqs: 2"))
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    done = recipe("validate", "r.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "r.yaml: ok (good, 2 nodes, 12 GPUs)\n")
    assert done.stderr.splitlines()[0] == (
        "r.yaml:12:59: warning: roles.decode.args.max-num-seqs: 2 is below the 4 requests that each rank of decode has "
        "at concurrency 8 [max-num-seqs-below-load]"
    )
    strict = recipe("validate", "r.yaml", "--strict", cwd=tmp_path)
    assert (strict.returncode, strict.stdout, strict.stderr) == (1, "", done.stderr)
    (verdict,) = [
        json.loads(line)
        for line in recipe("validate", "r.yaml", "--strict", "--json", cwd=tmp_path).stdout.splitlines()
    ]
    assert (verdict["ok"], verdict["problems"][0]["rule"]) == (False, "max-num-seqs-below-load")
    answered = text.replace("lint: {", "lint: {max-num-seqs-below-load: it is the queue that is measured, ")
    (tmp_path / "r.yaml").write_text(answered, encoding="utf-8")
    done = recipe("validate", "r.yaml", "--strict", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
