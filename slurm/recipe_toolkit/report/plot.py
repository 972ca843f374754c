"""The frontier in a terminal: a few lines of characters, for people on ssh."""

from __future__ import annotations

from collections.abc import Sequence

from recipe_toolkit.report import text
from recipe_toolkit.report.figures.frontier import INVALID, PREDICTED, PUBLISHED, Entry, best

_LINES = 14
_MARGIN = 9
# Later ones are drawn over earlier ones.
_SIGNS = {INVALID: "!", PUBLISHED: "P", PREDICTED: "?"}
_MEANS = {"●": "on the frontier", "o": "measured", "!": "invalid", "?": "predicted", "P": "published"}


def render_plot(found: Sequence[Entry], unit: str, width: int = 80) -> str:
    """Total tokens/s per ``unit`` against tokens/s per user, in lines of at most ``width``; empty without points."""
    drawn = [entry for entry in found if entry.user is not None]
    if not drawn:
        return ""
    first = {id(drawn[index]) for index in best(drawn, "user", lower=False)}
    columns = max(width - _MARGIN - 2, 20)
    right = max(entry.user or 0.0 for entry in drawn) or 1.0
    top = max(entry.gpu for entry in drawn) or 1.0
    grid = [[" "] * columns for _ in range(_LINES)]
    signs = {id(entry): "●" if id(entry) in first else _SIGNS.get(entry.kind, "o") for entry in drawn}
    for sign in ("!", "P", "?", "o", "●"):
        for entry in drawn:
            if signs[id(entry)] == sign:
                across = round((entry.user or 0.0) / right * (columns - 1))
                up = round(entry.gpu / top * (_LINES - 1))
                grid[_LINES - 1 - up][across] = sign
    lines = [f"total tokens/s per {unit}"]
    for index, row in enumerate(grid):
        share = (_LINES - 1 - index) / (_LINES - 1)
        label = text.number(top * share) if index in (0, _LINES // 2, _LINES - 1) else ""
        lines.append(f"{label:>{_MARGIN}} ┤{''.join(row)}".rstrip())
    end = text.number(right)
    lines.append(f"{'':{_MARGIN}} └{'─' * columns}"[:width])
    lines.append(f"{'0':>{_MARGIN + 2}}{'tokens/s per user':^{columns - len(end) - 1}}{end}")
    said = [f"{sign} {_MEANS[sign]}" for sign in _MEANS if sign in signs.values()]
    return "\n".join([*lines, f"{'':{_MARGIN + 2}}{'   '.join(said)}"]) + "\n"
