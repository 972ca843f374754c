"""Short names for swept fields and values: the same value has the same name, whatever else is swept."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from recipe_toolkit.faults import FieldPath

# Names of recipes have 80 characters at most, and a variant's is the recipe's with its id behind it.
_LONGEST_NAME = 80
_LONGEST_ID = 60
_LONGEST_VALUE = 24
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


def short_keys(paths: Collection[FieldPath]) -> dict[FieldPath, str]:
    """The shortest end of each path that no other has: ``max-num-seqs``, ``prefill.instances``."""
    found = {}
    for path in paths:
        size = 1
        while size < len(path) and any(path != other and path[-size:] == other[-size:] for other in paths):
            size += 1
        found[path] = ".".join(_safe(str(part), "-") for part in path[-size:])
    return found


def value_labels(values: Sequence[Any]) -> list[str]:
    """A label for each value: letters, digits, ``.`` and ``-``; two different values have different ones."""
    labels = [_label(value) for value in values]
    return [
        f"{label}-{_digest(_text(value), 4)}"
        if any(label == other and _text(value) != _text(values[index]) for index, other in enumerate(labels))
        else label
        for label, value in zip(labels, values, strict=True)
    ]


def joined(parts: Sequence[str]) -> str:
    """The id of several labels together, cut where it is long."""
    return _cut("_".join(parts), _LONGEST_ID)


def name_of_variant(recipe: str, variant: str) -> str:
    """The name of the recipe of a variant."""
    whole = f"{recipe}-{variant}"
    if len(whole) <= _LONGEST_NAME:
        return whole
    return f"{recipe[:40]}-{variant[:32]}-{_digest(whole, 6)}"


def _label(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        text = "-".join(f"{key}-{_label(item)}" for key, item in value.items()) or "empty"
    elif isinstance(value, list):
        text = "-".join(map(_label, value)) or "empty"
    else:
        text = value if isinstance(value, str) else _text(value)
    return _cut(_safe(text, "empty"), _LONGEST_VALUE)


def _safe(text: str, otherwise: str) -> str:
    return _UNSAFE.sub("-", text).strip("-.") or otherwise


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 7].rstrip('-._')}-{_digest(text, 6)}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
