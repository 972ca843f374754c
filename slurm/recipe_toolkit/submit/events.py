"""events.jsonl as lines for people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_toolkit.errors import printable
from recipe_toolkit.rundir import RunDir, read_json

_SHOWN = 240


class EventReader:
    """Reads the events that were added since the last look; a half-written last line waits for its end."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The events since the last call; a line that is no JSON object is skipped."""
        try:
            with self._run.events.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:  # not there yet, or the file system is away for a moment
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                if event.get("event") == "point_finished":
                    event |= _figures(self._run, str(event.get("point")))
                yield event


def _figures(run: RunDir, point: str) -> dict[str, str]:
    """The headline figures of a finished point; none of what was not measured."""
    try:
        result = read_json(run.bench(point) / "point.json")["result"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    found = {}
    for name, path, unit in (
        ("ok", ("requests", "ok"), ""),
        ("failed", ("requests", "failed"), ""),
        ("TTFT", ("ttft_ms", "mean"), " ms"),
        ("TPOT", ("tpot_ms", "mean"), " ms"),
        ("output", ("output_tps",), " tok/s"),
    ):
        value: Any = result
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)) and not (name == "failed" and value == 0):
            found[name] = f"{value:.4g}{unit}"
    return found


def render_event(event: Mapping[str, Any]) -> str:
    """``HH:MM:SS what happened``, on one line."""
    at = event.get("t")
    stamp = time.strftime("%H:%M:%S", time.localtime(at)) if isinstance(at, (int, float)) else "--:--:--"
    name = str(event.get("event", "?"))
    fields = {key: value for key, value in event.items() if key not in ("t", "event")}
    text = f"phase {fields['phase']}" if name == "phase" and "phase" in fields else _plain(name, fields)
    line = printable(" ".join(f"{stamp} {text}".split()))
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _plain(name: str, fields: Mapping[str, Any]) -> str:
    said = [f"{key} {_value(value)}" for key, value in fields.items() if value not in (None, "", [], {})]
    return f"{name.replace('_', ' ')}: {', '.join(said)}" if said else name.replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {_value(item)}" for key, item in value.items()) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)
