"""A recipe's search: what is refused, all at once; its plan; a point of it; how it is told."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plankit import bindings, plan_of
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.model import Plan, Point
from recipe_toolkit.plan.search import asked, clients, most_points
from recipe_toolkit.plan.values import Asked
from recipe_toolkit.recipe_data import build_recipe, recipe_data
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.report import compare_text, sweep_table
from recipe_toolkit.report.compare import compare
from recipe_toolkit.report.sweep_table import Part
from recipe_toolkit.report.table import render_table
from recipe_toolkit.results.collect import build_results
from recipe_toolkit.results.search.decide import Stop, decide
from recipe_toolkit.results.search.loads import Sample
from recipe_toolkit.results.search.sample import sample
from recipe_toolkit.results.search.story import found_so_far
from recipe_toolkit.rundir import RunDir, write_json
from recipe_toolkit.submit.progress import ProgressReader
from recipe_toolkit.sweep.load import Findings, chosen, load_sweep
from results_support import check_schema, make_run

HEAD = """schema: 1
name: bad
model: {path: /shared/models/tiny, served_name: m}
engine: {kind: vllm, version: "0.32.0", args: {max-num-seqs: 16}}
resources: {gpu: H200, gpus_per_node: 1}
roles: {serve: {}}
benchmarks:
"""
A = "  - {client: aiperf, name: %s, isl: 10, osl: 10, %s}\n"
OVER = "search: {over: concurrency, from: %s, to: %s%s}"


def said(folder: Path, *benchmarks: str, slo: str = "{tpot_mean_ms: 20}") -> list[str]:
    path = folder / "r.yaml"
    path.write_text(HEAD + "".join(benchmarks) + f"slo: {slo}\n")
    try:
        return [f"{item.field}: {item.message}" for item in load_recipe(path).warnings]
    except InputError as error:
        return [f"{item.field}: {item.message}" for item in error.problems if item.line]


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    found = said(
        tmp_path,
        A % ("a", "concurrency: [1], repeats: 2, requests_per_concurrency: 10, " + OVER % (8, 8, "")),
        A % ("b", "max_concurrency: 5, requests: 12, " + OVER % (1.5, 64, ", maximize: goodput")),
        A
        % (
            "c",
            "search: {over: request_rate, from: 0.001, to: 8, deadline: 2h}, requests: 50, warmup_per_concurrency: 2",
        ),
        '  - {client: command, name: d-c8-rep1, command: ["true"]}\n',
        A % ("d", "requests_per_concurrency: 2, " + OVER % (1, 4, "")),
        slo="{ttft_p99_s: 1}",
    )
    assert found == [
        "benchmarks.0.concurrency: the search chooses the loads",
        "benchmarks.0.repeats: the search repeats where it has to",
        "benchmarks.0.requests_per_concurrency: 80 requests at concurrency 8 cannot show slo.ttft_p99_s, which "
        "needs 1000",
        "benchmarks.0.search.to: the range from 8 to 8 is empty",
        "benchmarks.1.max_concurrency: the search sets how many are in flight",
        "benchmarks.1.requests: 12 requests at concurrency 1.5 cannot show slo.ttft_p99_s, which needs 1000",
        "benchmarks.1.requests: 12 requests never reach concurrency 64",
        "benchmarks.1.search.from: 1.5 is no number of requests in flight",
        "benchmarks.1.search.maximize: goodput counts the requests that meet slo.ttft_s, slo.tpot_ms or slo.e2e_s, and "
        "none is given",
        "benchmarks.2.search.from: 50 requests at 0.001 a second take 50000 s, and the point may take 3600 s",
        "benchmarks.2.search.deadline: 7200 s are more than the time_limit of the job, 3600 s",
        "benchmarks.2.requests: 50 requests at rate 0.001 cannot show slo.ttft_p99_s, which needs 1000",
        "benchmarks.2.warmup_per_concurrency: there is no concurrency to multiply",
        "benchmarks.3.name: d-c8-rep1 may also be a point of the search benchmarks.4",
        "benchmarks.4.requests_per_concurrency: 2 requests at concurrency 1 cannot show slo.ttft_p99_s, which "
        "needs 1000",
    ]


def test_no_bound_is_refused(tmp_path: Path) -> None:
    (only,) = said(tmp_path, A % ("a", "requests_per_concurrency: 2, " + OVER % (1, 16, "")), slo="{ttft_s: 1}")
    assert only == "benchmarks.0.search: there is no bound to look for: slo bounds no mean and no percentile"


def test_what_the_engine_cannot_hold_is_told(tmp_path: Path) -> None:
    assert said(tmp_path, A % ("a", "requests_per_concurrency: 2, " + OVER % (1, 16, ""))) == []
    (only,) = said(tmp_path, A % ("a", "requests_per_concurrency: 2, " + OVER % (1, 64, "")))
    assert "16 is below the 64 requests that each rank of serve has at concurrency 64" in only


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("over: users, from: 1, to: 8", "users"),
        ("over: concurrency, to: 8", "missing"),
        ("over: concurrency, from: 1, to: 8, repeats: 0", "0"),
        ("over: concurrency, from: 1, to: 8, confidence: 1", "1"),
        ("over: concurrency, from: 1, to: 8, resolutoin: 1", "unknown"),
    ],
)
def test_the_schema_refuses(tmp_path: Path, change: str, message: str) -> None:
    (only,) = said(tmp_path, A % ("a", f"requests_per_concurrency: 2, search: {{{change}}}"))
    assert message in only
    assert only.startswith("benchmarks.0.search")


def test_a_recipe_comes_back_as_it_was() -> None:
    recipe = load_recipe(Path(__file__).parents[1] / "data" / "recipes" / "search.yaml").recipe
    assert build_recipe(recipe_data(recipe)) == recipe
    assert recipe_data(recipe)["benchmarks"][1]["search"] == {
        "over": "request_rate",
        "from": 0.5,
        "to": 16,
        "maximize": "total_tps_per_gpu",
        "repeats": 5,
        "resolution": 0.1,
        "confidence": 0.9,
        "points": 40,
        "deadline": 1800,
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("search")


def words(plan: Plan, point: Point) -> dict[str, str]:
    """Flag to value of the bound command."""
    argv = bind_process(point.process, bindings(plan)).argv
    return dict(pairwise(argv))


def test_one_of_its_points(plan: Plan) -> None:
    concurrency, rate, _ = plan.benchmarks
    one = asked(concurrency, 48.0, 2)
    assert (one.id, one.repeat_of, one.repeat) == ("aiperf-1024x128-c48-rep2", "aiperf-1024x128-c48", 2)
    assert (one.concurrency, one.request_rate, one.requests, one.warmup, one.search) == (48, None, 4800, 96, None)
    said = words(plan, one)
    assert (said["--concurrency"], said["--request-count"], said["--warmup-request-count"]) == ("48", "4800", "96")
    assert said["--num-dataset-entries"] == "4896"
    assert said["--artifact-dir"].endswith("/bench/aiperf-1024x128-c48-rep2")
    other = words(plan, asked(concurrency, 48.0, 1))
    assert other["--random-seed"] != said["--random-seed"]
    slow = words(plan, asked(rate, 0.62, 1))
    assert (slow["--request-rate"], slow["--num-prompts"], slow["--max-concurrency"]) == ("0.62", "500", "256")
    assert asked(rate, 0.62, 1).id == "rate-r0.62-rep1"


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_in_a_container_too(name: str) -> None:
    plan = plan_of(name, "benchmarks.0={client: aiperf, isl: 10, osl: 10, requests_per_concurrency: 2, "
                   "search: {over: concurrency, from: 1, to: 8}}", "slo={tpot_mean_ms: 20}")  # fmt: skip
    point = next(item for item in plan.benchmarks if item.search)
    argv = bind_process(asked(point, 4.0, 1).process, bindings(plan)).argv
    assert f"{bindings(plan).run_folder}/bench/{point.id}-c4-rep1" in argv
    assert not any(word.endswith(f"/bench/{point.id}") for word in argv)


def test_no_number_is_left_open_in_a_client(plan: Plan) -> None:
    for process in clients(plan):
        bind_process(process, bindings(plan))
    assert any(isinstance(word, Asked) for word in plan.benchmarks[0].process.argv)
    with pytest.raises(KeyError, match="which concurrency the search asks for"):
        bind_process(plan.benchmarks[0].process, bindings(plan))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 50), st.integers(2, 4000), st.floats(0.01, 0.5), st.integers(1, 5), st.integers(1, 5000))
def test_the_points_that_it_may_take_suffice_without_noise(
    least: int, times: int, resolution: float, repeats: int, knee: int
) -> None:
    (point, *_) = plan_of("search").benchmarks
    assert point.search is not None
    most = float(least * times)
    points = most_points(least, most, resolution, repeats, "total_tps_per_gpu")
    wanted = dataclasses.replace(
        point.search, least=float(least), most=most, resolution=resolution, repeats=repeats, points=points,
        bounds={"ttft_mean_s": 2.5},
    )  # fmt: skip
    history: list[Sample] = []
    while not isinstance(step := decide(wanted, history), Stop):
        seen = {"ttft_mean_s": 2.5 * step.load / knee}
        history.append(Sample(f"{step.load}-{step.repeat}", step.load, True, seen, step.load, 1.0))
    assert step.outcome != "stopped"


# Told


def searched() -> dict[str, Any]:
    """Results of a run with a search of which one point was bad."""
    (point, *_) = plan_of("search").benchmarks
    assert point.search is not None
    wanted = dataclasses.replace(point.search, bounds={"ttft_mean_s": 2.5, "tpot_mean_ms": 20.0}, least=16.0)
    plan, results = make_run()
    first = results.points[0]
    history, points = [], []
    while not isinstance(step := decide(wanted, history), Stop):
        one = asked(point, step.load, step.repeat)
        assert first.ttft_ms is not None
        assert first.tpot_ms is not None
        times = 3.0 if one.id.endswith("c64-rep1") else 1 + 0.001 * step.repeat
        result = dataclasses.replace(
            first, id=one.id, concurrency=one.concurrency, repeat_of=one.repeat_of, repeat=one.repeat, client_s=60.0,
            ttft_ms=dataclasses.replace(first.ttft_ms, mean=times * step.load * 10),
            tpot_ms=dataclasses.replace(first.tpot_ms, mean=times * step.load / 5),
        )  # fmt: skip
        points.append(result)
        history.append(sample(wanted, step.load, result))
    found = found_so_far(point.id, wanted, history)
    plan = dataclasses.replace(plan, benchmarks=(dataclasses.replace(point, search=wanted),))
    document = build_results(plan, "run-1", "done", points, search=[found]).to_json()
    check_schema(document)
    assert document["valid"] is True
    return document


def test_the_table_tells_the_answer_the_knee_and_the_loads() -> None:
    table = render_table(searched(), 120)
    told = table[table.index("search ") :].splitlines()
    assert told[0] == "search aiperf-1024x128 over concurrency: found"
    assert told[1].startswith("  answer: c 99 gives ")
    assert "mean TTFT 0.991 s, mean TPOT 19.8 ms" in told[1]
    assert told[2].startswith("  knee: between c 99 and c 103, which misses mean TPOT; confidence 9")
    assert "of at most 33 points" in told[3]
    assert any("left out" in line and "c64-rep1" in line for line in told)
    rows = {line.split()[1]: line for line in told if line.strip().startswith("c ")}
    assert rows["16"].endswith("met?")
    assert rows["99"].endswith("  met")
    assert rows["103"].endswith("  missed")


def test_a_variant_of_a_sweep_shows_the_points_of_its_answer() -> None:
    document = searched()
    record = {"id": "a", "columns": {"tp": 2}, "values": {}, "points": ["aiperf-1024x128"]}
    part = Part(record, document)
    assert {point["concurrency"] for point in part.points} == {99}
    table = sweep_table.render("s-1", [part])
    assert "c 99" in table
    assert "c 16" not in table
    assert "not measured" not in table
    (search,) = document["search"]
    unanswered = {**document, "search": [{**search, "answer": None, "why": "concurrency 1 misses"}]}
    assert "a: search aiperf-1024x128 has no answer: concurrency 1 misses" in sweep_table.render(
        "s-1", [Part(record, unanswered)]
    )


def test_compare_holds_the_answers_against_each_other() -> None:
    one = searched()
    other = json.loads(json.dumps(one))
    other["run"] = "run-2"
    other["points"] = [point for point in one["points"] if point["concurrency"] != 103]
    (search,) = other["search"]
    search["answer"] |= {"load": 120, "objective": one["search"][0]["answer"]["objective"] * 1.25}
    said = compare_text.render(compare([one, other]))
    assert "  aiperf-1024x128: A c 99, " in said
    assert "  aiperf-1024x128: B c 120, " in said
    assert ", +25.0 %" in said
    assert "only in" not in said


def test_variants_that_differ_in_their_searches_alone_share_a_deployment(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    searching = A % ("a", "requests_per_concurrency: 20, " + OVER % (1, 16, ""))
    sweep = "sweep: {grid: {benchmarks.0.isl: [10, 20], engine.args.max-num-seqs: [16, 32]}}\n"
    path.write_text(HEAD + searching + "slo: {tpot_p50_ms: 20}\n" + sweep)
    loaded = load_recipe(path)
    findings = Findings()
    runs = load_sweep(loaded, chosen(loaded, None), findings)
    assert not findings.problems(4)
    assert [len(run.variants) for run in runs] == [2, 2]
    assert [run.points for run in runs] == [((0,), (1,))] * 2
    for run in runs:
        names = {item.name for item in run.recipe.recipe.benchmarks}
        assert len(names) == 2
        assert all(item.search is not None for item in run.recipe.recipe.benchmarks)


def test_progress_knows_how_many_requests_a_point_of_a_search_has(tmp_path: Path, plan: Plan) -> None:
    run = RunDir(tmp_path)
    write_json(run.plan, plan.to_json())
    reader = ProgressReader(run)
    points = ("aiperf-1024x128-c48-rep2", "rate-r0.62-rep1", "rate-r2-rep1", "goodput-c3-rep1", "other")
    assert [reader._requests(name) for name in points] == [4896, 500, 500, 1010, None]


def test_the_plan_is_data(plan: Plan) -> None:
    search = json.loads(json.dumps(plan.to_json()))["benchmarks"][0]["search"]
    assert (search["least"], search["most"], search["bounds"]) == (1, 256, {"ttft_mean_s": 2.5, "tpot_p90_ms": 20})
