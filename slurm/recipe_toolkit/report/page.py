"""One self-contained page of a run: no network, no script, readable in print and by a screen reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.chart import chart
from recipe_toolkit.report.html import Markup, el, escape, join
from recipe_toolkit.report.story import story
from recipe_toolkit.report.tables import (
    accuracy_table,
    distributions_table,
    href,
    invalid_table,
    memory_table,
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
) -> str:
    """The page as HTML.

    ``results`` and ``plan``: the data of results.json and plan.json; ``events``: of events.jsonl;
    ``picture``: the plan drawn in text; ``files``: paths in the run folder to link to; ``base``: where
    that folder is, seen from the page, None where it is not at hand; ``memory``: (role, what, predicted,
    logged). Every value is escaped.
    """
    sections = [
        _section("Points", _points(results, base)),
        _section("Latencies", _distributions(results)),
        _section("Pools", pools_table(results, [point for point in results["points"] if point["valid"]])),
        _section("Memory of a rank", memory_table(memory)),
        _section("Notes", _notes(results["points"])),
        _section("How it went", story(events)),
        _section("What ran where", _where(plan, picture)),
        _section("Files", _files(files, base)),
    ]
    body = join([_top(results), el("main", *sections), _footer(results)])
    mark = "rehearsal: " if results["rehearsal"] else "simulated: " if results["simulated"] else ""
    return document(f"{mark}{results['recipe']}, {results['run']}", body)


def document(title: str, body: Markup) -> str:
    """A whole page that fetches nothing and runs nothing."""
    css = Markup(package_files("recipe_toolkit.report").joinpath("page.css").read_text(encoding="utf-8"))
    page = el(
        "html",
        el(
            "head",
            el("meta", charset="utf-8"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            # Nothing is fetched or run, whatever a value holds.
            el(
                "meta",
                http_equiv="Content-Security-Policy",
                content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
            ),
            el("title", title),
            el("style", css),
        ),
        el("body", body),
        lang="en",
    )
    return f"<!doctype html>\n{page}\n"


def _section(title: str, content: Markup | None) -> Markup | None:
    if content is None:
        return None
    name = title.lower().replace(" ", "-")
    return el("section", el("h2", title, id=name), content, aria_labelledby=name)


def _top(results: Mapping[str, Any]) -> Markup:
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
        el("p", el("strong", warning), class_="banner warn") if warning else None,
        _reasons(results),
        _tiles(results),
        el("h2", "Setup"),
        _facts(results),
        class_="top",
    )


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


def _points(results: Mapping[str, Any], base: str | None) -> Markup:
    points = results["points"]
    timed = [p for p in points if p["valid"] and not text.of_accuracy(p)]
    scored, bad = [p for p in points if p["valid"] and text.of_accuracy(p)], [p for p in points if not p["valid"]]
    drawn = chart(results)
    return el(
        "div",
        el("p", "No point was measured.") if not points else None,
        el("div", drawn, class_="card") if drawn is not None else None,
        el("p", el("small", _scales(results))) if timed else None,
        points_table(results, base) if timed else None,
        el("h3", "Accuracy") if scored else None,
        accuracy_table(results, scored, base) if scored else None,
        el("h3", "Invalid points") if bad else None,
        invalid_table(bad, base) if bad else None,
    )


def _scales(results: Mapping[str, Any]) -> str:
    known, unit = results["gpus"], text.unit_of_work(results)
    pools = ", ".join(f"{role} {number}" for role, number in known["by_role"].items())
    return (
        f"A user's speed leaves out the wait for the first token, so TTFT stands beside it. "
        f"Working {unit}s: {known['working']} ({pools}); allocated: {known['allocated']}. "
        "Rates over each pool alone are in results.json."
    )


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


def _footer(results: Mapping[str, Any]) -> Markup:
    version = results["versions"].get("recipe-toolkit", "")
    said = f"Recipe Toolkit {version}. Times are UTC. {_warning(results)}"
    return el("footer", el("p", said.rstrip()))
