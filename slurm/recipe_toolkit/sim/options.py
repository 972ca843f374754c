"""The ``--sim`` document: timing and faults of one simulated process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit import sim_options
from recipe_toolkit.sim.flags import UsageError


@dataclass(frozen=True)
class Fault:
    """What goes wrong in this process, ``after_s`` seconds from ready. ``dp_rank`` None: in all.

    ``load_s``: how much longer the kind ``slow_load`` loads, seconds.
    """

    kind: str
    after_s: float = 0.0
    code: int = 1
    dp_rank: int | None = None
    load_s: float = 10.0


@dataclass(frozen=True)
class Options:
    """``values``: every key of :data:`recipe_toolkit.sim_options.KEYS`. ``fault``: this process's own."""

    values: Mapping[str, float] = field(default_factory=dict)
    fault: Fault | None = None

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def seconds(self, name: str) -> float:
        """A key that is given in milliseconds, in seconds."""
        return self.values[name] / 1000.0


def parse(text: str, environment: Mapping[str, str]) -> Options:
    """Read the document; RECIPE_INSTANCE and RECIPE_RANK of the environment say whose fault it is.

    Raises UsageError with everything that is wrong.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"argument --sim: {error}") from error
    if not isinstance(document, dict):
        raise UsageError("argument --sim: not a JSON object")
    if troubles := sim_options.check(document):
        lines = [
            f"argument --sim: {key}: {message}" + (f" ({hint})" if hint else "") for key, message, hint in troubles
        ]
        raise UsageError("\n".join(lines))
    values = {name: document.get(name, key.default) for name, key in sim_options.KEYS.items()}
    return Options(values, _own_fault(document.get("fault"), environment))


def _own_fault(fault: Mapping[str, Any] | None, environment: Mapping[str, str]) -> Fault | None:
    if fault is None:
        return None
    for key, variable in (("instance", "RECIPE_INSTANCE"), ("rank", "RECIPE_RANK")):
        if key in fault and str(fault[key]) != environment.get(variable, "0"):
            return None
    return Fault(
        fault["kind"],
        fault.get("after_s", 0.0),
        int(fault.get("code", 1)),
        fault.get("dp_rank"),
        fault.get("load_s", Fault.load_s),
    )
