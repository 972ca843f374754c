"""How far the point is that is being measured, from the engines' counters that the run writes every few seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.plan.search import count
from recipe_toolkit.rundir import RunDir, read_json

_ASKED = re.compile(r"(.+)-([cr])([0-9]+)(?:\.[0-9]+)?-rep[0-9]+")
_TAIL = 16 * 1024 * 1024  # of a file that is longer when it is first read
_REQUESTS = "vllm:request_success_total"
_TOKENS = "vllm:generation_tokens_total"
# Prefill engines answer each request too.
_ANSWERING = ("decode", "serve")


@dataclass(frozen=True)
class Progress:
    """``done`` of ``wanted`` requests of a point, its warm-up included; ``output_tps``: since the sample before."""

    done: int
    wanted: int | None
    output_tps: float | None

    def __str__(self) -> str:
        text = f"{self.done:,} requests" if self.wanted is None else f"{self.done:,} of {self.wanted:,} requests"
        return text if self.output_tps is None else f"{text}, {self.output_tps:,.0f} tok/s"


@dataclass
class _Series:
    """What one process's file has said of the point so far: first, last but one, and last sample."""

    offset: int = 0
    point: str = ""
    first: tuple[float, float, float] | None = None
    before: tuple[float, float, float] | None = None
    last: tuple[float, float, float] | None = None


class ProgressReader:
    """Reads what was added to ``metrics/`` since the last look. What cannot be read is left out, never raised."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._wanted, self._rules, names = _planned(run)
        self._series = {name: _Series() for name in names}

    def of(self, point: str) -> Progress | None:
        """The progress of ``point``; None before its second sample, or where the engines say nothing."""
        for name, series in self._series.items():
            self._read(name, series, point)
        found = [series for series in self._series.values() if series.point == point and series.before is not None]
        if not found:
            return None
        done = sum(_difference(series.first, series.last, 1) for series in found)
        rates = [
            _difference(series.before, series.last, 2) / seconds
            for series in found
            if (seconds := _difference(series.before, series.last, 0)) > 0
        ]
        return Progress(round(done), self._requests(point), sum(rates) if rates else None)

    def _requests(self, point: str) -> int | None:
        """Of a point, its warm-up included; of one of a search by its rule."""
        asked = _ASKED.fullmatch(point)
        if asked is None or asked[1] not in self._rules:
            return self._wanted.get(point)
        rule, concurrency = self._rules[asked[1]], int(asked[3] or 0) if asked[2] == "c" else None
        counts = [
            count(rule.get(key), rule.get(f"{key}_per_concurrency"), concurrency) for key in ("requests", "warmup")
        ]
        return None if counts[0] is None else counts[0] + (counts[1] or 0)

    def _read(self, name: str, series: _Series, point: str) -> None:
        try:
            with (self._run.metrics / f"{name}.jsonl").open("rb") as file:
                end = file.seek(0, 2)
                skip = end - _TAIL > series.offset
                file.seek(max(series.offset, end - _TAIL))
                data = file.read(_TAIL)
                whole = data[: data.rfind(b"\n") + 1]
                series.offset = max(series.offset, end - _TAIL) + len(whole)
        except OSError:
            return
        for line in whole.splitlines()[skip:]:
            _take(series, line, point)


def _take(series: _Series, line: bytes, point: str) -> None:
    if json.dumps(point).encode() not in line:
        return
    try:
        item = json.loads(line)
        values: Mapping[str, Any] = item["values"]
        totals = [
            sum(value for key, value in values.items() if key.partition("{")[0] == name)
            for name in (_REQUESTS, _TOKENS)
        ]
        sample = (float(item["t"]), float(totals[0]), float(totals[1]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    if series.point != point:
        series.point, series.first, series.before, series.last = point, sample, None, sample
    else:
        series.before, series.last = series.last, sample


def _difference(one: tuple[float, ...] | None, other: tuple[float, ...] | None, field: int) -> float:
    return max(0.0, other[field] - one[field]) if one is not None and other is not None else 0.0


def _planned(run: RunDir) -> tuple[dict[str, int], dict[str, Mapping[str, Any]], list[str]]:
    """Requests by point, warm-up included; by search its rule for them; names of the processes whose counters tell."""
    try:
        plan = read_json(run.plan)
        wanted = {
            str(point["id"]): int(point["requests"]) + int(point["warmup"] or 0)
            for point in plan["benchmarks"]
            if point["requests"] is not None
        }
        rules = {str(point["id"]): point["search"] for point in plan["benchmarks"] if point.get("search")}
        names = [str(item["name"]) for item in plan["processes"] if item["api"] and item["role"] in _ANSWERING]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, {}, []
    return wanted, rules, names
