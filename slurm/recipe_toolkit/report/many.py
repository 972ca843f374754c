"""Several runs, or all runs of a sweep, on one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report import text
from recipe_toolkit.report.changes import shown
from recipe_toolkit.report.compare import kind
from recipe_toolkit.report.figures import frontier
from recipe_toolkit.report.figures import html as figures_html
from recipe_toolkit.report.figures.model import Figure
from recipe_toolkit.report.html import Markup, el, join
from recipe_toolkit.report.page import document, footer, section
from recipe_toolkit.report.tables import Line, accuracy_table, href, invalid_table, lines_table, table


@dataclass(frozen=True)
class Item:
    """A run, or a variant of a sweep. ``label``: what it is called; ``points``: those of it, all of its run if None.

    ``base``: where its folder is, seen from the page, None where it is not at hand; ``swept``: the fields of the
    sweep; ``wanted``: ids of the points that it should have.
    """

    results: Mapping[str, Any]
    label: str
    base: str | None = None
    points: Sequence[Mapping[str, Any]] | None = None
    swept: Mapping[str, Any] = field(default_factory=dict)
    wanted: Sequence[str] = ()

    @property
    def measured(self) -> Sequence[Mapping[str, Any]]:
        """Its points."""
        return self.results["points"] if self.points is None else self.points


def labelled(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the runs are called: their recipes where these differ, else their ids."""
    recipes = [run["recipe"] for run in runs]
    return recipes if len(set(recipes)) == len(recipes) else [run["run"] for run in runs]


def figure(items: Sequence[Item], predicted: Sequence[frontier.Entry] = ()) -> Figure | None:
    """The frontier over all of them. Raises RecipeError if measurements would stand beside simulated figures."""
    _refuse_mixed(items)
    count = sum(len(item.measured) for item in items)
    # Of a single point there is no line: then all are one series.
    apart = count >= 2 * len(items)
    found = [
        entry
        for item in items
        for entry in frontier.entries(item.results, item.label if apart else "measured", item.label, item.measured)
    ]
    # What was published stands once, however many variants repeat it.
    unique = {(entry.of, entry.name, entry.gpu, entry.user): entry for entry in [*found, *predicted]}
    return frontier.figure(list(unique.values()), _runs(items))


