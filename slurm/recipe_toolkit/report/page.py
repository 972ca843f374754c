"""One self-contained page of a run: no network, readable in print, by a screen reader and without its scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.beside import published_table, repeats_table, windows_table
from recipe_toolkit.report.chart import chart
from recipe_toolkit.report.figures import html as figures_html
from recipe_toolkit.report.figures.model import Figure
from recipe_toolkit.report.html import Markup, el, escape, join
from recipe_toolkit.report.story import story
from recipe_toolkit.report.tables import (
    Line,
    accuracy_table,
    distributions_table,
    href,
    invalid_table,
    memory_table,
    nodes_table,
    points_table,
    pools_table,
    processes_table,
)

_FILES_SHOWN = 400


def render_page(
    results: Mapping[str, Any],
    plan: Mapping[str, Any] | None = None,
    *,
    events: Sequence[Mapping[str, Any]] = (),
    picture: str = "",
    files: Sequence[str] = (),
    base: str | None = ".",
    memory: Sequence[tuple[str, str, str, str]] = (),
    facts: Sequence[tuple[str, Mapping[str, Any]]] = (),
    figures: Sequence[Figure] = (),
    vega: str | None = None,
    look: float | None = None,
) -> str:
    """The page as HTML.

    ``results`` and ``plan``: the data of results.json and plan.json; ``events``: of events.jsonl;
    ``picture``: the plan drawn in text; ``files``: paths in the run folder to link to; ``base``: where
    that folder is, seen from the page, None where it is not at hand; ``memory``: (role, what, predicted,
    logged); ``facts``: (path, facts.json) of each node; ``figures`` are drawn by ``vega``, a script, and without it
    are tables; ``look``: seconds after which a browser looks whether there is more. Every value is escaped.
    """
    shown = {figure.key: figures_html.render(figure, drawn=vega is not None) for figure in figures}
    searched = [shown[key] for key in shown if key.startswith("search-")]
    sections = [
        section("Points", _points(results, base, figures, vega)),
        section("Search", el("div", *searched) if searched else None),
        section("Repeats", repeats_table(results)),
        section("Steady window", windows_table(results)),
        section("Published", published_table(results)),
        section("Latencies", _both(shown.get("latencies"), _distributions(results))),
        section("Pools", _both(shown.get("pools"), _pools(results))),
        section("Memory of a rank", memory_table(memory)),
        section("Notes", _notes(results["points"])),
        section("How it went", story(events)),
        section("What ran where", _where(plan, picture)),
        section("Nodes", nodes_table(facts, base) if facts else None),
        section("Files", _files(files, base)),
    ]
    body = join([_top(results, base, files), el("main", *sections), footer(results)])
    mark = "rehearsal: " if results["rehearsal"] else "simulated: " if results["simulated"] else ""
    return document(f"{mark}{results['recipe']}, {results['run']}", body, vega=vega, look=look)


def document(title: str, body: Markup, *, vega: str | None = None, look: float | None = None) -> str:
    """A whole page that fetches nothing and runs no more than the scripts in it; with ``look``, asks for itself."""
    css = Markup(package_files("recipe_toolkit.report").joinpath("page.css").read_text(encoding="utf-8"))
    codes = [code for code in (vega, figures_html.own_script()) if code is not None]
    scripts, allowed = zip(*map(figures_html.script, codes), strict=True)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {' '.join(allowed)}"
    page = el(
        "html",
        el(
            "head",
            el("meta", charset="utf-8"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            # Nothing is fetched, and nothing else is run, whatever a value holds.
            el(
                "meta",
                http_equiv="Content-Security-Policy",
                content=f"{policy}; connect-src 'self'" if look else policy,
            ),
            el("title", title),
            el("style", css),
        ),
        el("body", body, *scripts),
        lang="en",
        data_look=look,
    )
    return f"<!doctype html>\n{page}\n"


def section(title: str, content: Markup | None) -> Markup | None:
    """A part of the page under its heading; None where there is nothing in it."""
    if content is None:
        return None
    name = title.lower().replace(" ", "-")
    return el("section", el("h2", title, id=name), content, aria_labelledby=name)


def _both(figure: Markup | None, below: Markup | None) -> Markup | None:
    return el("div", figure, below) if figure is not None or below is not None else None


def _top(results: Mapping[str, Any], base: str | None, files: Sequence[str]) -> Markup:
    valid = results.get("valid")
    kind = "badge warn" if valid is None else "badge good" if valid else "badge bad"
    mark, warning = text.mark(results), _warning(results)
    badges = [
        el("li", results["state"], class_="badge"),
        el("li", text.verdict(results), class_=kind),
        el("li", mark, class_="badge warn") if mark is not None else None,
    ]
    return el(
        "header",
        el("h1", results["recipe"]),
        el("p", el("code", results["run"]), class_="run"),
        el("ul", *badges, class_="badges"),
        _links(base, files),
        el("p", el("strong", warning), class_="banner warn") if warning else None,
        _reasons(results),
        _tiles(results),
        el("h2", "Setup"),
        _facts(results),
        class_="top",
    )


def _links(base: str | None, files: Sequence[str]) -> Markup | None:
    """What is asked for most, of the run's own files."""
    wanted = ("results.json", "plan.json", "recipe.lock.yaml", "cluster.lock.yaml", "events.jsonl")
    there = [name for name in wanted if name in files]
    if base is None or not there:
        return None
    return el("nav", *(el("a", name, href=href(base, name)) for name in there), class_="links", aria_label="Files")


