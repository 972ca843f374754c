"""What stands beside the points on the page: the spread of repeats, steady windows, and what others have published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_toolkit.report import published, text
from recipe_toolkit.report.html import Markup, el
from recipe_toolkit.report.tables import table
from recipe_toolkit.results.repeats import at

_REPEATED = (
    ("TTFT mean ms", "ttft_ms.mean"),
    ("tok/s per user (1000 / median TPOT)", "output_tps_per_user.from_median_tpot"),
    ("TPOT mean ms", "tpot_ms.mean"),
    ("E2E mean ms", "e2e_ms.mean"),
    ("output tok/s", "output_tps"),
)


def repeats_table(results: Mapping[str, Any]) -> Markup | None:
    """Mean and standard deviation of the points that were repeated; None where none was."""
    spreads = results.get("spread")
    if not spreads:
        return None
    unit = text.unit_of_work(results)
    columns = (*_REPEATED, (f"total tok/s per working {unit}", "total_tps_per_gpu.working"))
    heads = ("point", "counted", *(head for head, _ in columns))
    rows = [
        el(
            "tr",
            el("th", spread["repeat_of"], scope="row"),
            el("td", f"{spread['valid']}/{len(spread['points'])}"),
            *(el("td", text.plus_minus(spread["metrics"].get(path))) for _, path in columns),
        )
        for spread in spreads
    ]
    return table("Mean ± standard deviation of the repeats that count", [_head(*heads)], rows)


_WINDOW = (
    ("TTFT mean ms", "ttft_ms.mean"),
    ("TTFT p50 ms", "ttft_ms.p50"),
    ("tok/s per user (1000 / median TPOT)", "output_tps_per_user.from_median_tpot"),
    ("TPOT mean ms", "tpot_ms.mean"),
    ("output tok/s", "output_tps"),
    ("total tok/s", "total_tps"),
)


def windows_table(results: Mapping[str, Any]) -> Markup | None:
    """The valid points' steady windows, each figure beside that of the whole point; None where there is none."""
    points = [point for point in results["points"] if point["valid"] and point.get("window")]
    if not points:
        return None
    heads = ("point", "seconds", "requests", *(head for head, _ in _WINDOW))
    rows = []
    for point in points:
        window = point["window"]
        span = f"{text.number(window['from_s'])} to {text.number(window['to_s'])}"
        counted = f"{text.count(window['requests'])} of {text.count(point['requests']['ok'])}"
        figures = (f"{text.number(at(window, path))} ({text.number(at(point, path))})" for _, path in _WINDOW)
        rows.append(
            el("tr", el("th", point["id"], scope="row"), *(el("td", cell) for cell in (span, counted, *figures)))
        )
    caption = "Without the first burst and the end; of the whole point in brackets"
    return table(caption, [_head(*heads)], rows)


def published_table(results: Mapping[str, Any]) -> Markup | None:
    """Each published figure beside ours; None where nothing was published.

    The figures of a simulated run stand beside none, and of published ones alone there is a table too.
    """
    items = results["published"]
    if not items:
        return None
    if results["simulated"]:
        return el(
            "p", "Something was published of this system; figures of the simulated engine stand beside none of it."
        )
    rows = []
    for found in published.against(results):
        item = items[found.item]
        said = published.conditions(item)
        change = "" if found.percent is None else f"{found.percent:+.1f} %"
        cells = (
            f"{found.metric.title} {found.metric.unit}".strip(),
            found.point or text.MISSING,
            text.number(found.published),
            text.number(found.seen),
            change,
            found.verdict,
            "; ".join(str(part) for part in (found.why, item.get("note"), item.get("url")) if part),
        )
        rows.append(el("tr", el("th", said, scope="row"), *(el("td", cell) for cell in cells)))
    heads = ("published for", "figure", "point", "published", "measured", "", "", "")
    return table("Published figures beside ours", [_head(*heads)], rows)


def _head(*names: str) -> Markup:
    return el("tr", *(el("th", name, scope="col") for name in names))
