"""What figures show, before anything draws them."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from figures_support import PUBLISHED, sample, scrape, searched
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report.figures import draw, frontier, latencies, search, series
from recipe_toolkit.report.figures.model import Figure, whole_spec
from recipe_toolkit.report.figures.samples import read_samples
from recipe_toolkit.report.page import render_page
from recipe_toolkit.report.plot import render_plot
from results_support import DATA, EVENTS, make_run


def results(**changes: Any) -> dict[str, Any]:
    return {**make_run()[1].to_json(), **changes}


def front(data: dict[str, Any], *more: frontier.Entry) -> Figure:
    drawn = frontier.figure([*frontier.entries(data), *more], [data])
    assert drawn is not None
    return drawn


# --- the frontier ----------------------------------------------------------------------------------------------------


def test_invalid_published_and_predicted_points_are_apart_and_on_no_frontier() -> None:
    predicted = frontier.Entry("", "2P+1D", "combined", "c 64", frontier.PREDICTED, 1e6, 1e-6, 1e9)
    figure = front(results(published=PUBLISHED), predicted)
    rows = {row["point"]: row for row in figure.data["points"]}
    kinds = {row["kind"] for row in rows.values()}
    assert kinds == {frontier.MET, frontier.INVALID, frontier.PUBLISHED, frontier.PREDICTED}
    assert rows["isl64-osl16-c32"]["kind"] == frontier.INVALID
    # The best figures of all, and still no part of the line.
    for name in ("isl64-osl16-c32", "published, c 8", "combined"):
        assert rows[name]["user_best"] is rows[name]["e2e_best"] is False
    assert rows["isl64-osl16-c128"]["user_best"] is True
    assert "published, –" not in rows
    assert sum(row["kind"] == frontier.PUBLISHED for row in rows.values()) == 1
    notes = " ".join(figure.notes)
    assert "count for nothing" in notes
    assert "predicted" in notes


def test_published_figures_do_not_stand_beside_simulated_ones() -> None:
    figure = front(results(published=PUBLISHED, simulated=True))
    assert {row["kind"] for row in figure.data["points"]} == {frontier.MET, frontier.INVALID}
    assert "Published figures are not drawn" in " ".join(figure.notes)
    assert "simulated engine" in figure.about


def test_the_slo_is_shaded_where_its_bounds_say_something() -> None:
    figure = front(results())
    bounds = [
        layer["data"]["values"][0]
        for panel in figure.panels
        for layer in panel.spec["layer"]
        if "values" in layer.get("data", {})
    ]
    top = max(row["e2e"] for row in figure.data["points"]) * 1.08
    assert [bound["from"] for bound in bounds] == [50.0, 0]  # 1000 / 20 ms
    assert bounds[1]["to"] == pytest.approx(min(0.3 + 0.020 * 15, top))  # TTFT, and 15 tokens after the first
    bare = front(results(slo={}))
    assert all("values" not in layer.get("data", {}) for panel in bare.panels for layer in panel.spec["layer"])


def test_labels_that_would_lie_on_each_other_are_left_out() -> None:
    points = [(100 - index, 1000 + index) for index in range(50)] + [(20, 2000), (10, 3000)]
    found = [
        frontier.Entry("a", "a", f"p{i}", f"c {i}", frontier.MEASURED, x, None, y) for i, (x, y) in enumerate(points)
    ]
    figure = frontier.figure(found, [results()])
    assert figure is not None
    labelled = [row["point"] for row in figure.data["points"] if "user_label" in row]
    assert {"p50", "p51"} < set(labelled)
    assert len(labelled) < 10
    assert sum(row["user_best"] for row in figure.data["points"]) == 52


def test_nothing_to_draw() -> None:
    assert frontier.figure([], [results()]) is None
    data = results(points=[])
    assert list(frontier.entries(data)) == []
    assert latencies.figure(data, Path("/nowhere")) is None
    assert series.figure(EVENTS, Path("/nowhere")) is None
    assert list(search.figures(data)) == []


def test_a_plot_for_a_terminal() -> None:
    data = results(published=PUBLISHED)
    plot = render_plot(list(frontier.entries(data)), "GPU", 70)
    assert all(len(line) <= 80 for line in plot.splitlines())
    assert plot.count("●") == 5  # four, and the legend
    assert plot.count("!") == 2
    assert plot.count("P") == 3  # GPU too
    assert "10,937 ┤" in plot
    assert render_plot([], "GPU") == ""


# --- latencies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "path"),
    [("aiperf", "aiperf/ok/profile_export.jsonl"), ("vllm-bench", "vllm-bench/ok/vllm_bench.json")],
)
def test_the_clients_own_records_give_the_clients_own_means(client: str, path: str) -> None:
    file = DATA / path
    samples = read_samples(client, file)
    if client == "aiperf":
        summary = json.loads((file.parent / "profile_export_aiperf.json").read_text())
        names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency")
        wanted = [summary[name]["avg"] for name in names]
    else:
        summary = json.loads(file.read_text())
        wanted = [summary[f"mean_{name}_ms"] for name in ("ttft", "tpot", "itl")]
    found = [sum(values) / len(values) for values in (samples.ttft, samples.tpot, samples.itl)]
    assert found == pytest.approx(wanted, rel=1e-6)


def test_damaged_records_give_what_can_be_read(tmp_path: Path) -> None:
    whole = (DATA / "aiperf/ok/profile_export.jsonl").read_bytes()
    (tmp_path / "cut").write_bytes(b"[]\n{}\n\xff\n" + whole[: len(whole) // 2])
    samples = read_samples("aiperf", tmp_path / "cut")
    assert 0 < len(samples.ttft) < 12
    (tmp_path / "odd").write_text(
        '{"metadata": {}, "metrics": {"time_to_first_token": {"value": [1, "x", -1, 1e999]}}}'
    )
    assert read_samples("aiperf", tmp_path / "odd").ttft == [1]
    for text in ("[", "[1]", '{"ttfts": 3}', '{"ttfts":[1],"itls":[3],"output_lens":[2],"errors":[""]}', "[" * 9999):
        (tmp_path / "bench").write_text(text)
        assert not read_samples("vllm-bench", tmp_path / "bench")
    assert not read_samples("aiperf", tmp_path)


def make_bench(root: Path, data: dict[str, Any]) -> None:
    for point in data["points"]:
        folder = root / point["artifacts"]
        folder.mkdir(parents=True)
        (folder / "profile_export.jsonl").write_bytes((DATA / "aiperf/ok/profile_export.jsonl").read_bytes())


def test_distributions_of_the_valid_points(tmp_path: Path) -> None:
    data = results()
    make_bench(tmp_path, data)
    figure = latencies.figure(data, tmp_path)
    assert figure is not None
    assert [len(figure.data[key]) > 10 for key in ("ttft", "tpot", "itl")] == [True] * 3
    assert {row["point"] for row in figure.data["ttft"]} == {"c 1", "c 2", "c 8", "c 128"}
    for key in ("ttft", "tpot", "itl"):
        rows = [row for row in figure.data[key] if row["point"] == "c 1"]
        assert [row["share"] for row in rows] == sorted(row["share"] for row in rows)
        assert [row["ms"] for row in rows] == sorted(row["ms"] for row in rows)
        assert rows[-1]["share"] == 1
    assert ("isl64-osl16-c1", "TTFT", 12) in {row[:3] for row in figure.rows}


def test_records_beyond_the_budget_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = results()
    make_bench(tmp_path, data)
    monkeypatch.setattr(latencies, "BUDGET_BYTES", (DATA / "aiperf/ok/profile_export.jsonl").stat().st_size)
    figure = latencies.figure(data, tmp_path)
    assert figure is not None
    assert {row["point"] for row in figure.data["ttft"]} == {"c 1"}
    assert "isl64-osl16-c2" in figure.notes[0]


# --- series ----------------------------------------------------------------------------------------------------------


def test_series_of_a_pool_are_summed_and_counters_become_rates(tmp_path: Path) -> None:
    events = [
        {"t": 100.0, "event": "point_started", "point": "c1"},
        {"t": 111.0, "event": "point_finished", "point": "c1"},
        {"t": 112.0, "event": "point_started", "point": "c2"},
        {"t": 120.0, "event": "run_ended"},
    ]
    first = [sample(101.0, 1, 0.5, 1000), sample(106.0, 2, 0.5, 2000), "{", sample(111.0, 0, 0, 500)]
    scrape(tmp_path, "decode-0", *first)
    scrape(tmp_path, "decode-1", sample(101.0, 1, 0.1, 0), sample(106.0, 3, 0.1, 500), [1], {"t": "x", "values": {}})
    scrape(tmp_path, "router", sample(101.0, 9, 9, 9))
    found = {(item.what, item.t): item.value for item in series.read_series(tmp_path)}
    assert found["running", 106.0] == 10
    assert found["kv", 101.0] == pytest.approx((0.5 + 0.25 + 0.1 + 0.05) / 4)
    assert found["generated", 106.0] == (1000 + 500) / 5
    assert found["generated", 111.0] == 0  # the engine began anew
    assert [(span.name, span.start, span.end) for span in series.points_of(events)] == [
        ("c1", 100.0, 111.0),
        ("c2", 112.0, 120.0),
    ]
    figure = series.figure(events, tmp_path)
    assert figure is not None
    assert [row["name"] for row in figure.data["spans"]] == ["c1", "c2"]
    assert figure.data["spans"][1]["from"] == 12.0


def test_what_is_no_file_is_not_waited_for_and_what_is_no_number_not_drawn(tmp_path: Path) -> None:
    for folder in ("metrics", "run/bench/isl64-osl16-c1"):
        (tmp_path / folder).mkdir(parents=True)
    os.mkfifo(tmp_path / "metrics/prefill-0.jsonl")
    os.mkfifo(tmp_path / "run/bench/isl64-osl16-c1/profile_export.jsonl")
    (tmp_path / "metrics/decode-1.jsonl").symlink_to("nowhere")
    assert series.read_series(tmp_path / "metrics") == []
    assert latencies.figure(results(), tmp_path / "run") is None
    scrape(tmp_path / "metrics", "decode-0", sample(1.0, 1e308, 1e308, 1e308), sample(6.0, 2, 0.5, 0))
    odd = [{"t": t, "event": "point_started", "point": "c1"} for t in (-1e308, 1e308, "x", None)]
    figure = series.figure(odd, tmp_path / "metrics")
    assert figure is not None
    assert figure.data["spans"] == []
    json.dumps(figure.data, allow_nan=False)


def test_a_long_run_is_thinned_and_keeps_its_peaks(tmp_path: Path) -> None:
    lines = [sample(1000.0 + 5 * index, 500 if index == 777 else 1, 0.1, index) for index in range(5000)]
    scrape(tmp_path, "serve-0", *lines)
    found = [item.value for item in series.read_series(tmp_path) if item.what == "running"]
    assert len(found) <= 601
    assert max(found) == 1000


# --- search ----------------------------------------------------------------------------------------------------------


def test_a_search_shows_what_was_tried_the_bound_and_the_knee() -> None:
    (figure,) = search.figures(results(search=[searched()]))
    assert [row["ratio"] for row in figure.data["ratios"]] == [0.4, 0.9, 1.1, 2.05]
    assert figure.data["knee"] == [{"from": 16, "to": 24}]
    assert "The knee is between 16 and 24, at 97% confidence." in figure.about
    assert [row["answer"] for row in figure.data["gained"]] == [False, True, False, False]
    assert len(figure.rows) == 4
    nothing = {**searched(), "loads": [], "answer": None}
    assert list(search.figures(results(search=[nothing]))) == []


def test_a_search_that_goes_on_has_no_answer_yet() -> None:
    going = {**searched(), "answer": None, "knee": {"met": None, "missed": None}, "why": None, "confidence": None}
    (figure,) = search.figures(results(search=[going]))
    assert figure.data["knee"] == []
    assert "It still goes on." in figure.about


# --- files -----------------------------------------------------------------------------------------------------------


def every_figure(tmp_path: Path) -> list[Figure]:
    data = results(published=PUBLISHED, search=[searched()])
    make_bench(tmp_path, data)
    scrape(tmp_path / "metrics", "decode-0", sample(1.0, 1, 0.5, 1000), sample(6.0, 2, 0.5, 2000))
    made = [front(data), *search.figures(data), latencies.figure(data, tmp_path)]
    made.append(series.figure(EVENTS, tmp_path / "metrics"))
    assert None not in made
    return [figure for figure in made if figure is not None]


def test_png_and_csv_of_each_figure(tmp_path: Path) -> None:
    figures = every_figure(tmp_path / "run")
    for figure in figures:
        text = json.dumps(whole_spec(figure))
        assert "var(" not in text
    written = draw.write(figures, tmp_path / "out", "png")
    assert [path.name for path in written] == ["frontier.png", "search-0.png", "latencies.png", "pools.png"]
    for path in written:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        assert width > 1500
        assert height > 600
    for figure, path in zip(figures, draw.write(figures, tmp_path / "out", "csv"), strict=True):
        head, *rows = csv.reader(io.StringIO(path.read_text()))
        assert tuple(head) == figure.head
        assert len(rows) == len(figure.rows) > 3
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv"] * 4 + [".png"] * 4


def test_a_cell_that_a_spreadsheet_would_run_is_text() -> None:
    figure = Figure("k", "t", "", {}, (), ("a",), (("=1+1",), ("-x",), (-1.5,), ('a"\nb',), (None,)))
    assert list(csv.reader(io.StringIO(draw.as_csv(figure)))) == [["a"], ["'=1+1"], ["'-x"], ["-1.5"], ['a"\nb'], [""]]


def test_the_script_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = draw.bundle()
    assert made is not None
    assert "BSD-3-Clause" in made[:200]
    assert "</script" not in made
    (tmp_path / "recipe-toolkit").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "recipe-toolkit" / draw._kept().name  # type: ignore[union-attr]
    kept.write_text(made[:1000])  # cut, as by a full disk
    assert draw.bundle() == made
    assert kept.read_text() == made
    kept.write_text("globalThis.kept = 1;" + draw._end())
    assert draw.bundle() == "globalThis.kept = 1;" + draw._end()


def test_without_the_extra_there_are_tables_and_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = every_figure(tmp_path)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(draw, "_kept", lambda: None)
    assert draw.bundle() is None
    with pytest.raises(RecipeError, match="not installed"):
        draw.write(figures, tmp_path / "out", "png")
    data = results(search=[searched()])
    page = render_page(data, figures=figures, vega=draw.bundle())
    assert "Without the report extra there are no pictures here" in page
    assert 'class="plot"' not in page
    assert 'class="chart"' in page
    for figure in figures:
        assert f'id="figure-{figure.key}"' in page
    assert page.count("The same as a table") == 4
