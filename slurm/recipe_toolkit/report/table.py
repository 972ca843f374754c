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
class _Column:
    """``head``: two lines. ``give_up``: the columns that go first where the terminal is narrow have the highest."""

    head: tuple[str, str]
    cell: Callable[[Mapping[str, Any]], str]
    left: bool = False
    give_up: int = 0


def render_table(results: Mapping[str, Any], width: int = WIDTH) -> str:
    """The results as text of at most ``width`` columns (names that are longer wrap nothing else).

    Invalid points are marked in front, with their reasons below.
    """
    points = results["points"]
    blocks = [_head(results, width)]
    timed = [point for point in points if not text.of_accuracy(point)]
    if timed:
        blocks.append(_table(_columns(results), timed, width))
    scored = [point for point in points if text.of_accuracy(point)]
    if scored:
        rows = [{**point, "of": score} for point in scored for score in point.get("accuracy") or (None,)]
        blocks.append(_table(_score_columns(), rows, width))
    if not points:
        blocks.append("no point was measured")
    remarks = _remarks(points, width)
    if remarks:
        blocks.append(remarks)
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
    return "\n".join(wrapped for line in lines for wrapped in _wrap(line, width))


def _columns(results: Mapping[str, Any]) -> list[_Column]:
    known = results["gpus"]
    unit = text.unit_of_work(results)
    denominator = f"/working {unit}" if known["working"] != known["allocated"] else f"per {unit}"

    def stat(name: str, key: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda point: text.number((point[name] or {}).get(key))

    def rate(name: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda point: text.number(point[name])

    columns = [
        _Column(("", "point"), lambda point: _short(point["id"]), left=True),
        _Column(("", "load"), text.load),
        _Column(("", "answered"), text.answered, give_up=2),
    ]
    if text.same_length(results["points"]) is None:
        columns.append(_Column(("", "ISL"), lambda point: text.count(point["isl"]["wanted_tokens"])))
        columns.append(_Column(("", "OSL"), lambda point: text.count(point["osl"]["wanted_tokens"])))
    return [
        *columns,
        _Column(("TTFT ms", "mean"), stat("ttft_ms", "mean")),
        _Column(("", "p99"), stat("ttft_ms", "p99"), give_up=4),
        # Beside TTFT, always: a user's speed says nothing of the wait.
        _Column(("tok/s", "per user"), lambda point: text.number(point["output_tps_per_user"]["from_median_tpot"])),
        _Column(("TPOT ms", "mean"), stat("tpot_ms", "mean")),
        _Column(("", "p99"), stat("tpot_ms", "p99"), give_up=5),
        _Column(("E2E ms", "mean"), stat("e2e_ms", "mean"), give_up=6),
        _Column(("output", "tok/s"), rate("output_tps"), give_up=1),
        _Column(("total", "tok/s"), rate("total_tps"), give_up=3),
        _Column(("total tok/s", denominator), lambda point: text.number(point["total_tps_per_gpu"]["working"])),
        _Column(("goodput", "req/s"), rate("goodput_rps"), give_up=7),
        _Column(("", "SLO"), text.slo),
    ]


def _score_columns() -> list[_Column]:
    """Of the accuracy points: a row a score, which is the item ``of``."""

    def of(cell: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: text.MISSING if row["of"] is None else cell(row["of"])

    return [
        _Column(("", "accuracy"), lambda row: _short(row["id"]), left=True),
        _Column(("", "task"), of(lambda score: _printable(score["task"])), left=True),
        _Column(("", "metric"), of(lambda score: _printable(score["metric"])), left=True, give_up=2),
        _Column(("", "filter"), of(lambda score: _printable(score["filter"])), left=True),
        _Column(("", "score"), of(text.score)),
        _Column(("", "documents"), of(lambda score: text.count(score["samples"])), give_up=1),
        _Column(("", "shots"), of(lambda score: text.count(score["num_fewshot"])), give_up=3),
        _Column(("", "asked"), of(text.threshold)),
        _Column(("", ""), of(text.reached), left=True),
    ]


def _table(columns: Sequence[_Column], points: Sequence[Mapping[str, Any]], width: int) -> str:
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


def _remarks(points: Sequence[Mapping[str, Any]], width: int) -> str:
    lines: list[str] = []
    for point in points:
        lines += [wrapped for reason in point["reasons"] for wrapped in _wrap(f"! {point['id']}: {reason}", width)]
    for point in points:
        lines += [wrapped for note in point["notes"] for wrapped in _wrap(f"  {point['id']}: {note}", width)]
    return "\n".join(lines)


def _wrap(said: str, width: int) -> list[str]:
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
