"""A comparison for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from recipe_toolkit.report import text
from recipe_toolkit.report.changes import Change, shown
from recipe_toolkit.report.compare import Comparison, Match, Row, signed
from recipe_toolkit.report.search_text import answers, of_searches

WIDTH = 120
_NAME = 32
# More runs than this beside each other are as wide as no terminal.
_BESIDE = 3


def render(found: Comparison, width: int = WIDTH) -> str:
    """The runs, what differs in their conditions, then a table a metric: rows are points, columns runs."""
    blocks = ["\n".join(_head(found))]
    said = [*conditions(found.labels, found.conditions), *(f"  not compared: {item}" for item in found.unknown)]
    blocks.append("\n".join(_wrapped(["conditions that differ:", *(said or ["  none"])], width)))
    searched = list(answers(found.labels, found.runs))
    if searched:
        blocks.append("\n".join(_wrapped(["answers of the searches:", *searched], width)))
    noted = _wrapped(remarks(found), width)
    if noted:
        blocks.append("\n".join(noted))
    for rows in by_metric(found):
        for first in range(1, len(found.runs), _BESIDE):
            beside = range(first, min(first + _BESIDE, len(found.runs)))
            blocks.append("\n".join(_table(found, rows, beside, width)))
    blocks.append("\n".join(_wrapped(verdicts(found), width)))
    return "\n\n".join(blocks) + "\n"


def by_metric(found: Comparison) -> list[list[tuple[Match, Row]]]:
    """The rows of each metric, of the points that more than one run has."""
    rows = [(match, row) for match in found.matches if match.beside for row in match.rows]
    metrics = dict.fromkeys(row.metric for _, row in rows)
    return [[(match, row) for match, row in rows if row.metric == metric] for metric in metrics]


def _head(found: Comparison) -> Iterator[str]:
    for label, run in zip(found.labels, found.runs, strict=True):
        reasons = "; ".join(run["reasons"])
        rehearsal = "rehearsal " if run["rehearsal"] else ""
        yield f"{label}  {run['run']}: {rehearsal}{run['state']}, {text.verdict(run)}" + (
            f": {reasons}" if reasons else ""
        )
    warning = next((said for run in found.runs if (said := text.warning(run)) is not None), None)
    if warning is not None:
        yield warning.upper()


def conditions(labels: Sequence[str], found: Sequence[Change]) -> list[str]:
    """A line a field: the two values, or each run's where there are more."""
    lines = []
    for change in found:
        values = [shown(value) for value in change.values]
        each = " → ".join(values) if len(values) == 2 else ", ".join(map(" ".join, zip(labels, values, strict=True)))
        lines.append(f"  {change.field}: {each}")
    return lines


def remarks(found: Comparison) -> list[str]:
    """Points that some run lacks, that do not count, or that are not the same measurement."""
    lines = []
    # Two searches seldom try the same loads.
    searched = of_searches(found.runs)
    for match in found.matches:
        name = match.point["id"]
        here = [label for label, point in zip(found.labels, match.points, strict=True) if point is not None]
        if len(here) < len(found.labels) and name not in searched:
            lines.append(f"  {name}: only in {', '.join(here)}")
        for label, reasons, why in zip(found.labels, match.invalid, match.why_not, strict=True):
            if reasons:
                lines.append(f"! {name}: invalid in {label}: {'; '.join(reasons)}")
            if why:
                lines.append(f"  {name}: not comparable, {found.labels[0]} and {label} have {why}")
    return lines


def _table(found: Comparison, rows: Sequence[tuple[Match, Row]], beside: range, width: int) -> list[str]:
    metric = rows[0][1].metric
    lines = [f"{metric.title}, {metric.unit} ({metric.better} is better)"]
    base = found.labels[0]
    cells = [["", base, *(cell for index in beside for cell in (found.labels[index], f"to {base}", ""))]]
    for match, row in rows:
        line = [_short(match.point["id"]), value(match, row, 0)]
        for index in beside:
            item = row.differences[index]
            why = "n/c" if item and item.why_not else ""
            line += [value(match, row, index), signed(item) if item else "", (item and item.verdict) or why]
        cells.append(line)
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        left = [index == 0 or (index > 1 and index % 3 == 1) for index in range(len(line))]
        padded = [
            cell.ljust(size) if is_left else cell.rjust(size)
            for cell, size, is_left in zip(line, widths, left, strict=True)
        ]
        lines.append(f"  {'  '.join(padded)}".rstrip())
    reasons = dict.fromkeys(
        f"  n/c {found.labels[index]}: {item.why_not}"
        for _, row in rows
        for index in beside
        if (item := row.differences[index]) and item.why_not
    )
    return lines + _wrapped(list(reasons), width)


def value(match: Match, row: Row, index: int) -> str:
    """A cell: the figure of a run; never that of an invalid point."""
    return "invalid" if match.invalid[index] else text.number(row.values[index])


def verdicts(found: Comparison) -> list[str]:
    """A line a run: how many figures are better and worse than the first's, and the worst."""
    lines = []
    for index, label in enumerate(found.labels[1:], 1):
        held = [
            (item, match, row)
            for match in found.matches
            for row in match.rows
            if (item := row.differences[index]) is not None and item.verdict is not None
        ]
        if not held:
            lines.append(f"{label} to {found.labels[0]}: nothing could be compared")
            continue
        count = {word: sum(item.verdict == word for item, _, _ in held) for word in ("better", "worse", "same")}
        line = f"{label} to {found.labels[0]}: " + ", ".join(
            f"{number} {word}" for word, number in count.items() if number
        )
        losses = [entry for entry in held if entry[0].verdict == "worse"]
        if losses:
            item, match, row = max(losses, key=lambda entry: abs(entry[0].percent or 0.0))
            line += f"; worst: {row.metric.title} of {match.point['id']}, {signed(item)}"
        lines.append(line)
    return lines


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    found: list[str] = []
    for line in lines:
        clean = "".join(char if char.isprintable() else "�" for char in line)
        indent = clean[: len(clean) - len(clean.lstrip())]
        found += textwrap.wrap(
            clean.strip(), width, initial_indent=indent, subsequent_indent=f"{indent}    ", break_on_hyphens=False
        )
    return found


def _short(name: str) -> str:
    clean = "".join(char if char.isprintable() else "�" for char in name)
    return clean if len(clean) <= _NAME else f"{clean[: _NAME - 1]}…"