def render_many(
    title: str,
    items: Sequence[Item],
    drawn: Figure | None,
    *,
    vega: str | None = None,
    look: float | None = None,
) -> str:
    """The page as HTML. ``drawn``: of :func:`figure`. Every value is escaped."""
    runs = _runs(items)
    first = runs[0]
    mark, warning = text.mark(first), text.warning(first)
    states = [text.verdict(run) for run in runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    points = sum(len(item.measured) for item in items)
    top = el(
        "header",
        el("h1", title),
        el("p", f"{points} points of {len(runs)} runs: {counts}", class_="run"),
        el("ul", el("li", mark, class_="badge warn"), class_="badges") if mark else None,
        el("p", el("strong", f"{warning[0].upper()}{warning[1:]}."), class_="banner warn") if warning else None,
        _differ(runs),
        class_="top",
    )
    main = el(
        "main",
        section("Points", _points(items, drawn, vega)),
        section("Not measured", _missing(items)),
        section("Notes", _notes(items)),
        section("Runs", _runs_table(items)),
    )
    return document(f"{mark}: {title}" if mark else title, join([top, main, footer(first)]), vega=vega, look=look)


def _runs(items: Sequence[Item]) -> list[Mapping[str, Any]]:
    """Each run once, however many variants it holds."""
    return list({item.results["run"]: item.results for item in items}.values())


def _refuse_mixed(items: Sequence[Item]) -> None:
    kinds = {kind(run): run["run"] for run in _runs(items)}
    if "measurement" in kinds and len(kinds) > 1:
        said = "\n  ".join(
            f"{run} is {'a measurement' if what == 'measurement' else what}" for what, run in kinds.items()
        )
        raise RecipeError(
            f"figures of the simulated engine say nothing beside measurements:\n  {said}",
            hint="put measurements on one page, rehearsals on another",
        )


def _differ(runs: Sequence[Mapping[str, Any]]) -> Markup | None:
    """What rates per GPU and latencies of different runs may not be held against each other for."""
    said = []
    for what, of in (
        ("GPUs", lambda run: f"{run['gpus']['name']} ({text.unit_of_work(run)})"),
        ("Models", lambda run: run["model"]),
        ("Lengths", lambda run: _lengths(run)),
    ):
        values = list(dict.fromkeys(value for run in runs if (value := of(run))))
        if len(values) > 1:
            more = f" and {len(values) - 4} more" if len(values) > 4 else ""
            said.append(el("li", f"{what} are not the same: {', '.join(values[:4])}{more}."))
    return el("div", el("ul", *said), class_="banner warn") if said else None


def _lengths(run: Mapping[str, Any]) -> str:
    known = text.same_length(run["points"])
    return f"{text.count(known[0])} in, {text.count(known[1])} out" if known and known != (None, None) else ""


def _points(items: Sequence[Item], drawn: Figure | None, vega: str | None) -> Markup:
    swept = list(dict.fromkeys(key for item in items for key in item.swept))
    lead = ("variant" if swept else "run", *swept)

    def lines(wanted: Any) -> list[Line]:
        return [
            Line(point, item.base, (item.label, *(_value(item.swept, key) for key in swept)))
            for item in items
            for point in item.measured
            if wanted(point)
        ]

    timed = lines(lambda point: point["valid"] and not text.of_accuracy(point))
    bad = lines(lambda point: not point["valid"])
    scored = [(item, p) for item in items for p in item.measured if p["valid"] and text.of_accuracy(p)]
    idle = (run for run in _runs(items) if run["gpus"]["working"] != run["gpus"]["allocated"])
    whole = {**next(idle, items[0].results), "points": [line.point for line in timed]}
    return el(
        "div",
        el("p", "No point was measured.") if not any(item.measured for item in items) else None,
        el("p", el("small", figures_html.MISSING)) if drawn is not None and vega is None else None,
        figures_html.render(drawn, drawn=vega is not None) if drawn is not None else None,
        lines_table(whole, timed, lead) if timed else None,
        el("h3", "Accuracy") if scored else None,
        *(accuracy_table(item.results, [point], item.base) for item, point in scored),
        el("h3", "Invalid points") if bad else None,
        invalid_table(bad, lead) if bad else None,
    )


def _value(swept: Mapping[str, Any], key: str) -> str:
    return shown(swept[key]) if key in swept else text.MISSING


def _missing(items: Sequence[Item]) -> Markup | None:
    said = list(_not_measured(items))
    return el("ul", *said) if said else None


def _not_measured(items: Sequence[Item]) -> Iterator[Markup]:
    for item in items:
        there = {point["id"] for point in item.measured}
        missing = [name for name in item.wanted if name not in there]
        if missing:
            why = (item.results.get("message") or "").partition("\n")[0]
            run = f"{item.results['run']} {item.results['state']}{f': {why}' if why else ''}"
            yield el("li", el("strong", item.label), f": {', '.join(missing)} ({run})")


def _notes(items: Sequence[Item]) -> Markup | None:
    notes = [
        el("li", el("strong", f"{item.label}, {point['id']}"), ": ", note)
        for item in items
        for point in item.measured
        for note in point["notes"]
    ]
    return el("ul", *notes) if notes else None


def _runs_table(items: Sequence[Item]) -> Markup:
    heads = ("run", "recipe", "state", "results", "engine", "GPUs", "layout", "nodes", "versions", "files")
    rows = []
    for item in {item.results["run"]: item for item in items}.values():
        run = item.results
        valid = sum(point["valid"] for point in run["points"])
        cells = [
            run["recipe"],
            run["state"],
            f"{text.verdict(run)}, {valid} of {run['points_wanted']} points count",
            text.engine(run),
            text.gpus(run),
            text.layout(run),
            ", ".join(str(host["name"] or host["index"]) for host in run["nodes"]),
            ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        ]
        rows.append(
            el(
                "tr",
                el("th", run["run"], scope="row"),
                *(el("td", cell, class_="word") for cell in cells),
                el("td", _links(item.base), class_="word"),
            )
        )
    head = el("tr", *(el("th", name, scope="col", class_="text") for name in heads))
    return table("Runs.", [head], rows, class_="sortable filtered")


def _links(base: str | None) -> Markup | str:
    if base is None:
        return text.MISSING
    names = {"page": "report.html", "results": "results.json", "plan": "plan.json", "folder": ""}
    return join([el("a", name, href=href(base, path)) for name, path in names.items()], ", ")
