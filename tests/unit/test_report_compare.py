"""Runs side by side: which points belong together, what is better, and what may not be compared."""

from __future__ import annotations

import copy
import html.parser
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report import compare_page, compare_text
from recipe_toolkit.report.changes import ABSENT, Change, changes
from recipe_toolkit.report.compare import Comparison, compare, to_json, worse
from recipe_toolkit.report.metrics import BY_NAME, METRICS
from results_support import make_run

BASE = make_run()[1].to_json()
C1, C2, C8, INVALID, C128 = (point["id"] for point in BASE["points"])


def run(name: str = "other", **given: Any) -> dict[str, Any]:
    return {**copy.deepcopy(BASE), "run": name, **given}


def put(point: dict[str, Any], path: str, value: Any) -> None:
    *holders, last = path.split(".")
    for key in holders:
        point = point[key]
    point[last] = value


def row(found: Comparison, point: str, metric: str) -> Any:
    (match,) = [match for match in found.matches if match.point["id"] == point]
    return next((row for row in match.rows if row.metric.path == metric), None)


def difference(found: Comparison, point: str, metric: str) -> tuple[float | None, str | None, str | None]:
    item = row(found, point, metric).differences[1]
    return item.percent, item.verdict, item.why_not


@pytest.mark.parametrize(
    ("metric", "factor", "verdict"),
    [
        ("ttft_ms.mean", 1.1, "worse"),
        ("ttft_ms.p50", 0.9, "better"),
        ("tpot_ms.mean", 1.1, "worse"),
        ("output_tps_per_user.from_median_tpot", 1.1, "better"),
        ("output_tps", 0.9, "worse"),
        ("total_tps_per_gpu.working", 1.1, "better"),
        ("output_tps", 1.0001, "same"),
    ],
)
def test_which_way_is_better_is_the_metrics_own(metric, factor, verdict):
    other = run()
    put(other["points"][0], metric, BY_NAME[metric].of(BASE["points"][0]) * factor)
    percent, said, why_not = difference(compare([BASE, other]), C1, metric)
    assert percent == pytest.approx((factor - 1) * 100)
    assert (said, why_not) == (verdict, None)


def test_a_percentile_of_too_few_requests_is_shown_and_not_judged():
    other = run()
    put(other["points"][0], "ttft_ms.p99", 1e6)
    assert BASE["points"][0]["few_for"] == ["p90", "p99"]
    assert difference(compare([BASE, other]), C1, "ttft_ms.p99") == (None, None, "p99 of 12 requests, too few for one")
    assert worse(compare([BASE, other]), 1) == []
    many = run(), run()
    for side in many:
        side["points"][0]["few_for"] = []
    put(many[1]["points"][0], "ttft_ms.p99", 1e6)
    assert difference(compare(list(many)), C1, "ttft_ms.p99")[1] == "worse"


def test_every_figure_of_the_schema_is_one_or_is_left_out_on_purpose():
    """A rate or a latency that is new in the results must be compared, or be named here."""
    point = BASE["points"][0]
    left_out = {"duration_s", "client_s", "request_rate_rps"}
    figures = {key for key in point if key.endswith(("_ms", "_s", "_rps", "_tps", "_tps_per_gpu", "_tps_per_user"))}
    assert figures - {metric.path.split(".")[0] for metric in METRICS} == left_out


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_the_other_way_round_the_verdict_is_the_other(one, two):
    first, second = run(), run()
    put(first["points"][0], "tpot_ms.mean", one)
    put(second["points"][0], "tpot_ms.mean", two)
    there, back = (difference(compare(pair), C1, "tpot_ms.mean")[1] for pair in ((first, second), (second, first)))
    opposite = {"better": "worse", "worse": "better", "same": "same"}
    assert back == opposite[there] or "same" in (there, back)
    assert there == ("better" if two < one else "worse") or abs(two - one) / one < 0.0005


