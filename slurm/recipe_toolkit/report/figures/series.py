"""Both pools over the time of the benchmark: requests, KV cache and tokens, from the engines' own metrics."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.report.figures.model import SERIES, Figure, Panel
from recipe_toolkit.results.model import number
from recipe_toolkit.results.pools import ROLES, role_of

_BUDGET_BYTES = 64 * 1024 * 1024
_STEPS = 600
_LATEST = 1e11  # seconds since the epoch; beyond this it is no time
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv",
}
_COUNTERS = {"vllm:prompt_tokens_total": "prompt", "vllm:generation_tokens_total": "generated"}
_WORDS = {
    "running": "running requests",
    "waiting": "waiting requests",
    "kv": "KV cache in use",
    "prompt": "prompt tokens/s",
    "generated": "generated tokens/s",
}
_PANELS = (
    ("requests", "requests", ("running", "waiting")),
    ("kv", "KV cache in use", ("kv",)),
    ("tokens", "tokens/s", ("prompt", "generated")),
)


@dataclass(frozen=True)
class Sample:
    """``t``: seconds since the epoch. ``value``: requests, a share of the KV cache, or tokens/s."""

    role: str
    what: str
    t: float
    value: float


@dataclass(frozen=True)
class Span:
    """A point of the benchmark, from its start to its end."""

    name: str
    start: float
    end: float


def figure(events: Sequence[Mapping[str, Any]], metrics: Path) -> Figure | None:
    """The figure of a run's metrics folder under the points that its events tell of; None where nothing was scraped."""
    samples = read_series(metrics)
    if not samples:
        return None
    spans = points_of(events)
    start = min([sample.t for sample in samples] + [span.start for span in spans])
    end = max([sample.t for sample in samples] + [span.end for span in spans])
    domain = [0, round(max(end - start, 1.0), 1)]
    roles = [role for role in ROLES if any(sample.role == role for sample in samples)]
    data: dict[str, list[dict[str, Any]]] = {
        "spans": [
            {
                "name": span.name,
                "from": round(span.start - start, 1),
                "to": round(span.end - start, 1),
                "odd": index % 2,
            }
            for index, span in enumerate(spans)
        ]
    }
    for key, _, kinds in _PANELS:
        data[key] = [
            {"t": round(sample.t - start, 1), "role": sample.role, "what": _WORDS[sample.what], "value": _short(sample)}
            for sample in samples
            if sample.what in kinds
        ]
    panels = tuple(_panel(key, title, kinds, roles, domain) for key, title, kinds in _PANELS if data[key])
    return Figure(
        "pools",
        "The pools over the time of the benchmark",
        "As the engines count, summed over each pool (KV cache: the mean of its engines), scraped every 5 s. The bands "
        "are the points; tokens/s are means between scrapes.",
        data,
        panels,
        ("seconds", "pool", "what", "value"),
        tuple((round(sample.t - start, 1), sample.role, _WORDS[sample.what], sample.value) for sample in samples),
        wide=True,
    )


def points_of(events: Sequence[Mapping[str, Any]]) -> list[Span]:
    """The points that were started, each until it was finished, or the next one or the last event."""
    spans: list[Span] = []
    last = 0.0
    for event in events:
        at, point = number(event.get("t")), event.get("point")
        if at is None or not 0 <= at < _LATEST:
            continue
        last = max(last, at)
        if event.get("event") == "point_started" and isinstance(point, str):
            spans = [span if span.end else Span(span.name, span.start, at) for span in spans]
            spans.append(Span(point, at, 0.0))
        elif event.get("event") == "point_finished" and spans and spans[-1].name == point and not spans[-1].end:
            spans[-1] = Span(spans[-1].name, spans[-1].start, at)
    return [span if span.end else Span(span.name, span.start, max(last, span.start)) for span in spans]


def read_series(folder: Path) -> list[Sample]:
    """The series of every pool by time, thinned; what is no metrics file or no sample is left out."""
    gauges: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    rates: dict[tuple[str, str, float], float] = defaultdict(float)
    left = _BUDGET_BYTES
    for path in sorted(folder.glob("*.jsonl")):
        role = role_of(path.stem)
        if role is None or not path.is_file():  # a pipe would never end
            continue
        try:
            size = path.stat().st_size
        except OSError:
            continue
        before: tuple[float, dict[str, float]] | None = None
        for t, values in _lines(path, left):
            sums = _sums(values)
            for what in _GAUGES.values():
                gauges[role, what, _second(t)] += sums.get(what, [])
            totals = {what: sum(sums[what]) for what in _COUNTERS.values() if what in sums}
            if before is not None and t > before[0]:
                for what, total in totals.items():
                    # An engine that began anew counts from 0.
                    grown = max(total - before[1].get(what, total), 0.0)
                    rates[role, what, _second(t)] += grown / (t - before[0])
            before = (t, totals)
        left -= min(left, size)
    found = [
        Sample(role, what, t, sum(values) / (len(values) if what == "kv" else 1))
        for (role, what, t), values in gauges.items()
        if values
    ]
    found += [Sample(role, what, t, value) for (role, what, t), value in rates.items()]
    found = [sample for sample in found if math.isfinite(sample.value)]
    return _thinned(sorted(found, key=lambda sample: (sample.t, sample.role, sample.what)))


