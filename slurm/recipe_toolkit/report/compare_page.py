"""A comparison as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence

from recipe_toolkit.report import compare_text, text
from recipe_toolkit.report.changes import shown
from recipe_toolkit.report.compare import Comparison, Match, Row, signed
from recipe_toolkit.report.html import Markup, el
from recipe_toolkit.report.page import document
from recipe_toolkit.report.tables import table


def render_page(found: Comparison) -> str:
    """The page as HTML: the runs, the conditions that differ, a table a metric. Every value is escaped."""
    mark = text.mark(found.runs[0])
    title = "Comparison of " + ", ".join(str(run["run"]) for run in found.runs)
    tables = [_metric(found, rows) for rows in compare_text.by_metric(found)]
    body = el(
        "main",
        el("h1", "Comparison"),
        _warning(found),
        el("section", el("h2", "Runs"), _runs(found)),
        el("section", el("h2", "Conditions that differ"), _conditions(found)),
        el("section", el("h2", "Points"), _list(compare_text.remarks(found)), *tables),
        el("section", el("h2", "In short"), _list(compare_text.verdicts(found))),
    )
    return document(f"{mark}: {title}" if mark else title, body)


def _warning(found: Comparison) -> Markup | None:
    said = next((said for run in found.runs if (said := text.warning(run)) is not None), None)
    return None if said is None else el("p", el("strong", f"{said[0].upper()}{said[1:]}."), class_="banner warn")


def _list(lines: Sequence[str]) -> Markup | None:
    return el("ul", *(el("li", line.strip()) for line in lines)) if lines else None


def _runs(found: Comparison) -> Markup:
    heads = ("", "run", "recipe", "state", "results")
    rows = [
        el(
            "tr",
            el("th", label, scope="row"),
            *(
                el("td", cell, class_="text")
                for cell in (run["run"], run["recipe"], run["state"], "; ".join([text.verdict(run), *run["reasons"]]))
            ),
        )
        for label, run in zip(found.labels, found.runs, strict=True)
    ]
    return table("Each run is held against the first.", [_head(heads)], rows)


def _conditions(found: Comparison) -> Markup:
    rows = [
        el(
            "tr",
            el("th", change.field, scope="row"),
            *(el("td", shown(value), class_="text") for value in change.values),
        )
        for change in found.conditions
    ]
    said = _list([f"not compared: {item}" for item in found.unknown])
    if not rows:
        return el("div", el("p", "None that is known."), said)
    return el("div", table("Fields that are not the same.", [_head(("field", *found.labels))], rows), said)


def _metric(found: Comparison, rows: Sequence[tuple[Match, Row]]) -> Markup:
    metric = rows[0][1].metric
    heads = ["point", found.labels[0]]
    for label in found.labels[1:]:
        heads += [label, f"{label} to {found.labels[0]}"]
    body = []
    for match, row in rows:
        cells = [compare_text.value(match, row, 0)]
        for index in range(1, len(found.labels)):
            item = row.differences[index]
            said = "" if item is None else f"not comparable: {item.why_not}" if item.why_not else signed(item)
            verdict = item.verdict if item and item.verdict else ""
            cells += [compare_text.value(match, row, index), f"{said} {verdict}".strip()]
        body.append(el("tr", el("th", match.point["id"], scope="row"), *(el("td", cell) for cell in cells)))
    return table(f"{metric.title}, {metric.unit} ({metric.better} is better).", [_head(heads)], body)


def _head(names: Sequence[str]) -> Markup:
    return el("tr", *(el("th", name, scope="col") for name in names))
