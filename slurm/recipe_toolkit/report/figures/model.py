"""A figure as data: Vega-Lite panels over named rows, and the same in a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from recipe_toolkit.results.model import scrub

Row = Mapping[str, Any]
# Colours are the page's variables: a browser resolves them, light or dark; for PNG files :func:`for_paper` does.
SERIES = tuple(f"var(--s{number})" for number in range(1, 9))
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_GIVEN = re.compile(r"(--[\w-]+):\s*([^;]+);")
_PNG_WIDTH = 860


@dataclass(frozen=True)
class Panel:
    """One picture of a figure. ``spec``: Vega-Lite without width; ``says``: what it shows, for who cannot see it."""

    spec: Row
    says: str


@dataclass(frozen=True)
class Figure:
    """``about``: the caption. ``data``: rows by the names that the specs use. ``head``, ``rows``: all of it as a table.

    ``shown``: how many of the rows stand on the page behind the figure, the rest being in its CSV file.
    """

    key: str
    title: str
    about: str
    data: Mapping[str, Sequence[Row]]
    panels: tuple[Panel, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()
    shown: int = 200
    wide: bool = field(default=False)


def config() -> dict[str, Any]:
    """The look of all figures."""
    quiet = {"labelColor": "var(--soft)", "titleColor": "var(--soft)", "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif",
        "view": {"stroke": None},
        "axis": {
            **quiet,
            "titleFontWeight": "normal",
            "gridColor": "var(--rule)",
            "domainColor": "var(--rule)",
            "tickColor": "var(--rule)",
            "titlePadding": 8,
            "labelOverlap": True,
        },
        "legend": {**quiet, "orient": "top", "title": None, "symbolSize": 90, "labelLimit": 260, "columns": 4},
    }


def whole_spec(figure: Figure) -> dict[str, Any]:
    """All panels one below the other with their data, as one picture of a fixed width, coloured for paper."""
    panels = [{**panel.spec, "width": _PNG_WIDTH} for panel in figure.panels]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {"text": figure.title, "anchor": "start", "fontSize": 16, "offset": 14},
        "config": {**config(), "background": "#ffffff", "font": "DejaVu Sans, Arial, sans-serif"},
        "padding": 16,
        "datasets": figure.data,
        "vconcat": panels,
        "resolve": {"scale": {"color": "independent", "shape": "independent", "strokeDash": "independent"}},
    }
    return for_paper(spec)


def for_paper(spec: Row) -> dict[str, Any]:
    """The spec with the page's light colours in place of their variables."""
    known = _colours()
    text = _VARIABLE.sub(lambda found: known[found[1]], json.dumps(scrub(spec), allow_nan=False))
    return json.loads(text)  # type: ignore[no-any-return]


@cache
def _colours() -> dict[str, str]:
    css = files("recipe_toolkit.report").joinpath("page.css").read_text(encoding="utf-8")
    return dict(_GIVEN.findall(css[: css.index("@media")]))