def test_an_invalid_point_is_never_shown_as_good():
    found = compare([BASE, BASE])
    assert row(found, INVALID, "output_tps") is None
    text = compare_text.render(found)
    assert f"! {INVALID}: invalid in A: " in text
    better = run()
    better["points"][3] |= {"valid": True, "reasons": []}
    for pair, label in (((BASE, better), "A"), ((better, BASE), "B")):
        found = compare(pair)
        assert difference(found, INVALID, "output_tps") == (None, None, None)
        lines = [line for line in compare_text.render(found).splitlines() if line.strip().startswith(INVALID)]
        assert lines
        assert all("invalid" in line for line in lines)
        assert not any(word in line for line in lines for word in ("better", "worse"))
        assert f"invalid in {label}" in compare_text.render(found)


def test_points_that_one_run_lacks_are_named():
    other = run()
    del other["points"][1]
    text = compare_text.render(compare([BASE, other, BASE]))
    assert f"  {C2}: only in A, C\n" in text
    found = compare([other, BASE])
    assert [match.point["id"] for match in found.matches] == [C1, C8, INVALID, C128, C2]
    assert found.matches[-1].points[0] is None


def test_points_match_by_name_and_shape_then_by_shape_then_by_name():
    other = run()
    for point in other["points"]:
        point["id"] = f"renamed-{point['id']}"
    found = compare([BASE, other])
    assert [match.points[1] and match.points[1]["id"] for match in found.matches] == [
        point["id"] for point in other["points"]
    ]
    # Two of one shape: each finds its own, whatever their order.
    twice = run()
    twice["points"] = [{**twice["points"][0], "id": name} for name in ("cold", "warm")]
    turned = {**twice, "points": list(reversed(twice["points"]))}
    for match in compare([twice, turned]).matches:
        assert match.points[0]["id"] == match.points[1]["id"]


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("isl.wanted_tokens", 128, "other lengths: ISL 64 OSL 16 and ISL 128 OSL 16"),
        ("client.name", "vllm-bench", "other clients: aiperf and vllm-bench"),
        ("concurrency", 3, "other loads: c 1 and c 3"),
    ],
)
def test_one_name_for_two_measurements_is_not_compared(path, value, why):
    other = run()
    put(other["points"][0], path, value)
    found = compare([BASE, other])
    assert found.matches[0].why_not == (None, why)
    assert difference(found, C1, "ttft_ms.mean") == (None, None, why)
    assert why in compare_text.render(found)


def test_rates_of_deployments_of_other_sizes_are_compared_by_gpu_alone():
    other = run(gpus={**BASE["gpus"], "working": 8})
    found = compare([BASE, other])
    assert difference(found, C1, "output_tps")[2] == (
        "of 4 of 8 H200 GPUs and of 8 H200 GPUs: compare the rates per GPU"
    )
    assert difference(found, C1, "total_tps_per_gpu.working")[1] == "same"
    assert difference(found, C1, "ttft_ms.mean")[1] == "same"
    assert "n/c B: of 4 of 8 H200 GPUs and of 8" in compare_text.render(found)


def test_a_gpu_is_not_a_slot_and_the_client_does_not_count_as_the_server_does():
    slots = run(gpus={**BASE["gpus"], "device": "cpu", "name": "cpu"})
    assert difference(compare([BASE, slots]), C1, "total_tps_per_gpu.working")[2] == "per GPU and per CPU slot"
    other = run()
    other["points"][0]["osl"]["counted_by"] = "client"
    found = compare([BASE, other])
    assert difference(found, C1, "tpot_ms.mean")[2] == "tokens are counted by the server and by the client"
    assert difference(found, C1, "ttft_ms.mean")[1] == "same"


REAL = {"simulated": False, "rehearsal": False}
SIMULATED = {"simulated": True, "rehearsal": False}
REHEARSAL = {"simulated": True, "rehearsal": True}


