"""The page as a person sees it, in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from figures_support import PUBLISHED, sample, scrape, searched
from recipe_toolkit.rundir import RunDir, read_json, write_json
from results_support import DATA, make_folder
from support import require

EVIL = "</script><script>window.evil=1</script><img src=x onerror='window.evil=1'>{{7*7}}"
HOVER_MS = 10_000


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    require("browser", path is not None, "no chromium here: apt-get install chromium")
    with sync_playwright() as driver:
        # Its sandbox wants a user of its own; nothing foreign is opened here.
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


def fill(run: RunDir, *, evil: str = "") -> RunDir:
    """Everything that the page can show."""
    data = read_json(run.results)
    data |= {"search": [searched()], "versions": {"recipe-toolkit": "1.2.3", "aiperf": "0.13"}}
    plan = {**read_json(run.plan), "published": PUBLISHED}
    write_json(run.plan, {**plan, "name": evil, "served_name": evil} if evil else plan)
    if evil:
        data["search"][0] |= {"benchmark": evil, "notes": [evil]}
        data["gpus"]["name"] = evil
        for point in data["points"]:
            point["id"] = f"{point['id']}{evil}"
            point["notes"] = [evil]
    write_json(run.results, data)
    for point in data["points"]:
        folder = run.root / point["artifacts"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "profile_export.jsonl").write_bytes((DATA / "aiperf/ok/profile_export.jsonl").read_bytes())
    start = 1795969929.0
    for process in ("prefill-0", "decode-0"):
        lines = [sample(start + 5 * index, index % 7, index / 40, index * 900) for index in range(24)]
        scrape(run.metrics, process, *lines)
    started = {"t": start, "event": "point_started", "point": f"isl64-osl16-c1{evil}"}
    with run.events.open("a") as file:
        file.write(json.dumps(started) + "\n")
    return run


def report(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("recipe")
    done = subprocess.run([program, "report", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The page of a run that has everything."""
    folder = tmp_path_factory.mktemp("page")
    run = fill(make_folder(folder))
    report(run.root, cwd=folder)
    return run.report


@pytest.fixture
def visit(browser: Browser):
    """Opens a page, and holds that it says nothing on the console and asks for nothing but itself."""
    opened = []

    def open_(url: str | Path, **how) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
        page = context.new_page()
        trouble: list[str] = []
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        where = url if isinstance(url, str) else url.as_uri()
        page.goto(where)
        opened.append((context, trouble, asked, where))
        return page

    yield open_
    for context, trouble, asked, where in opened:
        context.close()
        assert trouble == []
        assert {url for url in asked if not url.endswith("/favicon.ico")} == {where}


def drawn(page: Page, count: int = 10) -> Page:
    """Wait until so many pictures are there."""
    page.wait_for_function("n => document.querySelectorAll('.plot svg').length === n", arg=count)
    return page


def column(page: Page, table: str, index: int) -> list[str]:
    cells = page.locator(f"{table} tbody tr:visible > :nth-child({index})")
    return [text.strip() for text in cells.all_inner_texts()]


POINTS = "section[aria-labelledby=points] > div > .scroll > table.filtered"


def test_every_figure_is_drawn_and_says_what_it_shows(visit, written):
    page = drawn(visit(written))
    titles = page.locator("figure.drawn > h3").all_inner_texts()
    assert titles == [
        "What a GPU delivers against what a user gets",
        "Search of s",
        "Latencies of the requests",
        "The pools over the time of the benchmark",
    ]
    for plot in page.locator(".plot").all():
        assert plot.get_attribute("role") == "img"
        assert len(plot.get_attribute("aria-label") or "") > 20
        box = plot.locator("svg").bounding_box()
        assert box is not None
        assert box["width"] > 300
    # A table behind each.
    assert page.locator("figure.drawn details table").count() == 4
    legend = page.locator(".plot").first.inner_text()
    for kind in ("meets the SLO", "invalid: does not count", "published"):
        assert kind in legend
    levels = [int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => h.tagName)")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_pointing_at_a_mark_tells_of_the_point(visit, written):
    page = drawn(visit(written))
    page.locator(".plot").first.locator(".mark-symbol.role-mark path").first.hover(timeout=HOVER_MS)
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible", timeout=HOVER_MS)
    said = tip.inner_text()
    for word in ("isl64-osl16-c", "mean TTFT, ms", "tokens/s per user", "kind"):
        assert word in said


