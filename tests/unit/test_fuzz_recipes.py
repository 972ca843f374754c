"""Real recipes with values, keys and characters changed at random: loaded and planned, or refused as input; never more.

The short run is the same each time. The long one, by hand: ``pytest -m slow tests/unit/test_fuzz_recipes.py``; with
``RECIPE_FUZZ=FOLDER`` also over the YAML files of that folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipe_support import GOOD
from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.document import parse_yaml
from recipe_toolkit.errors import InputError, printable
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.draw import draw
from recipe_toolkit.plan.model import plan_from_json
from recipe_toolkit.recipe_loader import load_recipe

ROOT = Path(__file__).parents[2]
FOLDERS = [
    ROOT / "recipes",
    ROOT / "tests" / "data" / "recipes",
    *map(Path, filter(None, [os.environ.get("RECIPE_FUZZ")])),
]
TEXTS = [GOOD, *(path.read_text() for folder in FOLDERS for path in sorted(folder.rglob("*.y*ml")))]
DATA = [data for data in (parse_yaml(text, "f").data for text in TEXTS[:40]) if isinstance(data, dict)]

_NUMBERS = [0, -1, 1, 2, 3, 7, 8, 64, 4096, 10**6, 10**12, 2**63 - 1, 0.5, 1e-300, 1e300, -0.0, 1e3]
_WORDS = [
    *("", "x", "-x", "a\nb", "auto", "on", "1e3", "8k", "hf:a/b", "/m", "../m", "🚀", "{{x}}", "$HOME", "%j", "none"),
    *(
        "vllm",
        "sim",
        "aiperf",
        "vllm-bench",
        "lm-eval",
        "command",
        "nixl",
        "example",
        "cpu",
        "hybrid",
        "00:00:01",
        "9-00",
    ),
]
_HOLDERS = [[], [None], [1, 1], ["x"], [[1]], {}, {"x": 1}, {"": None}, {"kind": "exit"}, {"dp": 3, "ep": True}]
_ODD = st.sampled_from([None, True, False, "x" * 300, *_NUMBERS, *_WORDS, *_HOLDERS])
_VALUE = st.recursive(
    _ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def _places(data: Any) -> list[tuple[Any, Any]]:
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in list(items) for place in ((data, key), *_places(value))]


@st.composite
def mutated(draw_from: st.DrawFn) -> str:
    """The YAML (JSON) of a real recipe with one to four places changed, removed or copied over others."""
    data = json.loads(json.dumps(draw_from(st.sampled_from(DATA))))
    for _ in range(draw_from(st.integers(1, 4))):
        places = _places(data)
        if not places:
            break
        holder, key = draw_from(st.sampled_from(places))
        other, at = draw_from(st.sampled_from(places))
        act = draw_from(st.sampled_from(["value", "value", "remove", "copy", "key"]))
        if act == "remove":
            del holder[key]
        elif act == "copy":
            holder[key] = json.loads(json.dumps(other[at]))
        elif act == "key" and isinstance(holder, dict):
            holder[draw_from(st.text(max_size=12))] = holder.pop(key)
        else:
            holder[key] = json.loads(json.dumps(draw_from(_VALUE)))  # its lists are shared between draws
    return json.dumps(data, ensure_ascii=False)


@st.composite
def scrambled(draw_from: st.DrawFn) -> str:
    """The text of a real recipe with a few characters changed."""
    text = draw_from(st.sampled_from(TEXTS))
    for _ in range(draw_from(st.integers(1, 4))):
        at = draw_from(st.integers(0, len(text)))
        cut = draw_from(st.integers(0, 6))
        text = text[:at] + draw_from(st.text("{}[]:,-&*!|>'\"%@`#? \t\n\0\u202eaé0", max_size=4)) + text[at + cut :]
    return text


def attempt(folder: Path, text: str, rehearse: bool) -> None:
    """Load and plan, as `recipe plan` does; whatever is wrong must be an InputError that can be shown."""
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    site = load_profile(ROOT / "slurm" / "recipe_toolkit" / "clusters" / "local.yaml").cluster
    refused: InputError | None = None
    try:
        loaded = load_recipe(path)
        plan = build_plan(loaded.recipe, site, rehearse=rehearse)
    except InputError as error:
        refused = error
    if refused is not None:
        assert refused.problems
        assert all(printable(line) == line for item in refused.problems for line in item.render().split("\n"))
        return
    assert plan_from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan
    assert "\x1b" not in draw(plan)
    # What it resolves to is a recipe too, and means the same.
    again = folder / "again.yaml"
    again.write_text(json.dumps(loaded.data), encoding="utf-8")
    assert load_recipe(again).recipe == loaded.recipe


QUICK = settings(
    max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
LONG = settings(max_examples=4_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@QUICK
@given(text=mutated() | scrambled(), rehearse=st.booleans())
def test_a_few(folder: Path, text: str, rehearse: bool) -> None:
    attempt(folder, text, rehearse)


@pytest.mark.slow
@LONG
@given(text=mutated() | scrambled(), rehearse=st.booleans())
def test_many(folder: Path, text: str, rehearse: bool) -> None:
    attempt(folder, text, rehearse)
