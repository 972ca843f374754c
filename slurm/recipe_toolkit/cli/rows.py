"""Rows of text in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from recipe_toolkit.errors import printable


def table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as their widest cell; the last one ends where it ends."""
    for line in columns(rows):
        click.echo(line)


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of :func:`table`."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        printable("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip())
        for row in rows
    ]


def word(value: Any) -> str:
    """A value, or a dash where there is none."""
    return "-" if value is None else str(value)
