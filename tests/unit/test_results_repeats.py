"""Points that are measured more than once."""

from __future__ import annotations

import dataclasses
import math

from plankit import plan_of
from recipe_toolkit.plan.model import plan_from_json
from recipe_toolkit.report.compare import compare
from recipe_toolkit.report.table import render_table
from recipe_toolkit.results.collect import build_results, point_result
from recipe_toolkit.results.repeats import PATHS, at, joined, spreads
from results_support import DATA, check_schema, make_plan, make_point


def test_each_load_is_measured_round_by_round_with_prompts_of_its_own() -> None:
    once = plan_of("vllm-bench")
    again = plan_of("vllm-bench", "benchmarks.0.repeats=3")
    name = once.benchmarks[0].id
    base = [point.id for point in once.benchmarks if point.id.startswith(once.benchmarks[0].id.rpartition("-")[0])]
    own = [point for point in again.benchmarks if point.repeat_of in base]
    assert [point.id for point in own] == [f"{load}-rep{number}" for number in (1, 2, 3) for load in base]
    first = [point for point in own if point.repeat_of == name]
    assert [point.repeat for point in first] == [1, 2, 3]
    assert len({point.process.argv[point.process.argv.index("--seed") + 1] for point in first}) == 3
    assert len({point.artifacts for point in own}) == len(own)
    assert once.benchmarks[0].repeat_of is None
    assert plan_from_json(again.to_json()) == again


def repeats(*factors: float):
    points = [make_point(f"c2-rep{k}", repeat_of="c2", repeat=k) for k in range(1, len(factors) + 1)]
    plan = make_plan(*points)
    found = []
    for point, factor in zip(points, factors, strict=True):
        result = point_result(plan, point, DATA / "aiperf" / "ok", 0, 9.0, {})
        assert result.output_tps
        found.append(dataclasses.replace(result, output_tps=result.output_tps * factor))
    return plan, found


def test_the_spread_is_that_of_a_sample() -> None:
    plan, found = repeats(1.0, 1.1, 1.2)
    results = build_results(plan, "run-1", "done", found)
    check_schema(results.to_json())
    (one,) = results.spread
    assert (one.repeat_of, one.points, one.valid) == ("c2", ("c2-rep1", "c2-rep2", "c2-rep3"), 3)
    base = found[0].output_tps
    assert base
    metric = one.metrics["output_tps"]
    assert math.isclose(metric["mean"], base * 1.1)
    assert math.isclose(metric["stdev"], base * 0.1)
    assert (metric["min"], metric["max"]) == (base, base * 1.2)
    assert one.metrics["ttft_ms.mean"]["stdev"] == 0


def test_an_invalid_repeat_is_counted_and_adds_nothing() -> None:
    _, found = repeats(1.0, 1.1, 9.0)
    found[2] = dataclasses.replace(found[2], valid=False, reasons=("it is bad",))
    (one,) = spreads(found)
    assert one.valid == 2
    assert one.metrics["output_tps"]["max"] < 2 * (found[0].output_tps or 0)
    (alone,) = spreads([found[0], found[2]])
    assert (alone.valid, alone.metrics) == (1, {})


def test_points_that_were_measured_once_have_none() -> None:
    _, found = repeats(1.0)
    assert spreads(found) == ()
    assert spreads([dataclasses.replace(found[0], repeat_of=None)]) == ()


def test_every_path_leads_to_a_figure() -> None:
    _, (result,) = repeats(1.0)
    measured = dataclasses.asdict(dataclasses.replace(result, goodput_rps=1.0, good_request_ratio=1.0))
    assert [path for path in PATHS if at(measured, path) is None] == []


def run_of(*factors: float):
    plan, found = repeats(*factors)
    return build_results(plan, "run-1", "done", found).to_json()


def test_repeats_are_one_point_beside_another_run() -> None:
    base, other = run_of(1.0, 1.02, 0.98), run_of(1.01, 1.03, 0.99)
    (match,) = compare([base, other]).matches
    (row,) = [row for row in match.rows if row.metric.path == "output_tps"]
    assert match.point["id"] == "c2"
    # One percent more, where each run's own repeats lie two percent apart.
    assert row.differences[1] is not None
    assert (round(row.differences[1].percent or 0, 3), row.differences[1].verdict) == (1.0, "same")
    (match,) = compare([base, run_of(1.1, 1.12, 1.08)]).matches
    (row,) = [row for row in match.rows if row.metric.path == "output_tps"]
    assert row.differences[1] is not None
    assert row.differences[1].verdict == "better"
    assert "mean of 3 of 3 repeats" in match.point["notes"]


def test_invalid_repeats_are_left_out_of_the_mean() -> None:
    document = run_of(1.0, 3.0)
    document["points"][1].update(valid=False, reasons=["it is bad"], rules=["client-files"])
    (one,) = joined(document["points"])
    assert one["output_tps"] == document["points"][0]["output_tps"]
    assert one["valid"]
    document["points"][0].update(valid=False, reasons=["it is bad"], rules=["client-files"])
    (none,) = joined(document["points"])
    assert (none["valid"], none["reasons"]) == (False, ["it is bad"])


def test_the_table_has_the_spread_with_the_wait_beside_the_speed() -> None:
    text = render_table(run_of(1.0, 1.1, 1.2))
    block = text.split("repeats: mean ± standard deviation\n")[1].splitlines()
    assert block[0].split()[:2] == ["TTFT", "ms"]
    assert block[2].split()[:2] == ["c2", "3/3"]
    assert " ± " in block[2]
    assert "± standard" not in render_table(run_of(1.0))