@pytest.mark.parametrize("other", [SIMULATED, REHEARSAL])
def test_measurements_are_not_compared_with_what_is_none(other):
    for pair in ((REAL, other), (other, REAL), (REAL, REAL, other)):
        with pytest.raises(RecipeError, match="say nothing beside measurements"):
            compare([run(**kind) for kind in pair])


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((SIMULATED, SIMULATED), "SIMULATED ENGINE: NO FIGURE"),
        ((REHEARSAL, REHEARSAL), "REHEARSAL ON THE SIMULATED ENGINE: NO FIGURE"),
        ((SIMULATED, REHEARSAL), "SIMULATED ENGINE: NO FIGURE"),
    ],
)
def test_what_is_no_measurement_says_so_in_capitals(kinds, said):
    found = compare([run(**kind) for kind in kinds])
    assert said in compare_text.render(found)
    assert "banner warn" in compare_page.render_page(found)


def test_what_is_worse():
    other = run()
    put(other["points"][0], "tpot_ms.mean", BASE["points"][0]["tpot_ms"]["mean"] * 1.08)
    other["points"][1] |= {"valid": False, "reasons": ["3 of 12 requests failed"]}
    del other["points"][2]
    found = compare([BASE, other])
    said = [(item.label, item.point, item.what) for item in worse(found, 5)]
    assert said == [
        ("B", C1, "TPOT mean +8.0 %"),
        ("B", C2, "invalid: 3 of 12 requests failed"),
        ("B", C8, "not measured"),
    ]
    assert [item.what for item in worse(found, 10)] == ["invalid: 3 of 12 requests failed", "not measured"]
    # What did not count in the first run cannot become worse.
    assert worse(compare([other, BASE]), 5) == []


def test_many_runs_stand_beside_each_other_a_few_at_a_time():
    text = compare_text.render(compare([run(f"run-{number}") for number in range(9)]), 120)
    assert max(map(len, text.splitlines())) <= 120
    assert "I to A: " in text


def test_plain_data_holds_everything():
    other = run(gpus={**BASE["gpus"], "working": 8})
    data = json.loads(json.dumps(to_json(compare([BASE, other], [Change("a.b", (1, ABSENT))], ["x"])), allow_nan=False))
    assert data["conditions"] == [{"field": "a.b", "values": [1, None], "absent": [1]}]
    first = data["points"][0]
    assert first["metrics"]["ttft_ms.mean"]["better"] == "lower"
    assert first["metrics"]["output_tps"]["not_comparable"][1].startswith("of 4 of 8")
    assert data["points"][3]["valid"] == [False, False]
    assert data["points"][3]["metrics"] == {}


def test_the_page_escapes_and_balances():
    evil = run("<script>alert(1)</script>")
    page = compare_page.render_page(compare([BASE, evil], [Change("a", ("<b>", "&"))]))
    assert "<script>alert" not in page
    open_: list[str] = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "br", "hr", "col"):
                open_.append(tag)

        def handle_endtag(self, tag):
            assert open_.pop() == tag

    Parser().feed(page)
    assert open_ == []


# --- what differs ----------------------------------------------------------------------------------------------------


def test_fields_that_differ():
    one = {"a": {"b": 1, "c": True, "e": {}}, "l": [1, 2], "n": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]}
    two = {"a": {"b": 1.0, "c": 1, "d.e": None}, "l": [2, 1], "n": [{"name": "y", "v": 3}, {"name": "z"}]}
    assert changes([one, two]) == [
        Change("a.c", (True, 1)),
        Change('a."d.e"', (ABSENT, None)),
        Change("l", ([1, 2], [2, 1])),
        Change("n.x", ({"v": 1}, ABSENT)),
        Change("n.y.v", (2, 3)),
        Change("n.z", (ABSENT, {})),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_nothing_differs_from_itself_and_what_differs_is_seen(one, two):
    assert changes([one, copy.deepcopy(one)]) == []
    found = changes([one, two])
    assert [Change(item.field, item.values[::-1]) for item in sorted(found, key=lambda item: item.field)] == sorted(
        changes([two, one]), key=lambda item: item.field
    )
