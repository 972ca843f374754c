"""AIPerf's records, a JSON object a request, as a cross-check of its summary."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_toolkit.results.model import Stat, number

# An answer of so many tokens, each in less than this, was held back somewhere: no engine's step is so short.
_WHOLE_TOKENS = 16
_WHOLE_TOKEN_S = 0.05e-3
# Of an error's text, which may hold a whole page of HTML.
_MESSAGE_CHARS = 200
# Messages may hold request ids, so that each is another one.
_ERRORS_SHOWN = 3


@dataclass(frozen=True)
class Request:
    """A request that was answered. Times are seconds since any moment; ``isl`` and ``osl`` are tokens."""

    sent: float
    first: float
    last: float
    isl: float
    osl: float


@dataclass(frozen=True)
class Records:
    """What the records of the measured phase say. ``bad_lines``: lines that are no record.

    Latencies are ms, of requests that were answered; ``tpot_ms`` of answers of two tokens or more. ``raw``: those
    requests, where their records say when they were sent. ``warmup``: records of the phase before.
    """

    ok: int = 0
    failed: int = 0
    bad_lines: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    ttft_ms: tuple[float, ...] = ()
    tpot_ms: tuple[float, ...] = ()
    e2e_ms: tuple[float, ...] = ()
    raw: tuple[Request, ...] = ()
    warmup: int = 0


def whole(requests: Iterable[Request]) -> int:
    """How many answers came to the client in one piece, though they are of 16 tokens or more."""
    long = (item for item in requests if item.osl >= _WHOLE_TOKENS)
    return sum(item.last - item.first < (item.osl - 1) * _WHOLE_TOKEN_S for item in long)


def error_text(details: Mapping[str, Any]) -> str:
    """One line for AIPerf's ``error_details``: code, type, message, shortened."""
    message = " ".join(str(details.get("message") or "").split())
    head = " ".join(str(details[key]) for key in ("code", "type") if details.get(key))
    text = f"{head}: {message}" if head and message else head or message or "unknown error"
    return text if len(text) <= _MESSAGE_CHARS else f"{text[: _MESSAGE_CHARS - 1]}…"


def error_texts(counts: Mapping[str, int]) -> list[str]:
    """Sentences for errors and how often each was seen: the most frequent ones, and how many more."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    texts = [f"error seen {count} times: {text}" for text, count in ordered[:_ERRORS_SHOWN]]
    rest = sum(count for _, count in ordered[_ERRORS_SHOWN:])
    return [*texts, f"other errors: {rest}"] if rest else texts


def read_records(path: Path) -> Records | None:
    """The records of a ``profile_export.jsonl``, warm-up left out; None if it cannot be read.

    Read line by line: each holds every chunk's time, so files are large.
    """
    ok = failed = bad = warmup = 0
    errors: Counter[str] = Counter()
    series: dict[str, list[float]] = {"time_to_first_token": [], "inter_token_latency": [], "request_latency": []}
    raw: list[Request] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                record = _parse(line)
                if record is None:
                    bad += bool(line.strip())
                    continue
                metadata, metrics, error = record
                if metadata.get("benchmark_phase", "profiling") != "profiling":
                    warmup += error is None
                    continue
                if error is not None:
                    failed += 1
                    errors[error_text(error)] += 1
                    continue
                ok += 1
                for name, values in series.items():
                    value = _value(metrics, name)
                    if value is not None:
                        values.append(value)
                raw += _request(metadata, metrics)
    except OSError:
        return None
    return Records(
        ok=ok,
        failed=failed,
        bad_lines=bad,
        errors=dict(errors),
        ttft_ms=tuple(series["time_to_first_token"]),
        tpot_ms=tuple(series["inter_token_latency"]),
        e2e_ms=tuple(series["request_latency"]),
        raw=tuple(raw),
        warmup=warmup,
    )


def _value(metrics: Mapping[str, Any], name: str) -> float | None:
    metric = metrics.get(name)
    return number(metric.get("value")) if isinstance(metric, dict) else None


def _request(metadata: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[Request]:
    sent, ttft, latency, isl, osl = (
        number(metadata.get("request_start_ns")),
        _value(metrics, "time_to_first_token"),
        _value(metrics, "request_latency"),
        _value(metrics, "usage_prompt_tokens") or _value(metrics, "input_sequence_length"),
        _value(metrics, "usage_completion_tokens") or _value(metrics, "output_sequence_length"),
    )
    if sent is None or ttft is None or latency is None or isl is None or osl is None:
        return []
    at = sent / 1e9
    return [Request(at, at + ttft / 1000, at + latency / 1000, isl, osl)]


def _parse(line: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    metadata, metrics, error = record.get("metadata"), record.get("metrics"), record.get("error")
    if not isinstance(metadata, dict) or not isinstance(metrics, dict):
        return None
    if error is not None and not isinstance(error, dict):
        error = {"message": str(error)}
    return metadata, metrics, error


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile (0 to 100), linearly interpolated as numpy and AIPerf do. Raises ValueError if empty."""
    if not values:
        raise ValueError("percentile of no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def stat(values: Sequence[float]) -> Stat | None:
    """Mean and percentiles; None of no values."""
    if not values:
        return None
    return Stat(math.fsum(values) / len(values), *(percentile(values, q) for q in (50, 90, 99)))
