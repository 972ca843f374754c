"""The table of results for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.report import text

WIDTH = 120
_GAP = "  "
_NAME = 24


@dataclass(frozen=True)
class Column:
    """``head``: two lines. ``give_up``: the columns that go first where the terminal is narrow have the highest."""

    head: tuple[str, str]
    cell: Callable[[Mapping[str, Any]], str]
    left: bool = False
    give_up: int = 0


def render_table(results: Mapping[str, Any], width: int = WIDTH) -> str:
    """The results as text of at most ``width`` columns (names that are longer wrap nothing else).

    Invalid points are marked in front, with their reasons below.
    """
    from recipe_toolkit.report.search_text import searches  # which has tables of this kind

    points = results["points"]
    blocks = [_head(results, width)]
    timed = [point for point in points if not text.of_accuracy(point)]
    if timed:
        few = text.few(timed)
        blocks.append("\n".join([aligned(columns(results), timed, width), *(wrap(few, width) if few else ())]))
    if results.get("spread"):
        blocks.append(
            "\n".join(["repeats: mean ± standard deviation", aligned(_spreads(results), _repeated(results), width)])
        )
    blocks += searches(results, width)
    rows = score_rows(points)
    if rows:
        blocks.append(aligned(score_columns(), rows, width))
    if not points:
        blocks.append("no point was measured")
    said = remarks(points, width)
    if said:
        blocks.append(said)
    return "\n\n".join(blocks) + "\n"


def _head(results: Mapping[str, Any], width: int) -> str:
    rehearsal = "rehearsal " if results["rehearsal"] else ""
    lines = [f"{results['recipe']}: {rehearsal}{results['state']}, {text.verdict(results)}"]
    warning = text.warning(results)
    if warning is not None:
        lines.append(warning.upper())
    nodes = len(results["nodes"])
    lines.append(f"run {results['run']}")
    lines.append(
        f"{text.engine(results)} serves {results['model']} on {text.gpus(results)}, "
        f"{nodes} node{'s' if nodes != 1 else ''}: {text.layout(results)}"
    )
    lines += [f"image {text.images(results)}"] if results["images"] else []
    lines += [f"setup {text.setup(results)}"] if results["setup"] else []
    lengths = text.same_length(results["points"])
    if lengths and lengths != (None, None):
        lines.append(f"ISL {text.count(lengths[0])}, OSL {text.count(lengths[1])} tokens")
    if results["slo"]:
        lines.append("SLO: " + ", ".join(text.bound(name, value) for name, value in results["slo"].items()))
    lines += [f"invalid: {reason}" for reason in results["reasons"]]
    return "\n".join(wrapped for line in lines for wrapped in wrap(line, width))


def columns(results: Mapping[str, Any]) -> list[Column]:
    """The columns of a table of points, named as the results need it."""
    known = results["gpus"]
    unit = text.unit_of_work(results)
    denominator = f"/working {unit}" if known["working"] != known["allocated"] else f"per {unit}"

    def stat(name: str, key: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda point: text.statistic(point, name, key)

    def rate(name: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda point: text.number(point[name])

    found = [
        Column(("", "point"), lambda point: _short(point["id"]), left=True),
        Column(("", "load"), text.load),
        Column(("", "answered"), text.answered, give_up=2),
    ]
    if text.same_length(results["points"]) is None:
        found.append(Column(("", "ISL"), lambda point: text.count(point["isl"]["wanted_tokens"])))
        found.append(Column(("", "OSL"), lambda point: text.count(point["osl"]["wanted_tokens"])))
    return [
        *found,
        Column(("TTFT ms", "mean"), stat("ttft_ms", "mean")),
        Column(("", "p99"), stat("ttft_ms", "p99"), give_up=4),
        # Beside TTFT, always: a user's speed says nothing of the wait.
        Column(("tok/s", "per user"), lambda point: text.number(point["output_tps_per_user"]["from_median_tpot"])),
        Column(("TPOT ms", "mean"), stat("tpot_ms", "mean")),
        Column(("", "p99"), stat("tpot_ms", "p99"), give_up=5),
        Column(("E2E ms", "mean"), stat("e2e_ms", "mean"), give_up=6),
        Column(("output", "tok/s"), rate("output_tps"), give_up=1),
        Column(("total", "tok/s"), rate("total_tps"), give_up=3),
        Column(("total tok/s", denominator), lambda point: text.number(point["total_tps_per_gpu"]["working"])),
        Column(("goodput", "req/s"), rate("goodput_rps"), give_up=7),
        Column(("", "SLO"), text.slo),
    ]


def _repeated(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**spread, "valid": spread["valid"] > 0, "counted": spread["valid"]} for spread in results["spread"]]


def _spreads(results: Mapping[str, Any]) -> list[Column]:
    """The columns of the points that were repeated."""

    def cell(path: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda spread: text.plus_minus(spread["metrics"].get(path))

    per_gpu = next(item.head for item in columns(results) if item.head[0] == "total tok/s")
    return [
        Column(("", "point"), lambda spread: _short(spread["repeat_of"]), left=True),
        Column(("", "counted"), lambda spread: f"{spread['counted']}/{len(spread['points'])}"),
        Column(("TTFT ms", "mean"), cell("ttft_ms.mean")),
        Column(("tok/s", "per user"), cell("output_tps_per_user.from_median_tpot")),
        Column(("TPOT ms", "mean"), cell("tpot_ms.mean")),
        Column(("E2E ms", "mean"), cell("e2e_ms.mean"), give_up=3),
        Column(("output", "tok/s"), cell("output_tps"), give_up=2),
        Column(per_gpu, cell("total_tps_per_gpu.working"), give_up=1),
    ]


def score_rows(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of the accuracy points a row a score, which is the item ``of``."""
    scored = [point for point in points if text.of_accuracy(point)]
    return [{**point, "of": score} for point in scored for score in point.get("accuracy") or (None,)]


