"""``recipe import`` as a user types it, and the verbs that take another tool's recipe as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
SITE = "schema: 1\nname: site\nscheduler: slurm\nruns: runs\nmodels: {toy: /m/toy}\n"


@pytest.fixture
def here(recipe: Any) -> Path:
    """The made-up files, beside where the command runs."""
    for path in FOREIGN.glob("*.yaml"):
        shutil.copy(path, recipe.folder)
    folder: Path = recipe.folder
    (folder / "site.yaml").write_text(SITE, encoding="utf-8")
    return folder


def test_a_recipe_goes_to_stdout_and_loads(recipe: Any, here: Path) -> None:
    done = recipe("import", "srt1-lossless.yaml")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "srt1-lossless.yaml: srt-slurm, schema 1: 1 recipe, nothing is lost"
    (here / "out.yaml").write_text(done.stdout, encoding="utf-8")
    assert recipe("validate", "out.yaml").stdout == "out.yaml: ok (toy-1p1d, 1 node, 6 GPUs)\n"


def test_what_is_lost_is_named_and_told_by_the_exit_code(recipe: Any, here: Path) -> None:
    done = recipe("import", "srt1-disagg.yaml")
    assert done.returncode == 3
    assert 'srt1-disagg.yaml:129:1: lost: telemetry = {"enabled": true}: no power is measured' in done.stderr
    assert "# Lost: telemetry (line 129)" in done.stdout
    assert "hf_abcdef" not in done.stdout + done.stderr


def test_a_refusal_is_told_by_the_exit_code(recipe: Any, here: Path) -> None:
    done = recipe("import", "srt1-sglang.yaml", "srt1-lossless.yaml")
    assert done.returncode == 1
    assert "srt1-sglang.yaml:4:17: backend.type: a recipe of SGLang" in done.stderr
    assert "name: toy-1p1d" in done.stdout
    for word, file in (("no format", "site.yaml"), ("cannot be read", "none.yaml")):
        done = recipe("import", file)
        assert done.returncode == 1
        assert word in done.stderr
    assert recipe("import").returncode == 2


def test_nothing_is_written_where_a_name_is_taken_twice(recipe: Any, here: Path) -> None:
    done = recipe("import", "srt1-overrides.yaml", "-o", "out", "--profile-out", "out/toy.yaml")
    assert done.returncode == 1
    assert "out/toy.yaml is the name of a recipe" in done.stderr
    shutil.copy(here / "srt1-lossless.yaml", here / "again.yaml")
    done = recipe("import", "srt1-lossless.yaml", "again.yaml", "-o", "out")
    assert done.returncode == 1
    assert "two of the files hold a recipe toy-1p1d; again.yaml is the second" in done.stderr
    assert not (here / "out").exists()


def test_written_recipes_validate_against_the_written_profile(recipe: Any, here: Path) -> None:
    done = recipe("import", "srt1-overrides.yaml", "srt1-disagg.yaml", "-o", "out", "--profile-out", "site/toy.yaml")
    assert done.returncode == 3
    assert "extends: toy.yaml" in (here / "out" / "toy-pair.yaml").read_text(encoding="utf-8")
    checked = recipe("validate", "out", "site/toy.yaml")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count(": ok (") == 6
    planned = recipe("plan", "out/toy-moe-1p2d.yaml", "-c", "site/toy.yaml")
    assert planned.returncode == 0, planned.stderr
    # Again is no change; another text under a name is refused before anything is written.
    again = ("import", "srt1-overrides.yaml", "-o", "out")
    assert recipe(*again).returncode == 0
    (here / "out" / "toy.yaml").write_text("mine\n", encoding="utf-8")
    (here / "out" / "toy-pair.yaml").unlink()
    refused = recipe(*again)
    assert refused.returncode == 1
    assert "out/toy.yaml is there already" in refused.stderr
    assert not (here / "out" / "toy-pair.yaml").exists()


def test_json_is_one_object_a_file(recipe: Any, here: Path) -> None:
    done = recipe("import", "srt1-disagg.yaml", "srt1-sglang.yaml", "--json", "-o", "out")
    refused, one = map(json.loads, done.stdout.splitlines())
    assert (refused["file"], refused["ok"], refused["problems"][0]["line"]) == ("srt1-sglang.yaml", False, 4)
    assert (one["ok"], one["lossless"], one["paths"]) == (True, False, ["out/toy-moe-1p2d.yaml"])
    assert one["recipes"][0]["recipe"]["name"] == "toy-moe-1p2d"
    assert one["profile"]["slurm"]["partition"] == "batch"
    assert {"kind", "file", "line", "column", "field", "value", "message"} == set(one["notes"][0])
    assert done.stderr == ""


def test_their_recipe_is_validated_planned_and_submitted_as_it_is(recipe: Any, here: Path) -> None:
    done = recipe("validate", "srt2-disagg.yaml", "-c", "site.yaml")
    assert (done.stdout, done.returncode) == ("srt2-disagg.yaml: ok (toy-second, 1 node, 8 GPUs)\n", 0)
    assert "srt2-disagg.yaml: warning: srt-slurm, schema 2, imported as it is read: 3 keys are lost" in done.stderr
    assert "srt2-disagg.yaml:31:5: warning: services.1: lost in the import" in done.stderr
    assert recipe("plan", "srt1-lossless.yaml").returncode == 0
    done = recipe("submit", "srt1-lossless.yaml", "-c", "site.yaml", "--dry-run", "-s", "time_limit=00:10:00")
    assert done.returncode == 0, done.stderr
    assert "nothing of it is lost" in done.stderr
    assert "#SBATCH --time=10" in done.stdout


def test_one_of_several_is_chosen_by_its_key(recipe: Any, here: Path) -> None:
    done = recipe("plan", "srt1-overrides.yaml", "-c", "site.yaml")
    assert done.returncode == 1
    assert "it holds 4 recipes" in done.stderr
    assert "srt1-overrides.yaml:base" in done.stderr
    done = recipe("plan", "srt1-overrides.yaml:override_pair", "-c", "site.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("toy-pair: 2 serve of tp4\n")


def test_what_is_wrong_with_it_stands_at_its_own_line(recipe: Any, here: Path) -> None:
    done = recipe("validate", "srt1-lossless.yaml", "-s", "roles.decode.parallel.tp=3")
    assert done.returncode == 1
    assert "--set roles.decode.parallel.tp=3: roles.decode.parallel.tp" in done.stderr
    done = recipe("validate", "srt1-sglang.yaml")
    assert done.returncode == 1
    assert "srt1-sglang.yaml:4:17: backend.type" in done.stderr


def test_their_recipe_and_what_was_made_of_it_do_not_differ(recipe: Any, here: Path) -> None:
    (here / "made.yaml").write_text(recipe("import", "srt1-lossless.yaml").stdout, encoding="utf-8")
    done = recipe("diff", "srt1-lossless.yaml", "made.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    done = recipe("diff", "srt1-lossless.yaml", "srt1-disagg.yaml")
    assert done.returncode == 1
    assert "roles.decode.parallel.tp" in done.stdout
