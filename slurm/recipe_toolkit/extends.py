"""``extends``: a recipe merged over its base, and that over its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from recipe_toolkit.document import Document, read_document
from recipe_toolkit.errors import InputError
from recipe_toolkit.faults import Fault, FieldPath, shown

_LONGEST_CHAIN = 20
# Replaces the base's as a whole: in a sweep, null is a value.
_WHOLE = ("sweep",)


def read_with_bases(path: Path) -> Document:
    """The document of a file merged over all its bases; the key ``extends`` is gone.

    Deep merge: mapping into mapping, anything else replaces (and so does a sweep), null deletes. Each value keeps
    the place that it came from. Raises InputError: a file cannot be read, holds no mapping, or extends itself.
    """
    documents: list[Document] = []
    chain: list[Path] = []
    name: Path | None = path
    fault: tuple[Document, Fault] | None = None
    while name is not None and fault is None:
        documents.append(_read_mapping(name, documents))
        chain.append(name)
        name, fault = _base(documents[-1], chain)
    problems = [problem for document in documents for problem in document.problems]
    if fault is not None:
        raise InputError([*problems, fault[0].problem(fault[1])])
    merged = documents.pop()
    while documents:
        merged = _merge(merged, documents.pop())
    return merged


def _read_mapping(path: Path, above: list[Document]) -> Document:
    try:
        document = read_document(path)
    except InputError as error:
        missing = [] if os.path.lexists(path) or not above else [Fault(("extends",), f"no such file: {path}")]
        found = [above[-1].problem(fault) for fault in missing] or list(error.problems)
        raise InputError([problem for item in above for problem in item.problems] + found) from error
    if not isinstance(document.data, dict):
        what = "is empty" if document.data is None else f"holds {shown(document.data)}, not a mapping"
        raise InputError([*document.problems, document.problem(Fault((), what))])
    return document


def _base(document: Document, chain: list[Path]) -> tuple[Path | None, tuple[Document, Fault] | None]:
    if "extends" not in document.data:
        return None, None
    extends = document.data.pop("extends")
    if not isinstance(extends, str) or not extends or "\0" in extends:
        return None, (document, Fault(("extends",), f"{shown(extends)} is not the path of a base recipe"))
    base = Path(os.path.normpath(chain[-1].parent / extends))
    seen = [_identity(item) for item in chain]
    if _identity(base) in seen:
        loop = " -> ".join(str(item) for item in [*chain[seen.index(_identity(base)) :], base])
        return None, (document, Fault(("extends",), f"recipes extend each other: {loop}"))
    if len(chain) >= _LONGEST_CHAIN:
        return None, (document, Fault(("extends",), f"more than {_LONGEST_CHAIN} bases, one below the other"))
    return base, None


def _identity(path: Path) -> str:
    return os.path.realpath(path)


def _merge(base: Document, over: Document) -> Document:
    """``over`` merged into ``base``, which is changed and returned under the name of ``over``."""
    base.problems.extend(over.problems)
    base.file = over.file
    base.values[()] = over.locate(())
    _merge_mapping(base, over, base.data, over.data, ())
    return base


def _merge_mapping(base: Document, over: Document, into: dict[str, Any], data: dict[str, Any], path: FieldPath) -> None:
    for name, value in data.items():
        at = (*path, name)
        if at == _WHOLE and value is not None:
            base.drop(at)
            into[name] = value
            base.graft(at, over, at)
        elif value is None:
            if name in into:
                del into[name]
                base.drop(at)
            else:
                base.problems.append(over.problem(Fault(at, "null deletes a key of the base, which has none here")))
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            base.keys[at], base.values[at] = over.locate(at, key=True), over.locate(at)
            _merge_mapping(base, over, into[name], value, at)
        elif isinstance(value, dict):
            base.drop(at)
            into[name] = {}
            base.keys[at], base.values[at] = over.locate(at, key=True), over.locate(at)
            _merge_mapping(base, over, into[name], value, at)
        else:
            base.drop(at)
            into[name] = value
            base.graft(at, over, at)