def score_columns() -> list[Column]:
    """The columns of :func:`score_rows`."""

    def of(cell: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: text.MISSING if row["of"] is None else cell(row["of"])

    return [
        Column(("", "accuracy"), lambda row: _short(row["id"]), left=True),
        Column(("", "task"), of(lambda score: _printable(score["task"])), left=True),
        Column(("", "metric"), of(lambda score: _printable(score["metric"])), left=True, give_up=2),
        Column(("", "filter"), of(lambda score: _printable(score["filter"])), left=True),
        Column(("", "score"), of(text.score)),
        Column(("", "documents"), of(lambda score: text.count(score["samples"])), give_up=1),
        Column(("", "shots"), of(lambda score: text.count(score["num_fewshot"])), give_up=3),
        Column(("", "asked"), of(text.threshold)),
        Column(("", ""), of(text.reached), left=True),
    ]


def aligned(columns: Sequence[Column], points: Sequence[Mapping[str, Any]], width: int) -> str:
    """The table: without columns that are empty, and without some where the width is not enough for all."""
    filled = [column for column in columns if any(column.cell(point) != text.MISSING for point in points)]
    while True:
        rows = [[column.cell(point) for column in filled] for point in points]
        widths = [
            max(len(value) for value in (*column.head, *(row[index] for row in rows)))
            for index, column in enumerate(filled)
        ]
        spare = max(filled, key=lambda column: column.give_up)
        if 2 + sum(widths) + len(_GAP) * (len(widths) - 1) <= width or not spare.give_up:
            break
        filled.remove(spare)

    def line(mark: str, values: Sequence[str]) -> str:
        padded = (
            value.ljust(size) if column.left else value.rjust(size)
            for value, size, column in zip(values, widths, filled, strict=True)
        )
        return f"{mark} {_GAP.join(padded)}".rstrip()

    head = [line(" ", [column.head[index] for column in filled]) for index in (0, 1)]
    body = [line(" " if point["valid"] else "!", row) for point, row in zip(points, rows, strict=True)]
    return "\n".join([*(row for row in head if row), *body])


def remarks(points: Sequence[Mapping[str, Any]], width: int) -> str:
    """Why points do not count, then what is to be noted of them."""
    lines: list[str] = []
    for point in points:
        lines += [wrapped for reason in point["reasons"] for wrapped in wrap(f"! {point['id']}: {reason}", width)]
    for point in points:
        lines += [wrapped for note in point["notes"] for wrapped in wrap(f"  {point['id']}: {note}", width)]
    return "\n".join(lines)


def wrap(said: str, width: int) -> list[str]:
    """Lines of at most ``width``, those that go on indented."""
    lines = []
    for index, line in enumerate(said.splitlines()):
        clean = _printable(line)
        indent = clean[: len(clean) - len(clean.lstrip())]
        first = indent if index == 0 else "    "
        lines += textwrap.wrap(
            clean.strip(), width, initial_indent=first, subsequent_indent=f"{indent}    ", break_on_hyphens=False
        )
    return lines


def _short(name: str) -> str:
    clean = _printable(name)
    return clean if len(clean) <= _NAME else f"{clean[: _NAME - 1]}…"


def _printable(said: str) -> str:
    """What a client or a recipe wrote, without the control characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "�" for char in said)
