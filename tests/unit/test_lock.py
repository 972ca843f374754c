"""What a run folder keeps of its recipe and its profile is all that its plan was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from plankit import CASES, RECIPES, SHIPPED, profile
from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.document import dump_yaml
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import load_recipe

FILES = [*SHIPPED, *(RECIPES / f"{name}.yaml" for name in CASES)]


def site_of(path: Path) -> str:
    return path.stem if path.parent == RECIPES and path.stem in ("docker", "podman") else "plain"


@pytest.mark.parametrize("rehearse", [False, True], ids=["real", "rehearsal"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_lock_plans_as_the_recipe_byte_for_byte(path, rehearse, tmp_path, monkeypatch):
    """From another folder, with neither the recipe's bases nor its scripts beside it."""
    site = load_cluster(str(RECIPES / "clusters" / f"{site_of(path)}.yaml"))
    loaded = load_recipe(path)
    wanted = json.dumps(build_plan(loaded.recipe, site.cluster, rehearse=rehearse).to_json())
    recipe, cluster = tmp_path / "recipe.lock.yaml", tmp_path / "cluster.lock.yaml"
    recipe.write_text(dump_yaml(loaded.data))
    cluster.write_text(dump_yaml(site.data))
    monkeypatch.chdir(tmp_path)
    again = load_recipe(recipe)
    plan = build_plan(again.recipe, load_cluster(str(cluster)).cluster, rehearse=rehearse)
    assert json.dumps(plan.to_json()) == wanted
    # Locked once more, nothing is left to change.
    assert dump_yaml(again.data) == recipe.read_text()
    assert {"extends", "published_from"}.isdisjoint(yaml.safe_load(recipe.read_text()))


def test_a_set_is_in_the_lock(tmp_path):
    sets = ["roles.decode.args.max-num-seqs=17", "benchmarks.0.concurrency=[3]", "engine.env={A: '1e3'}"]
    loaded = load_recipe(RECIPES / "pd-4p-dp4-1d-dp8.yaml", sets)
    (tmp_path / "lock.yaml").write_text(dump_yaml(loaded.data))
    plan = build_plan(load_recipe(tmp_path / "lock.yaml").recipe, profile("plain"))
    decode = next(process for process in plan.processes if process.role == "decode")
    words = [word for word in decode.argv if isinstance(word, str)]
    assert words[words.index("--max-num-seqs") + 1] == "17"
    assert decode.env["A"] == "1e3"
    assert [point.concurrency for point in plan.benchmarks] == [3]
