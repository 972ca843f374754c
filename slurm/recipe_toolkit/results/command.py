"""A command as client: figures are what it wrote to ``result.json`` in its artifacts folder.

The names and units are those of a point in results.json::

    {"version": "2.1", "requests": {"ok": 100, "failed": 0}, "duration_s": 12.5,
     "isl": {"seen_mean_tokens": 1024}, "ttft_ms": {"mean": 80.1, "p50": 78, "p90": 95, "p99": 120},
     "output_tps": 850.0, "output_tps_per_user": {"mean_of_inverse_tpot": 42.0}}

All are optional. Without the file there are no figures, and the exit code decides.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.model import Length, Requests, Stat, number

RESULT = "result.json"

_STATS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_NUMBERS = (
    "duration_s",
    "requests_per_s",
    "input_tps",
    "output_tps",
    "total_tps",
    "goodput_rps",
    "good_request_ratio",
)
_NESTED = ("requests", "isl", "osl", "output_tps_per_user")
_TEXTS = ("version", "endpoint")
_BYTES = 16 * 1024 * 1024


def read_command(folder: Path) -> Figures:
    """What a command reported in ``folder``; never raises on bad files, the faults say why."""
    path = folder / RESULT
    try:
        if path.stat().st_size > _BYTES:
            return Figures(faults=(f"{RESULT} is larger than {_BYTES} bytes",))
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Figures(notes=(f"the command wrote no {RESULT}, so there are no figures",))
    except (OSError, ValueError, RecursionError) as error:
        return Figures(faults=(f"{RESULT} cannot be read: {error}",))
    if not isinstance(data, dict):
        return Figures(faults=(f"{RESULT} holds no JSON object",))
    return _figures(data)


def _figures(data: dict[str, Any]) -> Figures:
    faults = [
        f"{RESULT}: {name} is {data[name]!r:.80}, which is no number"
        for name in _NUMBERS
        if data.get(name) is not None and number(data[name]) is None
    ]
    faults += [
        f"{RESULT}: {name} is no object"
        for name in (*_STATS, *_NESTED)
        if data.get(name) is not None and not isinstance(data[name], dict)
    ]
    known = {*_STATS, *_NUMBERS, *_NESTED, *_TEXTS}
    unknown = sorted(str(name) for name in data if name not in known)
    requests, per_user = _object(data, "requests"), _object(data, "output_tps_per_user")
    stats = {name: _stat(_object(data, name)) for name in _STATS}
    rates = {name: number(data.get(name)) for name in _NUMBERS}
    texts = {name: data[name] for name in _TEXTS if isinstance(data.get(name), str)}
    figures = Figures(
        requests=Requests(ok=_integer(requests.get("ok")), failed=_integer(requests.get("failed"))),
        isl=_length(_object(data, "isl")),
        osl=_length(_object(data, "osl")),
        per_user_tps=number(per_user.get("mean_of_inverse_tpot")),
        faults=tuple(faults),
        notes=(f"{RESULT}: fields that are not known and not used: {', '.join(unknown)}",) if unknown else (),
    )
    return dataclasses.replace(figures, **{**texts, **rates, **stats})


def _object(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _stat(data: dict[str, Any]) -> Stat | None:
    stat = Stat(*(number(data.get(key)) for key in ("mean", "p50", "p90", "p99")))
    return None if stat == Stat() else stat


def _length(data: dict[str, Any]) -> Length:
    seen = number(data.get("seen_mean_tokens"))
    return Length(seen_mean_tokens=seen, counted_by=None if seen is None else "client")


def _integer(value: object) -> int | None:
    count = number(value)
    return None if count is None else round(count)
