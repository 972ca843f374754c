"""InferenceX's rows, read and written: denominators, units, and what only looks like our figures."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from recipe_toolkit.results.as_published import published
from recipe_toolkit.results.inferencex.read import RowError, is_rows, read_rows
from recipe_toolkit.results.inferencex.write import write_rows
from recipe_toolkit.results.model import Results, results_from_json
from results_support import DATA, check_schema, make_run

FOLDER = DATA / "inferencex"
FILES = sorted(FOLDER.glob("*.json"))


def rows_of(name: str) -> list[dict[str, Any]]:
    data = json.loads((FOLDER / f"{name}.json").read_text())
    return data if isinstance(data, list) else [data]


def read(*rows: dict[str, Any]) -> Results:
    (found,) = read_rows(list(rows), "rows.json")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_become_results_of_our_schema(path: Any) -> None:
    (results,) = read_rows(json.loads(path.read_text()), path.name)
    document = results.to_json()
    check_schema(document)
    assert results_from_json(document) == results
    assert results.valid
    assert {point.client.name for point in results.points} == {"vllm-bench"}


def test_seconds_are_milliseconds_here_and_a_node_has_one_denominator() -> None:
    (row,) = rows_of("kimi-k2.5-mi300x")
    results = read(row)
    (point,) = results.points
    assert (results.gpus.name, results.gpus.working, results.gpus.by_role) == ("mi300x", 8, {"serve": 8})
    assert (results.engine, results.model) == ("vllm", "moonshotai/Kimi-K2.5")
    assert (point.id, point.concurrency) == ("1024x1024-c128", 128)
    assert point.ttft_ms is not None
    assert point.ttft_ms.mean == pytest.approx(2840.227)
    assert point.ttft_ms.p99 == pytest.approx(10016.43)
    assert point.ttft_ms.p90 is None
    assert point.output_tps == pytest.approx(8 * 130.2153)
    assert point.total_tps_per_gpu.working == pytest.approx(260.4305)
    # 1000 / median TPOT is its median_intvty; its std_intvty stands nowhere.
    assert point.output_tps_per_user.from_median_tpot == pytest.approx(row["median_intvty"])
    assert row["std_intvty"] > 2 * row["mean_intvty"]


def test_roles_have_denominators_of_their_own() -> None:
    results = read(*rows_of("dsr1-gb200-pd"))
    (point,) = results.points
    assert results.gpus.by_role == {"prefill": 20, "decode": 8}
    assert (point.total_tps, point.output_tps, point.input_tps) == pytest.approx((15000.5, 12000.0, 3000.5))
    assert point.output_tps_per_gpu.working == pytest.approx(12000 / 28)
    assert point.output_tps_per_gpu.by_role["decode"] == pytest.approx(1500)
    assert point.input_tps_per_gpu.by_role["prefill"] == pytest.approx(150.025)
    assert point.notes[:-1] == ()
    shape = results.layout["prefill"]
    assert (shape.instances, shape.tp, shape.dp, shape.ep) == (5, 1, 4, True)
    assert (results.engine, results.engine_version) == ("other", "dynamo-trt")


def test_the_other_denominator_is_taken_where_a_row_says_so_or_only_it_adds_up() -> None:
    """summarize.py knows rows whose output_tput_per_gpu is over all GPUs, beside output_tput_per_decode_gpu."""
    (row,) = rows_of("dsr1-gb200-pd")
    over_all = {**row, "output_tput_per_gpu": 12000 / 28, "input_tput_per_gpu": 3000.5 / 28}
    for changed in ({**over_all, "output_tput_per_decode_gpu": 1500.0}, over_all):
        (point,) = read(changed).points
        assert (point.output_tps, point.input_tps) == pytest.approx((12000.0, 3000.5))
    assert point.notes[0].startswith("its output_tput_per_gpu is over all GPUs")
    (odd,) = read({**row, "output_tput_per_gpu": 9.0}).points
    assert odd.notes[0].startswith("its rates of input, output and both do not add up")


def test_several_nodes_without_roles_are_its_prefill_gpus() -> None:
    (row,) = rows_of("dsr1-gb200-pd")
    rates = {"tput_per_gpu": 1000.0, "output_tput_per_gpu": 400.0, "input_tput_per_gpu": 600.0}
    results = read({**row, "disagg": False, "num_prefill_gpu": 16, "num_decode_gpu": 0, **rates})
    assert results.gpus.by_role == {"serve": 16}
    assert results.points[0].output_tps == 6400


@pytest.mark.parametrize("name", ["glm-4.7-gaudi3", "kimi-k2.5-mi300x", "dsr1-gb200-pd"])
def test_there_and_back(name: str) -> None:
    """What is read and written again says the same, as far as a row and a result both say it."""
    rows = rows_of(name)
    results = read(*rows).to_json()
    said = {"precision": rows[0]["precision"], "spec_decoding": rows[0]["spec_decoding"]}
    again, left = write_rows(results, said)
    assert left == []
    for one, other in zip([{**row, **row.get("metrics", {})} for row in rows], again, strict=True):
        shared = set(one) & set(other) - {"image", "framework", "disagg", "is_multinode", "infmax_model_prefix"}
        assert len(shared) >= 20
        for key in shared:
            if isinstance(one[key], (int, float)) and not isinstance(one[key], bool):
                # Their published rows are rounded to four digits.
                assert other[key] == pytest.approx(one[key], rel=2e-3), key
            else:
                assert str(other[key]).lower() == str(one[key]).lower(), key
        assert str(other["is_multinode"]).lower() == str(one["is_multinode"]).lower()
        assert "std_intvty" not in other
    (once_more,) = read_rows(again, "rows.json")
    first = read(*rows)
    assert [point.total_tps for point in once_more.points] == pytest.approx([p.total_tps for p in first.points])
    assert once_more.layout == first.layout


def test_our_run_as_rows() -> None:
    _, results = make_run()
    document = results.to_json()
    rows, left = write_rows(document, {"hw": "h200-sxm", "precision": "fp8"})
    assert [line.split(":")[0] for line in left] == ["isl64-osl16-c32"]
    assert [row["conc"] for row in rows] == [1, 2, 8, 128]
    row, point = rows[0], document["points"][0]
    assert (row["hw"], row["precision"], row["disagg"], row["is_multinode"]) == ("h200-sxm", "fp8", True, True)
    assert (row["num_prefill_gpu"], row["num_decode_gpu"], row["decode_tp"], row["decode_dp_attention"]) == (
        2,
        2,
        2,
        "true",
    )
    assert row["output_tput_per_gpu"] == point["output_tps"] / 2
    assert row["tput_per_gpu"] == point["total_tps"] / 4
    assert row["mean_ttft"] == point["ttft_ms"]["mean"] / 1000
    for part, ours in (("mean", "mean"), ("median", "p50"), ("p99", "p99")):
        assert row[f"{part}_intvty"] == 1000 / point["tpot_ms"][ours]
    (back,) = read_rows(rows, "rows.json")
    assert back.points[0].output_tps == pytest.approx(point["output_tps"])
    assert back.points[0].requests.ok == 12
    assert is_rows(rows)
    assert not is_rows(document)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"conc": None}, "row 0: conc is None, and a number of 1 or more is wanted"),
        ({"isl": "long"}, "row 0: isl is 'long', and a number of 1 or more is wanted"),
        ({"model": 3}, "row 0: model is 3, and a name is wanted"),
        ({"tp": None}, "row 0: tp is None, and a size is wanted"),
        ({"scenario_type": "agentic-coding"}, "row 0: of an agentic trace"),
        ({"is_multinode": True}, "row 0: is_multinode, and num_prefill_gpu and num_decode_gpu do not say its GPUs"),
    ],
)
def test_what_is_no_row_says_why(change: dict[str, Any], said: str) -> None:
    (row,) = rows_of("kimi-k2.5-mi300x")
    with pytest.raises(RowError, match=f"^{said}"):
        read({**row, **change})


@pytest.mark.parametrize("data", [None, [], {}, 3, "x", [3], [{"conc": 1, "framework": "vllm"}, 3]])
def test_what_is_no_document_of_rows(data: Any) -> None:
    with pytest.raises(RowError):
        read_rows(data, "x")


def test_every_field_of_another_kind_is_read_or_refused() -> None:
    for name in ("glm-4.7-gaudi3", "kimi-k2.5-mi300x", "dsr1-gb200-pd"):
        row = rows_of(name)[0]
        for key in row:
            for value in (None, -1, "x", [3], {"x": 1}, True, 1e308, 10**30):
                changed = copy.deepcopy(row)
                changed[key] = value
                try:
                    found = read_rows([changed], "x")
                except RowError:
                    continue
                check_schema(found[0].to_json())


def test_a_failed_outcome_is_no_good_point() -> None:
    (row,) = rows_of("kimi-k2.5-mi300x")
    results = read({**row, "benchmark_outcome": {"status": "failed", "requested": 1280, "completed": 1279}})
    assert (results.valid, results.points[0].rules) == (False, ("requests-failed",))
    assert results.points[0].reasons[0].startswith("1 of 1280 requests failed; ")
    assert published(results.to_json()) == []


def test_as_items_of_published() -> None:
    items = published(read(*rows_of("dsr1-gb200-pd")).to_json(), "https://inferencex.example")
    (item,) = items
    assert (item["client"], item["isl"], item["concurrency"], item["per_gpu"]) == ("vllm-bench", 1024, 64, "working")
    assert item["metrics"]["output_tps_per_gpu"] == pytest.approx(12000 / 28)
    assert item["metrics"]["ttft_p50_ms"] == pytest.approx(150.5)
    assert item["metrics"]["tps_per_user"] == pytest.approx(40)
    assert item["url"] == "https://inferencex.example"
    assert item["note"].startswith("deepseek-ai/DeepSeek-R1-0528 on 28 gb200; ")
