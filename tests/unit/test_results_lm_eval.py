"""lm-evaluation-harness's output, recorded from 0.4.13 on the simulated engine, and what is made of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.plan import lm_eval as planned
from recipe_toolkit.plan.model import Accuracy, plan_from_json
from recipe_toolkit.report.compare import compare, to_json, worse
from recipe_toolkit.report.page import render_page
from recipe_toolkit.report.published import against
from recipe_toolkit.report.table import render_table
from recipe_toolkit.results import lm_eval
from recipe_toolkit.results.collect import build_results, point_result
from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.lm_eval import read_lm_eval
from recipe_toolkit.results.model import PointResult, results_from_json
from results_support import DATA, check_schema, make_plan, make_point

OK = DATA / "lm-eval" / "ok"


def changed(folder: Path, scores: dict[str, float] | None = None, answers: list[str] | None = None, **top: Any) -> Path:
    """The recorded output with other scores of its task, other answers, or other fields at its top."""
    shutil.copytree(OK, folder, dirs_exist_ok=True)
    (path,) = folder.glob(lm_eval.RESULTS)
    data = json.loads(path.read_text())
    data["results"]["tiny_sums"].update(scores or {})
    path.write_text(json.dumps({**data, **top}))
    if answers is not None:
        (samples,) = folder.glob(lm_eval.SAMPLES)
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        rows = [row for row in rows if row["doc_id"] < len(answers)]
        for row in rows:
            row["resps"] = [[answers[row["doc_id"]]]]
        samples.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def asked(engine: str = "vllm", **minimum: float) -> tuple[Any, Any]:
    point = make_point(
        "lm-eval",
        client="lm-eval",
        isl=None,
        osl=None,
        requests=None,
        warmup=None,
        accuracy=Accuracy(("tiny_sums",), 4, minimum),
    )
    return make_plan(point, engine=engine), point


def scored(folder: Path, engine: str = "vllm", code: int = 0, **minimum: float) -> PointResult:
    plan, point = asked(engine, **minimum)
    return point_result(plan, point, folder, code, 20.0, {})


def run(folder: Path, score: float, stderr: float, published: float | None = None, **top: Any) -> dict[str, Any]:
    """A run whose only point has this score, as shares."""
    name = "flexible-extract"
    shares = {f"exact_match,{name}": score, f"exact_match_stderr,{name}": stderr}
    plan, point = asked()
    result = point_result(plan, point, changed(folder, shares, **top), 0, 20.0, {})
    data = build_results(plan, "run", "done", [result], {}).to_json()
    return {**data, "published": [] if published is None else [{"accuracy": {"tiny-sums": published}}]}


def test_the_file_that_is_asked_for_is_the_one_that_is_read() -> None:
    stem, _, suffix = planned.OUTPUT.partition(".")
    assert f"{stem}_*.{suffix}" == lm_eval.RESULTS


def test_scores_as_it_wrote_them() -> None:
    figures = read_lm_eval(OK)
    assert (figures.faults, figures.notes) == ((), ("4 of the 5 documents of tiny_sums",))
    assert (figures.version, figures.endpoint) == ("0.4.13", "chat")
    assert (figures.requests.ok, figures.requests.failed) == (4, 0)
    said = [(item.task, item.metric, item.filter, item.score, item.stderr, item.main) for item in figures.accuracy]
    assert said == [
        ("tiny_sums", "exact_match", "strict-match", 0, 0, False),
        ("tiny_sums", "exact_match", "flexible-extract", 0, 0, True),
    ]
    assert {(item.samples, item.task_version, item.num_fewshot) for item in figures.accuracy} == {(4, "1.0", 0)}


def test_shares_are_percent_and_what_is_no_share_is_left_alone(tmp_path: Path) -> None:
    scores = {"exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": 0.125, "word_perplexity,none": 12.5}
    top = {"higher_is_better": {"tiny_sums": {"exact_match": True, "word_perplexity": False}}}
    found = {item.metric + item.filter: item for item in read_lm_eval(changed(tmp_path, scores, **top)).accuracy}
    strict, other = found["exact_matchstrict-match"], found["word_perplexitynone"]
    assert (strict.score, strict.stderr, strict.unit) == (25, 12.5, "%")
    assert (other.score, other.stderr, other.unit, other.higher_is_better) == (12.5, None, "", False)


def test_a_group_counts_the_documents_of_the_tasks_inside_its_groups(tmp_path: Path) -> None:
    results = {"all": {"acc,none": 0.5, "acc_stderr,none": "N/A"}, "tiny_sums": {"acc,none": 0.5}}
    top = {"results": results, "group_subtasks": {"all": ["some"], "some": ["tiny_sums"]}}
    group = read_lm_eval(changed(tmp_path, **top)).accuracy[0]
    assert (group.task, group.score, group.stderr, group.samples, group.main) == ("all", 50, None, 4, True)


@pytest.mark.parametrize(
    ("minimum", "met", "reasons"),
    [
        ({"tiny_sums": 25}, True, []),
        (
            {"tiny_sums": 25.5},
            False,
            [
                "tiny_sums scored 25.00 ± 12.50 % (exact_match, flexible-extract, 4 documents), "
                "and at least 25.5 % is asked"
            ],
        ),
        (
            {"tiny_sums/exact_match,strict-match": 1},
            None,
            ["tiny_sums scored 0.00 ± 0.00 % (exact_match, strict-match"],
        ),
        ({"tiny_sums_b": 5}, None, ["no score for tiny_sums_b, of which at least 5 % is asked"]),
    ],
)
def test_a_threshold_is_a_verdict(
    tmp_path: Path, minimum: dict[str, float], met: bool | None, reasons: list[str]
) -> None:
    scores = {"exact_match,flexible-extract": 0.25, "exact_match_stderr,flexible-extract": 0.125}
    result = scored(changed(tmp_path, scores), **minimum)
    assert [item.met for item in result.accuracy if item.main] == [met]
    assert result.valid is not bool(reasons)
    assert len(result.reasons) == len(reasons)
    assert all(seen.startswith(said) for seen, said in zip(result.reasons, reasons, strict=True))


def test_simulated_answers_are_held_against_nothing() -> None:
    result = scored(OK, "sim", tiny_sums=50)
    assert (result.valid, [item.met for item in result.accuracy]) == (True, [None, None])
    assert any("answers are simulated" in note for note in result.notes)
    assert not scored(OK, "vllm", tiny_sums=50).valid


@pytest.mark.parametrize(
    ("answers", "faults"),
    [
        (["5", " 6", "7", "\n8"], []),
        (["5", " ", "7", ""], ["2 of 4 answers are empty, and counted as wrong"]),
        (["5", "6", "7"], ["tiny_sums: 4 documents were asked, and the samples hold 3"]),
    ],
)
def test_answers_that_are_empty_or_missing(tmp_path: Path, answers: list[str], faults: list[str]) -> None:
    assert list(read_lm_eval(changed(tmp_path, answers=answers)).faults) == faults


def test_one_empty_answer_of_many_is_a_note(tmp_path: Path) -> None:
    folder = changed(tmp_path, **{"n-samples": {"tiny_sums": {"original": 200, "effective": 200}}})
    (samples,) = folder.glob(lm_eval.SAMPLES)
    rows = [{"doc_id": index, "resps": [["" if index == 7 else "5"]]} for index in range(200)]
    samples.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    figures = read_lm_eval(folder)
    assert (figures.faults, figures.notes) == ((), ("1 of 200 answers are empty, and counted as wrong",))


@pytest.mark.parametrize(
    ("pattern", "text", "fault"),
    [
        (lm_eval.RESULTS, None, "the client wrote no lm_eval_*.json"),
        (lm_eval.RESULTS, "{", "lm_eval_*.json cannot be read"),
        (lm_eval.RESULTS, "[]", "holds no JSON object"),
        (lm_eval.RESULTS, '{"results": 5, "n-samples": [1]}', "lm_eval wrote no score"),
        (lm_eval.SAMPLES, None, "the client wrote no samples of tiny_sums"),
        (lm_eval.SAMPLES, "no json\n5\n", "2 lines are no samples"),
    ],
)
def test_broken_files_are_said(tmp_path: Path, pattern: str, text: str | None, fault: str) -> None:
    folder = changed(tmp_path)
    (path,) = folder.glob(pattern)
    path.unlink() if text is None else path.write_text(text)
    figures: Figures = read_lm_eval(folder)
    assert any(fault in said for said in figures.faults), figures.faults


def test_requests_that_failed_end_the_client(tmp_path: Path) -> None:
    result = scored(tmp_path, code=1)
    assert result.rules == ("client-failed", "client-files")
    assert result.reasons[1].startswith("the client wrote no lm_eval_*.json; ")


def test_results_with_scores_are_in_the_schema_and_come_back(tmp_path: Path) -> None:
    data = run(tmp_path, 0.95, 0.01)
    check_schema(data)
    assert results_from_json(data).to_json() == data
    without = build_results(make_plan(), "run", "done", [], {}).to_json()
    assert "accuracy" not in json.dumps(without)


def test_a_plan_with_thresholds_comes_back() -> None:
    plan, _ = asked(tiny_sums=50)
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert "accuracy" not in json.dumps(make_plan().to_json())


def test_the_table_and_the_page_show_scores_apart(tmp_path: Path) -> None:
    shares = {"exact_match,flexible-extract": 0.75, "exact_match_stderr,flexible-extract": 0.0123}
    plan, point = asked(tiny_sums=80)
    result = point_result(plan, point, changed(tmp_path, shares), 0, 20.0, {})
    data = build_results(plan, "run", "done", [result], {}).to_json()
    table = render_table(data)
    assert "! lm-eval   tiny_sums  exact_match  flexible-extract  75.0 ± 1.23 %" in table
    assert "≥ 80 %  missed" in table
    assert "TTFT" not in table
    assert "<h3>Accuracy" not in render_page(data)  # the reason says the score of an invalid point
    plan, point = asked(tiny_sums=70)
    result = point_result(plan, point, tmp_path, 0, 20.0, {})
    page = render_page(build_results(plan, "run", "done", [result], {}).to_json())
    assert "75.0 ± 1.23 %" in page
    assert "<td>met</td>" in page


@pytest.mark.parametrize(
    ("score", "stderr", "verdict"),
    [
        (0.95, 0.01, "same"),
        (0.94, 0.01, "same"),  # within sqrt(2) percentage points, the standard error of the difference
        (0.93, 0.01, "worse"),
        (0.97, 0.01, "better"),
        (0.94, 0.0, "same"),
    ],
)
def test_scores_are_compared_within_their_errors(tmp_path: Path, score: float, stderr: float, verdict: str) -> None:
    found = compare([run(tmp_path / "a", 0.95, 0.01), run(tmp_path / "b", score, stderr)], metrics=())
    (match,) = found.matches
    row = next(row for row in match.rows if row.metric.path == "accuracy.tiny_sums/exact_match,flexible-extract")
    assert row.differences[1] is not None
    assert (row.values, row.differences[1].verdict) == ((95, pytest.approx(score * 100)), verdict)
    assert bool(worse(found, 1)) is (verdict == "worse")
    assert "accuracy.tiny_sums/exact_match,strict-match" in to_json(found)["points"][0]["metrics"]


@pytest.mark.parametrize(
    ("top", "why"),
    [
        ({"versions": {"tiny_sums": 2.0}}, "other versions of the task: 1.0 and 2.0"),
        ({"n-shot": {"tiny_sums": 5}}, "other shots: 0 and 5"),
        ({"n-samples": {"tiny_sums": {"original": 5, "effective": 5}}}, "other documents: 4 and 5"),
    ],
)
def test_scores_of_other_questions_are_not_comparable(tmp_path: Path, top: dict[str, Any], why: str) -> None:
    one, other = run(tmp_path / "a", 0.95, 0.01), run(tmp_path / "b", 0.5, 0.01, **top)
    other["points"][0] |= {"valid": True, "reasons": []}
    (match,) = compare([one, other], metrics=()).matches
    assert {row.differences[1].why_not for row in match.rows if row.differences[1]} == {why}


def test_another_load_asks_the_same_questions(tmp_path: Path) -> None:
    one, other = run(tmp_path / "a", 0.95, 0.01), run(tmp_path / "b", 0.95, 0.01)
    other["points"][0]["concurrency"] = 64
    (match,) = compare([one, other], metrics=()).matches
    assert match.why_not == (None, None)


@pytest.mark.parametrize(
    ("score", "stderr", "verdict"),
    [
        (0.95, 0.005, "reproduced"),
        (0.942, 0.001, "reproduced"),
        (0.93, 0.001, "worse"),
        (0.93, 0.02, "reproduced"),
        (0.99, 0.001, "better"),
    ],
)
def test_a_published_score_is_held_against_the_tasks(tmp_path: Path, score: float, stderr: float, verdict: str) -> None:
    (found,) = against(run(tmp_path, score, stderr, published=95))
    assert (found.verdict, found.point, found.seen) == (verdict, "lm-eval", pytest.approx(score * 100))
    assert found.why == "exact_match, flexible-extract, 0 shots, 4 documents"


def test_a_published_score_without_its_task_or_of_an_invalid_point(tmp_path: Path) -> None:
    data = run(tmp_path, 0.95, 0.005)
    data["published"] = [{"accuracy": {"gpqa": 90, "tiny_sums/exact_match,strict-match": 50}}]
    assert [(item.verdict, item.why) for item in against(data)] == [
        ("not comparable", "gpqa was not measured"),
        ("worse", "exact_match, strict-match, 0 shots, 4 documents"),
    ]
    data["points"][0] |= {"valid": False, "reasons": ["it is so"]}
    assert against(data)[1].why == "the point is invalid: it is so"
