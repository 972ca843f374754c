"""Answers as values: each function raises ValueError with what to write instead."""

from __future__ import annotations

import re
from typing import Any

NONE = "-"
_SIZE = re.compile(r"(tp|pp|dp|dcp)[:= ]?([0-9]+)")


def optional(text: str) -> str | None:
    """The text; None for ``-``."""
    return None if text in ("", NONE) else text


def number(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a positive integer")
    return int(text)


def numbers(text: str) -> list[int]:
    """Positive integers with commas or spaces between them."""
    return [number(item) for item in re.split(r"[,\s]+", text.strip("[] "))]


def role(text: str) -> dict[str, Any]:
    """``2:tp4`` or ``1:dp8,ep`` as ``instances`` and ``parallel``; sizes of 1 are left out."""
    count, sizes = text.split(":", 1) if re.match(r"\s*[0-9]+\s*:", text) else ("1", text)
    parallel: dict[str, Any] = {}
    for item in re.split(r"[,\s]+", sizes.strip()):
        match = _SIZE.fullmatch(item)
        if item == "ep":
            parallel["ep"] = True
        elif match and match[1] not in parallel:
            parallel[match[1]] = number(match[2])
        else:
            raise ValueError(f"{text!r} is not INSTANCES:SIZES, such as 2:tp4 or 1:dp8,ep")
    order = [key for key in ("tp", "pp", "dp", "dcp", "ep") if parallel.get(key, 1) is True or parallel.get(key, 1) > 1]
    return {"instances": number(count.strip()), "parallel": {key: parallel[key] for key in order}}


def is_alias(model: str) -> bool:
    """Whether a model is named by an alias of the profile."""
    return not model.startswith(("/", "hf:"))


def short(model: str) -> str:
    """The last part of a model's name, fit for the name of a recipe."""
    last = model.removeprefix("hf:").partition("@")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._").lower()[:40] or "model"