def test_a_table_is_sorted_both_ways_by_mouse_and_by_keyboard(visit, written):
    page = drawn(visit(written))
    loads = column(page, POINTS, 2)
    assert loads == ["c 1", "c 2", "c 8", "c 128"]
    head = page.locator(f"{POINTS} thead tr:last-child th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, POINTS, 2) == loads[::-1]
    page.locator(f"{POINTS} thead tr:last-child th").nth(-2).locator("button").click()
    assert page.locator(f"{POINTS} [aria-sort]").count() == 1
    # Numbers as the page writes them; what was not measured is last.
    for index, said in enumerate(("~8.9", "–", "10,937", "~8.18 ± 0.2")):
        page.locator(f"{POINTS} tbody tr").nth(index).locator("td").nth(4).evaluate(
            "(cell, t) => cell.textContent = t", said
        )
    page.locator(f"{POINTS} thead tr:last-child th").nth(5).locator("button").click()
    assert column(page, POINTS, 6) == ["~8.18 ± 0.2", "~8.9", "10,937", "–"]


def test_a_table_is_filtered(visit, written):
    page = drawn(visit(written))
    field = page.locator("label.filter input").first
    field.fill("C128")
    assert column(page, POINTS, 2) == ["c 128"]
    assert page.locator("label.filter output").first.inner_text() == "1 of 4 rows"
    field.fill("")
    assert len(column(page, POINTS, 2)) == 4


def test_dark_light_and_print(visit, written):
    looks = {}
    for scheme in ("light", "dark"):
        page = drawn(visit(written, color_scheme=scheme))
        plot = page.locator(".plot").first
        axis = plot.locator(".role-axis-title text").first
        looks[scheme] = [
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            axis.evaluate("node => getComputedStyle(node).fill"),
            plot.locator(".mark-line path").first.evaluate("node => getComputedStyle(node).stroke"),
        ]
    assert all(one != other for one, other in zip(looks["light"], looks["dark"], strict=True))
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("label.filter").first.is_visible()
    assert page.locator(".plot svg").first.is_visible()
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("width", [360, 800])
def test_a_narrow_window_scrolls_down_alone(visit, written, width):
    page = drawn(visit(written, viewport={"width": width, "height": 800}))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for svg in page.locator(".plot svg").all():
        box = svg.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


def test_without_scripts_it_can_be_read(visit, written):
    page = visit(written, java_script_enabled=False)
    assert page.locator(".plot svg").count() == 0
    assert "the tables hold the same" in page.locator("noscript").first.inner_text()
    assert page.locator("svg.chart").is_visible()
    assert column(page, POINTS, 2) == ["c 1", "c 2", "c 8", "c 128"]
    assert page.locator("label.filter").count() == 0


def test_hostile_names_do_nothing(visit, tmp_path):
    run = fill(make_folder(tmp_path), evil=EVIL)
    report(run.root, cwd=tmp_path)
    page = drawn(visit(run.report))
    assert page.evaluate("window.evil") is None
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == EVIL
    page.locator(".plot").first.locator(".mark-symbol.role-mark path").first.hover(timeout=HOVER_MS)
    page.locator("#vg-tooltip-element").wait_for(state="visible", timeout=HOVER_MS)
    assert EVIL in page.locator("#vg-tooltip-element").inner_text()
    assert page.evaluate("window.evil") is None


def test_several_runs_on_one_page(visit, tmp_path):
    run = fill(make_folder(tmp_path))
    other = RunDir(run.root.with_name("2026-11-30-other"))
    shutil.copytree(run.root, other.root)
    data = read_json(other.results)
    data["gpus"]["name"] = "B300"
    for point in data["points"]:
        point["total_tps_per_gpu"]["working"] *= 1.4
    write_json(other.results, data)
    write_json(other.plan, {**read_json(other.plan), "name": "other"})
    report(run.root, other.root, "-o", "both.html", cwd=tmp_path)
    page = drawn(visit(tmp_path / "both.html"), 2)
    assert page.locator(".plot").first.locator(".mark-line path").count() == 2  # a frontier each
    assert len(column(page, POINTS, 2)) == 8
    assert set(column(page, POINTS, 2)) == {"tiny-2p1d", "other"}
    for link in page.locator("section[aria-labelledby=runs] a").all():
        path = (link.get_attribute("href") or "").rstrip("/")
        assert path.endswith("report.html") or (tmp_path / path).exists()


# --- served ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path):
    """Runs in a folder, shown by `recipe report --serve`; gives the URL and the run."""
    run = fill(make_folder(tmp_path))
    command = [Path(sys.executable).with_name("recipe"), "report", "--serve", run.root.parent, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    assert process.stdout is not None
    line = process.stderr.readline()
    found = re.match(r"(http://127\.0\.0\.1:\d+/) shows ", line)
    assert found, line
    yield found[1], run
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == "\n"
    process.stdout.close()
    process.stderr.close()


def test_a_run_that_goes_on_is_followed(browser, served):
    url, run = served
    state = read_json(run.state)
    data = read_json(run.results)
    last = data["points"].pop()
    write_json(run.results, {**data, "state": "running", "valid": None})
    # A job that lives: this process.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    pid = int(Path("/proc/self/stat").read_text().split()[0])
    write_json(run.job, {**read_json(run.job), "host": _host(), "pid": pid, "start_ticks": ticks})
    write_json(run.state, {**state, "state": "running", "phase": "bench", "updated": time.time()})
    page = browser.new_page()
    try:
        page.goto(url)
        page.get_by_role("link", name=run.id).click()
        drawn(page)
        assert column(page, POINTS, 2) == ["c 1", "c 2", "c 8"]
        data["points"].append(last)
        write_json(run.results, {**data, "state": "done"})
        write_json(run.state, state)
        # No reload by hand.
        page.wait_for_function("() => document.documentElement.dataset.look === undefined", timeout=60_000)
        assert column(page, POINTS, 2) == ["c 1", "c 2", "c 8", "c 128"]
        page.get_by_role("link", name="plan.json").first.click()
        assert '"engine"' in page.inner_text("body")
    finally:
        page.close()


def _host() -> str:
    import socket

    return socket.gethostname()
