"""A run against what was published."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report.published import against, metric_of, render, to_json
from results_support import make_run

BASE = make_run()[1].to_json()
C1, C2, C8, INVALID, C128 = (point["id"] for point in BASE["points"])
SEEN = {point["id"]: point for point in BASE["points"]}
CLIENT = SEEN[C1]["client"]["name"]
LOAD = {"client": CLIENT, "isl": 64, "osl": 16}


def run(*items: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {**copy.deepcopy(BASE), "published": list(items), **given}


def verdicts(*items: dict[str, Any]) -> list[tuple[str | None, str, str | None]]:
    return [(found.point, found.verdict, found.why) for found in against(run(*items))]


@pytest.mark.parametrize(
    ("factor", "tolerance", "word"),
    [
        (1, None, "reproduced"),
        (1.04, None, "reproduced"),
        (1.06, None, "better"),
        (0.9, None, "worse"),
        (0.9, 0.2, "reproduced"),
    ],
)
def test_within_the_tolerance_it_is_reproduced(factor: float, tolerance: float | None, word: str) -> None:
    """The published TPOT is ``factor`` times what was measured; lower is better."""
    item = {**LOAD, "concurrency": 1, "metrics": {"tpot_mean_ms": SEEN[C1]["tpot_ms"]["mean"] * factor}}
    (found,) = against(run({**item, **({"tolerance": tolerance} if tolerance else {})}))
    assert (found.point, found.verdict, found.why) == (C1, word, None)
    assert found.percent == pytest.approx((1 / factor - 1) * 100)


def test_higher_throughput_is_better() -> None:
    published = SEEN[C1]["total_tps_per_gpu"]["working"]
    (found,) = against(run({**LOAD, "concurrency": 1, "metrics": {"total_tps_per_gpu": published / 2}}))
    assert (found.verdict, round(found.percent or 0)) == ("better", 100)


def test_each_denominator_is_its_own() -> None:
    point = SEEN[C1]["total_tps_per_gpu"]
    for per_gpu, seen in (("working", point["working"]), ("allocated", point["allocated"])):
        item = {**LOAD, "concurrency": 1, "per_gpu": per_gpu, "metrics": {"total_tps_per_gpu": seen}}
        assert [found.seen for found in against(run(item))] == [seen]
    assert point["working"] != point["allocated"]
    assert metric_of("output_tps_per_gpu", "decode").path == "output_tps_per_gpu.by_role.decode"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({**LOAD, "isl": 65, "concurrency": 1}, (None, "not comparable", "no point of ISL 65, OSL 16, concurrency 1")),
        (
            {**LOAD, "concurrency": 1, "client": "other"},
            (C1, "not comparable", f"published with other, measured with {CLIENT}"),
        ),
        ({"client": CLIENT, "concurrency": 1}, (C1, "worse", "input length, output length not published")),
    ],
)
def test_what_cannot_be_held_against_it_and_why(item: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert verdicts({**item, "metrics": {"tpot_mean_ms": 1e-6}}) == [expected]


def test_an_invalid_point_is_never_good() -> None:
    item = {**LOAD, "concurrency": SEEN[INVALID]["concurrency"], "metrics": {"tpot_mean_ms": 1}}
    (found,) = [found for found in against(run(item)) if found.point == INVALID]
    assert (found.verdict, found.percent) == ("not comparable", None)
    assert "invalid" in (found.why or "")


def test_without_a_load_each_point_of_its_lengths_stands_beside_it() -> None:
    found = verdicts({"isl": 64, "osl": 16, "metrics": {"tpot_mean_ms": 1e6}})
    assert [point for point, _, _ in found] == [point["id"] for point in BASE["points"]]
    assert ("better", "load not published") in {(word, why) for _, word, why in found}


def test_accuracy_is_not_claimed() -> None:
    assert verdicts({"accuracy": {"gsm8k": 95}}) == [(None, "not comparable", "accuracy was not measured")]


def test_every_published_name_is_a_metric_of_the_results() -> None:
    from importlib.resources import files

    schema = json.loads((files("recipe_toolkit") / "schemas" / "recipe.json").read_text(encoding="utf-8"))
    names = schema["$defs"]["published"]["properties"]["metrics"]["propertyNames"]["enum"]
    point = SEEN[C1]
    for name in names:
        assert metric_of(name, "working").of(point) is not None, name


def test_simulated_figures_are_refused_and_so_is_nothing() -> None:
    item = {**LOAD, "metrics": {"tpot_mean_ms": 1}}
    with pytest.raises(RecipeError, match="simulated engine"):
        against(run(item, simulated=True))
    with pytest.raises(RecipeError, match="nothing published"):
        against(run())


def test_text_and_data_say_the_same() -> None:
    results = run(
        {**LOAD, "concurrency": 1, "metrics": {"tpot_mean_ms": 1e6}, "note": "long ago"}, {"accuracy": {"a": 1}}
    )
    found = against(results)
    text = render(results, found)
    assert "ISL 64, OSL 16, concurrency 1\n  long ago\n" in text
    assert text.count("better") == 1
    assert text.count("accuracy was not measured") == 1
    rows = json.loads(json.dumps(to_json(results, found), allow_nan=False))["published"]
    assert [(row["verdict"], row["metric"]) for row in rows] == [
        ("better", "tpot_ms.mean"),
        ("not comparable", "accuracy.a"),
    ]
