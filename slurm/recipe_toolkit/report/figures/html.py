"""Figures on the page: a picture that a script draws, the words for it, and the table behind it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.figures.model import Figure, config
from recipe_toolkit.report.html import Markup, el
from recipe_toolkit.report.tables import table
from recipe_toolkit.results.model import scrub

MISSING = (
    "Without the report extra there are no pictures here, only their tables: "
    "pip install 'slurm-recipe-toolkit[report]', then recipe report again."
)
_NO_SCRIPT = "The pictures need scripts, which are off here; the tables hold the same."


def render(figure: Figure, *, drawn: bool, instead: Markup | None = None) -> Markup:
    """The figure. ``drawn``: whether the page has what draws it; ``instead``: a still picture for where it has not."""
    key = f"figure-{figure.key}"
    plots = [
        el("div", class_="plot", role="img", aria_label=panel.says, data_panel=index)
        for index, panel in enumerate(figure.panels)
    ]
    spec = {"config": config(), "datasets": figure.data, "panels": [panel.spec for panel in figure.panels]}
    shown = figure.rows[: figure.shown]
    rest = len(figure.rows) - len(shown)
    count = f"{len(shown)} of {len(figure.rows)} rows; recipe report --csv DIR writes all" if rest else ""
    behind = el(
        "details",
        el("summary", f"The same as a table{f' ({count})' if count else ''}"),
        _table(figure, shown),
    )
    return el(
        "figure",
        el("h3", figure.title, id=key),
        el("div", *plots, class_="plots wide" if figure.wide else "plots") if drawn else instead,
        el("noscript", el("p", _NO_SCRIPT), instead) if drawn else None,
        data("spec", spec) if drawn else None,
        el("figcaption", el("p", figure.about), *(el("p", note) for note in figure.notes)),
        behind,
        class_="card drawn",
        aria_labelledby=key,
    )


def _table(figure: Figure, rows: Sequence[Sequence[Any]]) -> Markup:
    words = [any(isinstance(row[index], str) for row in rows) for index in range(len(figure.head))]
    heads = [
        el("th", name, scope="col", class_="text" if word else None)
        for name, word in zip(figure.head, words, strict=True)
    ]
    body = [
        el(
            "tr",
            el("th", _cell(row[0]), scope="row"),
            *(
                el("td", _cell(value), class_="word" if word else None)
                for value, word in zip(row[1:], words[1:], strict=True)
            ),
        )
        for row in rows
    ]
    return table(f"{figure.title}, as a table.", [el("tr", *heads)], body, class_="sortable")


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return text.MISSING if value is None else text.number(value)


def data(name: str, value: Any) -> Markup:
    """Data for a script, which the page itself never runs whatever it holds."""
    said = json.dumps(scrub(value), ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return el("script", Markup(said), type="application/json", class_=name)


def script(code: str) -> tuple[Markup, str]:
    """A script element, and the word of the page's policy that lets it run, and nothing else."""
    code = code.replace("\r\n", "\n")
    digest = base64.b64encode(hashlib.sha256(code.encode("utf-8")).digest()).decode("ascii")
    return el("script", Markup(code)), f"'sha256-{digest}'"


def own_script() -> str:
    """The page's own code: pictures, sorting and filtering of tables, and looking again while a run goes on."""
    return files("recipe_toolkit.report").joinpath("page.js").read_text(encoding="utf-8")
