"""The list of runs, as `recipe report --serve` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recipe_toolkit.report import text
from recipe_toolkit.report.html import Markup, el, escape, join
from recipe_toolkit.report.page import document, section
from recipe_toolkit.report.tables import href, table


@dataclass(frozen=True)
class Entry:
    """A run of the list. ``sweep``: of which sweep it is a part."""

    run: str
    state: str
    valid: bool | None = None
    points: str = ""
    rehearsal: bool = False
    note: str = ""
    sweep: str | None = None


def render_index(where: str, entries: Sequence[Entry], look: float) -> str:
    """The page of all runs, the newest first. ``where``: the folders that hold them; ``look``: as of a run's page."""
    sweeps = list(dict.fromkeys(entry.sweep for entry in entries if entry.sweep))
    main = el(
        "main",
        section("Sweeps", el("ul", *(el("li", el("a", name, href=href(".", f"{name}.html"))) for name in sweeps)))
        if sweeps
        else None,
        section("All runs", _table(entries)) if entries else el("p", "There is no run yet."),
    )
    top = el("header", el("h1", "Runs"), el("p", el("code", where), class_="run"), class_="top")
    return document("Runs", join([top, main]), look=look)


def _table(entries: Sequence[Entry]) -> Markup:
    heads = ("run", "state", "results", "points", "note")
    rows = [
        el(
            "tr",
            el("th", el("a", entry.run, href=href(".", f"{entry.run}/report.html")), scope="row"),
            el("td", f"{'rehearsal ' if entry.rehearsal else ''}{entry.state}", class_="word"),
            el("td", _verdict(entry), class_="word"),
            el("td", entry.points or text.MISSING, class_="word"),
            el("td", entry.note, class_="text"),
        )
        for entry in reversed(entries)
    ]
    head = el("tr", *(el("th", name, scope="col", class_="text") for name in heads))
    return table("The newest first.", [head], rows, class_="sortable filtered")


def _verdict(entry: Entry) -> Markup:
    if entry.valid is None:
        return escape(text.MISSING)
    return el("span", "valid" if entry.valid else "invalid", class_="badge good" if entry.valid else "badge bad")
