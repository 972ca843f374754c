"""What is known of a model, as files tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Card(NamedTuple):
    """A model's config.json, and what logs have measured of it on a GPU (``gpu`` in each; sizes in bytes)."""

    name: str
    config: Mapping[str, Any]
    source: str
    measured: tuple[Mapping[str, Any], ...] = ()