def _second(t: float) -> float:
    """Scrapes of all processes of a pool are of one moment, however their lines are stamped."""
    return round(t, 1)


def _lines(path: Path, most: int) -> Iterator[tuple[float, Mapping[str, Any]]]:
    try:
        with path.open("rb") as file:
            while most > 0 and (line := file.readline(most)):
                most -= len(line)
                try:
                    data = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(data, dict) and isinstance(data.get("values"), dict):
                    t = number(data.get("t"))
                    if t is not None and 0 <= t < _LATEST:
                        yield t, data["values"]
    except OSError:
        return


def _sums(values: Mapping[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for series, value in values.items():
        name = series.partition("{")[0]
        what = _GAUGES.get(name) or _COUNTERS.get(name)
        if what is not None and (known := number(value)) is not None:
            found.setdefault(what, []).append(known)
    return found


def _thinned(samples: list[Sample]) -> list[Sample]:
    """Of each series the highest sample of a stretch, where there are more than so many stretches."""
    times = sorted({sample.t for sample in samples})
    if len(times) <= _STEPS:
        return samples
    width = (times[-1] - times[0]) / _STEPS
    kept: dict[tuple[str, str, int], Sample] = {}
    for sample in samples:
        key = (sample.role, sample.what, int((sample.t - times[0]) / width))
        if key not in kept or kept[key].value < sample.value:
            kept[key] = sample
    return sorted(kept.values(), key=lambda sample: (sample.t, sample.role, sample.what))


def _short(sample: Sample) -> float:
    return float(f"{sample.value:.5g}")


def _panel(key: str, title: str, kinds: Sequence[str], roles: Sequence[str], domain: Sequence[float]) -> Panel:
    scale = {"domain": list(roles), "range": list(SERIES[: len(roles)])}
    words = [_WORDS[kind] for kind in kinds]
    dashes = {"domain": words, "range": [[1, 0], [5, 4]][: len(words)]}
    x = {"field": "t", "type": "quantitative", "title": "seconds since the first point", "scale": {"domain": domain}}
    x["axis"] = {"grid": False}
    axis = {"format": "%"} if key == "kv" else {"format": ".3~s"}
    y = {"field": "value", "type": "quantitative", "title": title, "axis": axis}
    encoding = {
        "x": x,
        "y": y,
        "color": {"field": "role", "type": "nominal", "scale": scale, "legend": {"symbolType": "stroke"}},
    }
    dashed: dict[str, Any] = {"detail": {"field": "what"}}
    if len(words) > 1:
        legend = {"symbolType": "stroke", "symbolStrokeColor": "var(--soft)", "symbolStrokeWidth": 2}
        dashed = {
            "strokeDash": {"field": "what", "type": "nominal", "scale": dashes, "sort": None, "legend": legend},
        }
    tips = [
        {"field": "role", "title": "pool"},
        {"field": "what", "title": "what"},
        {"field": "t", "title": "second", "format": ",.0f"},
        {"field": "value", "title": "value", "format": ".1%" if key == "kv" else ",.4~g"},
    ]
    dot = {"mark": {"type": "point", "filled": True, "size": 50, "opacity": 0}, "encoding": {"tooltip": tips}}
    # A rate is that of the time before its scrape.
    line = {
        "type": "line",
        "strokeWidth": 1.8,
        "tooltip": None,
        "interpolate": "step-before" if key == "tokens" else "linear",
    }
    lines = {
        "encoding": encoding,
        "layer": [{"mark": line, "encoding": dashed}, dot],
    }
    spec = {"height": 150, "data": {"name": key}, "layer": [*_bands(domain, labelled=key == _PANELS[0][0]), lines]}
    return Panel(spec, f"{title} of each pool ({', '.join(roles)}) over {domain[1]:,.0f} seconds.")


def _bands(domain: Sequence[float], *, labelled: bool) -> list[dict[str, Any]]:
    x = {"field": "from", "type": "quantitative", "scale": {"domain": domain}}
    shade = {"condition": {"test": "datum.odd", "value": 0.10}, "value": 0.04}
    bands: list[dict[str, Any]] = [
        {
            "data": {"name": "spans"},
            "mark": {"type": "rect", "color": "var(--ink)", "tooltip": {"content": "data"}},
            "encoding": {
                "x": x,
                "x2": {"field": "to"},
                "y": {"value": 0},
                "y2": {"value": "height"},
                "opacity": shade,
                "tooltip": [{"field": "name", "title": "point"}],
            },
        }
    ]
    if labelled:
        bands.append(
            {
                "data": {"name": "spans"},
                "transform": [{"filter": f"datum.to - datum.from > {domain[1] / 12:.3f}"}],
                "mark": {"type": "text", "align": "left", "dx": 4, "dy": 10, "fontSize": 11, "color": "var(--soft)"},
                "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "name"}},
            }
        )
    return bands
