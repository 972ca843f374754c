"""HTML from nested calls: whatever is not :class:`Markup` is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"br", "col", "hr", "meta", "rect", "circle", "line", "polyline", "path"})

# A line each, so that a page can be compared and read.
_LINES = frozenset(
    {"tr", "section", "li", "div", "details", "svg", "header", "footer", "main", "head", "body", "title"}
)


class Markup(str):
    """Text that is HTML already; made by :func:`el` and :func:`join` alone, and by hand for constants."""

    __slots__ = ()


def el(name: str, /, *children: str | None, **attributes: str | int | float | bool | None) -> Markup:
    """An element. Attributes: ``class_`` and ``for_`` lose the underscore, others' underscores become dashes.

    None and False leave an attribute out; True gives it no value; children that are None are left out.
    """
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID and not children:
        return Markup(f"<{name}{given}>" if name in ("br", "col", "hr", "meta") else f"<{name}{given}/>")
    end = "\n" if name in _LINES else ""
    return Markup(f"<{name}{given}>{join(children)}</{name}>{end}")


def join(children: Iterable[str | None], between: str = "") -> Markup:
    """The children one after the other, escaped where they are plain text."""
    return Markup(escape(between).join(escape(child) for child in children if child is not None))


def escape(text: str) -> Markup:
    """Plain text as HTML. Control characters, which HTML forbids, become a visible sign."""
    if isinstance(text, Markup):
        return text
    clean = "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)
    return Markup(html.escape(clean, quote=True))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
