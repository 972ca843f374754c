"""The answers for people: the ledger, the requests, what fits and what does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recipe_toolkit.capacity.advice import Change, Layout, told
from recipe_toolkit.capacity.assess import Capacity, Check, Fit, bound
from recipe_toolkit.capacity.ledger import Line, size, span

_WORDS = {"ok": "fits", "doubtful": "doubtful", "bad": "NO"}


def number_range(low: int, high: int) -> str:
    """``268-326``, or one number."""
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def short(found: Capacity) -> str:
    """One line: weights, KV and requests of the recipe's longest benchmark."""
    fit = found.longest_benchmark
    left = found.budget
    held = span(max(0.0, min(left.low)), max(0.0, min(left.high)))
    requests = f"{number_range(fit.low, fit.high)} requests of {fit.length:,} tokens"
    ranks = " a rank" if found.ranks > 1 else ""
    return f"{found.role.name}: {size(found.weights.local)} of weights a GPU, {held} for KV: {requests}{ranks}"


def render(
    found: Capacity, changes: Sequence[Change], checks: Sequence[Check], card: str, *, ledger: bool = True
) -> str:
    """Everything about one role."""
    role, gpu = found.role, found.gpu
    where = f"{role.instances * role.parallel.size} x {gpu.name}" if gpu else "CPU"
    lines = [f"{role.name}: {role.instances} x {told(role.parallel)} on {where}; {found.model.name} ({card})"]
    if ledger:
        for title, chapter in found.lines():
            lines += ["", f"  {title}", *_table(chapter)]
    lines += ["", *_answers(found)]
    for check in [*found.checks, *checks]:
        lines.append(f"  {_WORDS[check.verdict]:8} {check.text}")
    lines += [f"  {'assumed':8} {text}" for text in found.settings.assumed]
    lines += [f"  {'left out':8} {text}" for text in found.settings.omitted]
    if changes:
        fit = found.longest_benchmark
        ranks = role.parallel.dp
        now = number_range(fit.low * ranks, fit.high * ranks)
        lines += ["", f"  would let in more than the {now} requests of {fit.length:,} tokens an instance:"]
        width = max(len(change.what) for change in changes)
        lines += [f"    {change.what:{width}}  {number_range(change.low, change.high)}" for change in changes]
    return "\n".join(lines)


def logged(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """What was predicted of a rank before calibration beside what its engine logged."""
    if rows:
        table = [("of a rank", "predicted", "logged"), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(3)]
        yield ""
        for row in table:
            yield f"  {row[0]:{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}"


def _table(chapter: Sequence[Line]) -> Iterator[str]:
    width = max(len(line.term) for line in chapter)
    result = max(len(line.result) for line in chapter)
    for line in chapter:
        source = f"  [{line.source}]" if line.source else ""
        yield f"    {line.term:{width}}  {line.result:>{result}}  = {line.formula}{source}"


def _answers(found: Capacity) -> Iterator[str]:
    blocks, tokens = number_range(*found.blocks), number_range(*found.tokens)
    yield f"  KV cache of a rank: {blocks} blocks, {tokens} tokens by max-model-len"
    rows = [("requests that KV holds", "tokens", "a rank", f"in {found.ranks} ranks", "bound by")]
    rows += [_row(found, fit) for fit in found.fits]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:4], widths[1:4], strict=True)),
        ]
        yield f"  {'  '.join(cells)}  {row[4]}"


def _row(found: Capacity, fit: Fit) -> tuple[str, str, str, str, str]:
    total = number_range(fit.low * found.ranks, fit.high * found.ranks)
    return fit.what, f"{fit.length:,}", number_range(fit.low, fit.high), total, bound(found, fit)


def topologies(found: Capacity, rows: Sequence[Layout], gpus: int) -> str:
    """All layouts of an instance of ``gpus`` GPUs, one a line."""
    fit = found.longest_benchmark
    head = ("layout", "weights a GPU", "KV a GPU", "request", "a rank", f"in {gpus} GPUs", "")
    table = [head, *(_layout_row(layout, fit.length) for layout in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(7)]
    title = f"{found.role.name}: an instance of {gpus} GPUs, requests of {fit.length:,} tokens at once"
    body = [
        "  ".join([row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in range(1, 6)), row[6]]).rstrip()
        for row in table
    ]
    return "\n".join([title, *(f"  {line}" for line in body)])


def _layout_row(layout: Layout, length: int) -> tuple[str, ...]:
    capacity = layout.capacity
    if capacity is None:
        return (layout.name, "", "", "", "", "", layout.why or "")
    left = capacity.budget
    fit = next(item for item in capacity.fits if item.length == length)
    held = span(max(0.0, min(left.low)), max(0.0, min(left.high))) if max(left.high) > 0 else "none"
    ranks = layout.parallel.dp
    return (
        layout.name,
        size(capacity.weights.local),
        held,
        size(capacity.pool.request_bytes(length)),
        number_range(fit.low, fit.high),
        number_range(fit.low * ranks, fit.high * ranks),
        {"no": "does not fit", "doubtful": "may not load", "yes": ""}[capacity.loads],
    )
