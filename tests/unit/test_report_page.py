from __future__ import annotations

import base64
import hashlib
import html.parser
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_toolkit.report.chart import chart, ticks
from recipe_toolkit.report.html import Markup, el, escape, join
from recipe_toolkit.report.page import render_page
from recipe_toolkit.report.story import phases, story
from recipe_toolkit.results.collect import build_results
from results_support import EVENTS, make_plan, make_run

Golden = Callable[[str, str], None]
PICTURE = "node 0  [0 prefill-0] [1 prefill-1]\nnode 1  [0 decode-0] [1 decode-0]\n"
FILES = ["bench/isl64-osl16-c1/profile_export_aiperf.json", "plan.json", "results.json"]


def make_page(engine: str = "vllm", **changes: Any) -> str:
    plan, results = make_run(engine)
    given: dict[str, Any] = {"events": EVENTS, "picture": PICTURE, "files": FILES}
    return render_page({**results.to_json(), **changes}, plan.to_json(), **given)


class Reader(html.parser.HTMLParser):
    """Notes every element, and whether elements are closed in order."""

    VOID = frozenset({"meta", "br", "hr", "col"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("engine", ["vllm", "sim"])
def test_the_whole_page(golden: Golden, engine: str) -> None:
    page = make_page(engine)
    # Style sheet and script are files of their own.
    short = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", page, flags=re.S)
    golden(f"report/page-{engine}.html", re.sub(r"sha256-[\w+/=]*", "sha256-…", short))


def test_it_is_self_contained_and_runs_its_own_script_alone() -> None:
    page = make_page()
    reader = read(page)
    for tag in ("link", "img", "iframe", "object", "embed", "base", "form"):
        assert reader.all(tag) == []
    assert reader.all("script") == [{}]
    (code,) = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    (policy,) = [meta["content"] for meta in reader.all("meta") if "http-equiv" in meta]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    for _, attributes in reader.seen:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "action"):
                assert value is not None
                assert value.startswith(("./", "../"))
    style = re.search(r"<style>(.*?)</style>", page, flags=re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert "</" not in style[1]


def test_tables_say_what_their_cells_are() -> None:
    reader = read(make_page())
    assert len(reader.all("caption")) == len(reader.all("table")) > 4
    for attributes in reader.all("th"):
        assert attributes.get("scope") in ("col", "row", "colgroup")
    assert len(reader.all("h1")) == 1
    assert reader.all("html")[0]["lang"] == "en"
    (figure,) = reader.all("svg")
    assert figure["role"] == "img"
    assert "per user" in (figure["aria-label"] or "")


def test_the_simulated_engine_is_named_wherever_figures_are() -> None:
    page = make_page("sim")
    assert "<title>simulated: tiny-2p1d" in page
    assert 'class="banner warn"><strong>Simulated engine: no figure here is a measurement of a real model.' in page
    for caption in ("Valid points", "Latencies", "summed over a pool"):
        assert f"{caption} (simulated engine)" in page
    assert ">simulated engine</text>" in page
    assert "simulated" not in make_page("vllm").lower()


def test_a_rehearsal_is_named_wherever_figures_are() -> None:
    page = make_page("sim", rehearsal=True)
    assert "<title>rehearsal: tiny-2p1d" in page
    assert 'class="banner warn"><strong>Rehearsal on the simulated engine: no figure here is a measurement' in page
    for caption in ("Valid points", "Latencies", "summed over a pool"):
        assert f"{caption} (rehearsal)" in page
    assert ">rehearsal</text>" in page
    assert '<li class="badge warn">rehearsal</li>' in page
    assert "Times are UTC. Rehearsal on the simulated engine" in page
    assert "rehearsal" not in make_page("sim").lower()


def test_invalid_points_are_apart_and_not_drawn() -> None:
    page = make_page()
    good, _, rest = page.partition("<h3>Invalid points</h3>")
    assert "isl64-osl16-c32" not in good.partition("<main>")[2]
    assert "3 of 12 requests failed" in rest
    assert "3,941" not in page
    assert "These results are invalid." in page
    assert "c 32" not in re.search(r"<svg.*?</svg>", page, flags=re.S)[0]  # type: ignore[index]


def test_no_invalid_point_is_the_best() -> None:
    _, results = make_run()
    data = results.to_json()
    for point in data["points"]:
        point["valid"], point["reasons"] = False, ["it is bad"]
    page = render_page(data)
    assert "Most total tokens/s" not in page
    assert "<svg" not in page


EVIL = "<script>alert('1')</script>&\"'\x00\x1b[2J"


def test_every_value_is_escaped() -> None:
    plan, results = make_run("sim")
    page = render_page(
        poison(results.to_json()),
        poison(plan.to_json()),
        events=[{"t": 1795969858.0, "event": EVIL, EVIL: EVIL}, {"t": 1.0, "event": "phase", "phase": EVIL}],
        picture=EVIL,
        files=[f"logs/{EVIL}.log", f"javascript:{EVIL}"],
    )
    reader = read(page)
    assert reader.all("script") == [{}]
    assert "\x00" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script&gt;") > 20
    for attributes in reader.all("a"):
        assert (attributes["href"] or "").startswith("./")


def poison(item: Any) -> Any:
    """The data with every free text replaced."""
    if isinstance(item, dict):
        keep = ("device", "state", "role", "counted_by")
        return {key: value if key in keep else poison(value) for key, value in item.items()}
    if isinstance(item, list):
        return [poison(value) for value in item]
    return EVIL if isinstance(item, str) else item


def test_a_run_that_measured_nothing_has_a_page() -> None:
    state = {"state": "failed", "message": "ready: prefill-0 ended with exit code 3"}
    page = render_page(build_results(make_plan(), "run-1", state, []).to_json(), None)
    read(page)
    assert "No point was measured." in page
    assert "the run is failed: ready: prefill-0 ended with exit code 3" in page


def test_a_long_message_can_be_opened() -> None:
    state = {"state": "failed", "message": "bench: it died\nlast lines:\n  <out of memory>"}
    page = render_page(build_results(make_plan(), "run-1", state, []).to_json(), None)
    assert "<li>the run is failed: bench: it died</li>" in page
    assert "<summary>All it said</summary><pre>bench: it died\nlast lines:\n  &lt;out of memory&gt;</pre>" in page


def test_links_lead_from_where_the_page_is() -> None:
    plan, results = make_run()
    page = render_page(results.to_json(), plan.to_json(), files=["a b.json"], base="../runs/x")
    assert 'href="../runs/x/a%20b.json"' in page
    assert 'href="../runs/x/bench/isl64-osl16-c1/"' in page


def test_many_files_and_events_are_cut_with_a_word() -> None:
    plan, results = make_run()
    events = [{"t": 1795969858.0 + index, "event": "progress"} for index in range(5000)]
    page = render_page(results.to_json(), plan.to_json(), events=events, files=[f"f{i}" for i in range(1000)])
    assert "500 of 5000 events" in page
    assert "and 600 more: see manifest.json" in page


# --- the parts -------------------------------------------------------------------------------------------------------


def test_phases_end_where_the_next_begins() -> None:
    found = phases(EVENTS)
    assert [phase.name for phase in found] == ["bind", "launch", "ready", "prove", "bench", "drain"]
    assert [phase.end for phase in found[:-1]] == [phase.start for phase in found[1:]]
    assert found[-1].end == EVENTS[-1]["t"]


@pytest.mark.parametrize(
    "events",
    [
        [{}],
        [{"t": "yesterday", "event": "phase"}],
        [{"t": math.inf, "event": "phase", "phase": "bind"}, {"t": math.nan, "event": "x"}],
        [{"t": 1e300, "event": "phase", "phase": None}],
        [{"t": 5.0, "event": "phase", "phase": "b"}, {"t": 1.0, "event": "phase", "phase": "a"}],
        [{"t": True, "event": ["x"], "deep": {"a": [1]}}],
    ],
)
def test_odd_events_are_shown_as_they_are(events: list[dict[str, Any]]) -> None:
    shown = story(events)
    assert shown is not None
    read(shown)


def test_no_events_no_story() -> None:
    assert story([]) is None


@settings(deadline=None)
@given(st.floats(min_value=1e-12, max_value=1e15))
def test_ticks_are_round_and_reach_the_top(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0
    assert found[-1] >= top * (1 - 1e-6)
    assert 2 <= len(found) <= 8


@pytest.mark.parametrize("top", [0, -1, math.nan, math.inf])
def test_ticks_of_nothing(top: float) -> None:
    assert ticks(top) == [0.0, 1.0]


def test_a_chart_needs_two_points() -> None:
    _, results = make_run()
    data = results.to_json()
    assert chart(data) is not None
    assert chart({**data, "points": data["points"][:1]}) is None
    assert chart({**data, "points": []}) is None


def test_labels_that_would_lie_on_each_other_are_left_out() -> None:
    _, results = make_run()
    data = results.to_json()
    drawn = chart({**data, "points": [data["points"][0]] * 3})
    assert drawn is not None
    assert drawn.count('class="dot"') == 3
    assert drawn.count('class="label') == 1


def test_markup_escapes_what_is_not_markup() -> None:
    assert el("p", "<b>", Markup("<i>x</i>"), None, class_='a"b', hidden=True, data_x=3, off=False, no=None) == (
        '<p class="a&quot;b" hidden data-x="3">&lt;b&gt;<i>x</i></p>'
    )
    assert el("br") == "<br>"
    assert el("line", x1=1) == '<line x1="1"/>'
    assert join(["<", Markup("<hr>")], ", ") == "&lt;, <hr>"
    assert escape("a\x00b\n") == "a�b\n"