def _warning(results: Mapping[str, Any]) -> str:
    """The mark of the figures as a sentence; empty where they are measurements."""
    said = text.warning(results)
    return "" if said is None else f"{said[0].upper()}{said[1:]}."


def _reasons(results: Mapping[str, Any]) -> Markup | None:
    reasons = results["reasons"]
    if not reasons:
        return None
    message = results["message"] or ""
    return el(
        "div",
        el("strong", "These results are invalid."),
        el("ul", *(el("li", reason) for reason in reasons)),
        el("details", el("summary", "All it said"), el("pre", message)) if "\n" in message.strip() else None,
        class_="banner bad",
    )


def _tiles(results: Mapping[str, Any]) -> Markup | None:
    """The best of the valid points, each figure with what it costs."""
    unit = text.unit_of_work(results)
    points = [point for point in results["points"] if point["valid"]]
    rated = [point for point in points if point["total_tps_per_gpu"]["working"] is not None]
    quick = [point for point in points if point["output_tps_per_user"]["from_median_tpot"] is not None]
    tiles = [_tile("Valid points", str(len(points)), f"of {results['points_wanted']}", "")]
    if rated:
        best = max(rated, key=lambda point: point["total_tps_per_gpu"]["working"])
        figure = text.number(best["total_tps_per_gpu"]["working"])
        tiles.append(_tile(f"Most total tokens/s per {unit}", figure, f"tok/s/{unit}", _beside(best)))
    if quick:
        best = max(quick, key=lambda point: point["output_tps_per_user"]["from_median_tpot"])
        figure = text.number(best["output_tps_per_user"]["from_median_tpot"])
        tiles.append(_tile("Fastest for one user", figure, "tok/s/user", _beside(best)))
    bounded = [point for point in rated if text.slo(point) == "met"]
    if results["slo"] and rated and any(point["slo"] for point in rated):
        if bounded:
            best = max(bounded, key=lambda point: point["total_tps_per_gpu"]["working"])
            figure = text.number(best["total_tps_per_gpu"]["working"])
            tiles.append(_tile("Most within the SLO", figure, f"tok/s/{unit}", _beside(best)))
        else:
            tiles.append(_tile("Most within the SLO", "none", "", "no valid point meets every bound"))
    return el("ul", *tiles, class_="tiles") if rated or quick else None


def _beside(point: Mapping[str, Any]) -> str:
    ttft = text.number((point["ttft_ms"] or {}).get("mean"))
    user = text.number(point["output_tps_per_user"]["from_median_tpot"])
    return f"at {text.load(point)}: mean TTFT {ttft} ms, {user} tok/s per user"


def _tile(what: str, figure: str, unit: str, beside: str) -> Markup:
    return el(
        "li",
        el("div", what, class_="what"),
        el("div", figure, " ", el("span", unit, class_="unit"), class_="figure"),
        el("div", beside, class_="beside") if beside else None,
        class_="tile",
    )


