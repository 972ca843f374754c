"""A recipe that is right, and what is said of it once a part of it is changed."""

from __future__ import annotations

from pathlib import Path

from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.recipe_loader import load_recipe

GOOD = """\
schema: 1
name: good
model: {path: /models/llama, served_name: llama}
engine:
  kind: vllm
  version: "0.32.0"
  args: {max-model-len: 4096}
  env: {OMP_NUM_THREADS: "1"}
resources: {gpu: H200, gpus_per_node: 8}
roles:
  prefill: {instances: 2, parallel: {tp: 2}, args: {max-num-seqs: 8}}
  decode: {instances: 1, parallel: {tp: 4, dp: 2}, args: {max-num-seqs: 16}}
kv_transfer: {connector: nixl}
router: {policy: round_robin}
benchmarks:
  - {client: aiperf, isl: 1024, osl: 128, concurrency: [1, 8], requests_per_concurrency: 10}
  - {client: command, command: [my-bench, --quick], timeout: 30m}
deadlines: {ready: 1h30m, drain: 45}
time_limit: 04:00:00
lint: {gpus-idle: four of a node are kept free}
"""


def changed(*changes: tuple[str, str], text: str = GOOD) -> str:
    """``text`` with each (old, new) replaced; each old text must stand in it exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    return text


def problems(folder: Path, text: str, *sets: str, warnings: bool = False, rules: bool = False) -> list[Problem]:
    """What is said of a recipe, under the file name ``r.yaml``; warnings, and what rules say, where asked for."""
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        found = load_recipe(path, sets).warnings
    except InputError as error:
        found = error.problems
    return [item for item in found if item.refuses or (rules if item.rule else warnings)]


def said(folder: Path, text: str, *sets: str, warnings: bool = False) -> list[str]:
    """:func:`problems` as they are printed, the folder's path left out."""
    found = problems(folder, text, *sets, warnings=warnings)
    return [item.render().replace(f"{folder}/", "") for item in found]