def _facts(results: Mapping[str, Any]) -> Markup:
    hosts = [
        f"{host['name'] or 'node ' + str(host['index'])}" + (f" ({host['address']})" if host["address"] else "")
        for host in results["nodes"]
    ]
    lengths = text.same_length(results["points"])
    facts = [
        ("Engine", text.engine(results)),
        ("Images", text.images(results)),
        ("Setup steps", text.setup(results)),
        ("Model", results["model"]),
        ("GPUs" if results["gpus"]["device"] == "gpu" else "Workers", text.gpus(results)),
        ("Layout", text.layout(results)),
        ("Nodes", ", ".join(hosts)),
        ("Lengths", _lengths(lengths)),
        ("SLO", ", ".join(text.bound(name, value) for name, value in results["slo"].items())),
        ("Versions", ", ".join(f"{name} {version}" for name, version in results["versions"].items())),
    ]
    pairs = [el("div", el("dt", name), el("dd", value)) for name, value in facts if value]
    return el("dl", *pairs, class_="facts card")


def _lengths(lengths: tuple[int | None, int | None] | None) -> str:
    if lengths is None or lengths == (None, None):
        return ""
    return f"{text.count(lengths[0])} tokens in, {text.count(lengths[1])} out, a request"


def _points(results: Mapping[str, Any], base: str | None, figures: Sequence[Figure], vega: str | None) -> Markup:
    points = results["points"]
    timed = [p for p in points if p["valid"] and not text.of_accuracy(p)]
    scored, bad = [p for p in points if p["valid"] and text.of_accuracy(p)], [p for p in points if not p["valid"]]
    still = chart(results)
    front = next((figure for figure in figures if figure.key == "frontier"), None)
    return el(
        "div",
        el("p", "No point was measured.") if not points else None,
        el("p", el("small", figures_html.MISSING)) if figures and vega is None else None,
        figures_html.render(front, drawn=vega is not None, instead=still) if front is not None else None,
        el("div", still, class_="card") if still is not None and front is None else None,
        el("p", el("small", _scales(results))) if timed else None,
        points_table(results, base) if timed else None,
        el("h3", "Accuracy") if scored else None,
        accuracy_table(results, scored, base) if scored else None,
        el("h3", "Invalid points") if bad else None,
        invalid_table([Line(point, base) for point in bad]) if bad else None,
    )


def _scales(results: Mapping[str, Any]) -> str:
    known, unit = results["gpus"], text.unit_of_work(results)
    pools = ", ".join(f"{role} {number}" for role, number in known["by_role"].items())
    return (
        f"A user's speed leaves out the wait for the first token, so TTFT stands beside it. "
        f"Working {unit}s: {known['working']} ({pools}); allocated: {known['allocated']}. "
        "Rates over each pool alone are in results.json."
    )


def _pools(results: Mapping[str, Any]) -> Markup | None:
    return pools_table(results, [point for point in results["points"] if point["valid"]])


def _distributions(results: Mapping[str, Any]) -> Markup | None:
    points = [point for point in results["points"] if point["valid"] and point["e2e_ms"]]
    return distributions_table(results, points) if points else None


def _notes(points: Sequence[Mapping[str, Any]]) -> Markup | None:
    notes = [el("li", el("strong", point["id"]), ": ", note) for point in points for note in point["notes"]]
    return el("ul", *notes) if notes else None


def _where(plan: Mapping[str, Any] | None, picture: str) -> Markup | None:
    if not plan and not picture:
        return None
    return el(
        "div",
        el(
            "div",
            el("pre", escape(picture), class_="tall", tabindex=0, role="region", aria_label="The plan"),
            class_="scroll",
        )
        if picture
        else None,
        el("details", el("summary", "Processes"), processes_table(plan)) if plan else None,
    )


def _files(files: Sequence[str], base: str | None) -> Markup | None:
    if not files or base is None:
        return None
    items = [el("li", el("a", path, href=href(base, path))) for path in files[:_FILES_SHOWN]]
    rest = len(files) - len(items)
    return el(
        "div",
        el("ul", *items, class_="files"),
        el("p", f"and {rest} more: see manifest.json") if rest else None,
    )


def footer(results: Mapping[str, Any]) -> Markup:
    """Who made the page, and once more what its figures are."""
    version = results["versions"].get("recipe-toolkit", "")
    said = f"Recipe Toolkit {version}. Times are UTC. {_warning(results)}"
    return el("footer", el("p", said.rstrip()))
