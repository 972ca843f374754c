"""The results of ``vllm bench serve``, in our names (read in ``vllm/benchmarks/serve.py``, 0.32).

Its TPOT and ITL are what we call so: ITL are the gaps between streamed chunks of all requests, and
in chat the chunk that names the role counts as the first one. Tokens are those of the server's
``usage``, prompts included; an answer without ``usage`` is counted by the tokenizer, and nothing
says so. It exits with 0 when requests failed, and writes 0 for a figure that has no value. TPOT of
an answer of one token is 0 for its goodput, so such an answer meets any bound. It does not name its
version.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.model import Length, Requests, Stat, number
from recipe_toolkit.results.records import Records, Request, error_text, error_texts, stat

# The name that the plan asks for.
SUMMARY = "vllm_bench.json"

_ENDPOINTS = {"openai": "completions", "vllm": "completions", "openai-chat": "chat"}
# Figures against what the records give: the same numbers, unless the file is a foreign or an edited one.
_RECORD_TOLERANCE = 0.01
_LENGTH_TOLERANCE = 0.05
_PARTS = ("mean", "p50", "p90", "p99")
# A gap takes 20 bytes and a gigabyte of them minutes to parse, in which the run would look dead.
_GAPS_BYTES = 64 * 1024 * 1024
_SUMMARY_BYTES = 4 * 1024 * 1024 * 1024


def read_vllm_bench(folder: Path) -> Figures:
    """What it measured, from the artifacts in ``folder``; never raises on bad files, the faults say why."""
    summary, fault = _read(folder / SUMMARY)
    if summary is None:
        return Figures(faults=(fault,))
    records, faults = _records(summary)
    ok, failed = _count(summary, "completed"), _count(summary, "failed")
    stats = {name: _stat(summary, name) if ok else None for name in ("ttft", "tpot", "itl", "e2el")}
    if records is not None:
        faults += [*error_texts(records.errors), *_check(ok, stats, records, _gaps(summary)), *_short(summary)]
    duration = number(summary.get("duration")) or None
    goodput = number(summary.get("request_goodput"))
    return Figures(
        endpoint=_ENDPOINTS.get(str(summary.get("backend"))),
        isl=_length(summary, "total_input_tokens", ok),
        osl=_length(summary, "total_output_tokens", ok),
        requests=Requests(ok=ok, failed=failed),
        duration_s=duration,
        ttft_ms=stats["ttft"],
        tpot_ms=stats["tpot"],
        itl_ms=stats["itl"],
        e2e_ms=stats["e2el"],
        requests_per_s=number(summary.get("request_throughput")),
        input_tps=_over(number(summary.get("total_input_tokens")), duration),
        output_tps=number(summary.get("output_throughput")),
        total_tps=number(summary.get("total_token_throughput")),
        per_user_tps=_per_user(records),
        goodput_rps=goodput,
        good_request_ratio=_good_ratio(goodput, duration, ok, failed),
        faults=tuple(faults),
        raw=tuple(_raw(summary)),
    )


def _read(path: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        if path.stat().st_size > _SUMMARY_BYTES:
            return None, f"{path.name} is larger than {_SUMMARY_BYTES} bytes"
        raw = path.read_bytes()
        data = json.loads(raw if len(raw) <= _GAPS_BYTES else without_gaps(raw))
    except FileNotFoundError:
        return None, f"the client wrote no {path.name}"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path.name} cannot be read: {error}"
    if not isinstance(data, dict):
        return None, f"{path.name} holds no JSON object"
    return data, ""


def without_gaps(raw: bytes) -> bytes:
    """The document with an empty list of ITL: numbers in two levels of lists, so that the end is the first ``]]``."""
    start = raw.find(b'"itls": [[')
    end = raw.find(b"]]", start)
    return raw if start < 0 or end < 0 else raw[:start] + b'"itls": []' + raw[end + 2 :]


def _records(summary: Mapping[str, Any]) -> tuple[Records | None, list[str]]:
    """The requests one by one, None where the file lacks them (``--save-detailed``), and what is wrong with them."""
    columns = [summary.get("ttfts"), _latencies(summary), summary.get("output_lens"), summary.get("errors")]
    lists = [column for column in columns if isinstance(column, list)]
    if not lists:
        return None, []
    if len(lists) < len(columns) or len({len(column) for column in lists}) != 1:
        return None, [f"{SUMMARY}: the records of the requests are incomplete"]
    ok = failed = bad = 0
    errors: Counter[str] = Counter()
    ttfts: list[float] = []
    tpots: list[float] = []
    latencies: list[float] = []
    for first, last, tokens, error in zip(*lists, strict=True):
        ttft, latency, length = number(first), number(last), number(tokens)
        # Only an answer has a latency; the text may be empty where a proxy gave no reason.
        if error or latency == 0:
            failed += 1
            errors[_error(error)] += 1
        elif ttft is None or latency is None or length is None:
            bad += 1
        else:
            ok += 1
            ttfts.append(ttft * 1000)
            latencies.append(latency * 1000)
            if length > 1:
                tpots.append((latency - ttft) * 1000 / (length - 1))
    faults = [f"{SUMMARY}: {bad} records are none"] if bad else []
    return Records(ok, failed, bad, errors, tuple(ttfts), tuple(tpots), tuple(latencies)), faults


def _raw(summary: Mapping[str, Any]) -> Iterator[Request]:
    """The requests that were answered, on the client's own clock; none from a file that does not say all of it."""
    names = ("start_times", "ttfts", "input_lens", "output_lens")
    columns = [summary.get(names[0]), summary.get(names[1]), _latencies(summary), *map(summary.get, names[2:])]
    lists = [column for column in columns if isinstance(column, list)]
    if len(lists) < len(columns) or len({len(column) for column in lists}) != 1:
        return
    for row in zip(*lists, strict=True):
        sent, ttft, latency, isl, osl = map(number, row)
        if sent is not None and ttft is not None and latency and isl is not None and osl:
            yield Request(sent, sent + ttft, sent + latency, isl, osl)


def _latencies(summary: Mapping[str, Any]) -> object:
    """Seconds of each request. Where the file has none (0.22), they are the first token's and the gaps after it."""
    firsts, rows = summary.get("ttfts"), summary.get("itls")
    if "latencies" in summary or not isinstance(firsts, list) or not isinstance(rows, list) or len(rows) != len(firsts):
        return summary.get("latencies")
    return [_sum([first, *row]) if isinstance(row, list) else None for first, row in zip(firsts, rows, strict=True)]


def _sum(values: Sequence[object]) -> float | None:
    numbers = [number(value) for value in values]
    return None if None in numbers else math.fsum(value for value in numbers if value is not None)


def _error(text: object) -> str:
    """A whole traceback stands there: its last line says what happened."""
    lines = [line for line in str(text or "").splitlines() if line.strip()]
    return error_text({"message": lines[-1] if lines else "no answer"})


def _gaps(summary: Mapping[str, Any]) -> list[float]:
    rows = summary.get("itls")
    rows = rows if isinstance(rows, list) else []
    values = (number(value) for row in rows if isinstance(row, list) for value in row)
    return [value * 1000 for value in values if value is not None]


def _check(ok: int | None, stats: Mapping[str, Stat | None], records: Records, gaps: Sequence[float]) -> Iterator[str]:
    """The figures against the same ones made again from the records."""
    if ok is not None and ok != records.ok:
        yield f"the summary counts {ok} requests and the records {records.ok}"
    # Gaps of requests that failed half-way stand in the records too.
    again = {"ttft": records.ttft_ms, "tpot": records.tpot_ms, "e2el": records.e2e_ms}
    if not records.failed:
        again["itl"] = tuple(gaps)
    for name, values in again.items():
        said, made = stats[name], stat(values)
        if said is None or made is None:
            continue
        for part, one, other in zip(_PARTS, astuple(said), astuple(made), strict=True):
            if one is not None and not math.isclose(one, other, rel_tol=_RECORD_TOLERANCE, abs_tol=1e-6):
                yield f"{part} {name} is {one:.3f} ms in the summary and {other:.3f} ms in the records"
                break


def _short(summary: Mapping[str, Any]) -> list[str]:
    """An answer that the server broke off with an error in the stream counts as a good one."""
    lengths = [value for value in map(number, summary["output_lens"]) if value]
    longest = max(lengths, default=0.0)
    off = sum(value < longest * (1 - _LENGTH_TOLERANCE) for value in lengths)
    return [f"{off} of {len(lengths)} answers are shorter than the others (more than 5 %)"] if off else []


def _per_user(records: Records | None) -> float | None:
    speeds = [1000 / value for value in records.tpot_ms if value > 0] if records else []
    return math.fsum(speeds) / len(speeds) if speeds else None


def _good_ratio(goodput: float | None, duration: float | None, ok: int | None, failed: int | None) -> float | None:
    """Of all requests, those that failed included, as AIPerf's."""
    made = (ok or 0) + (failed or 0)
    if goodput is None or duration is None or not made:
        return None
    return round(goodput * duration) / made


def _length(summary: Mapping[str, Any], name: str, ok: int | None) -> Length:
    seen = _over(number(summary.get(name)), ok)
    return Length(seen_mean_tokens=seen, counted_by=None if seen is None else "server")


def _over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _count(summary: Mapping[str, Any], name: str) -> int | None:
    value = number(summary.get(name))
    return None if value is None else round(value)


def _stat(summary: Mapping[str, Any], name: str) -> Stat | None:
    found = Stat(*(number(summary.get(f"{part}_{name}_ms")) for part in _PARTS))
    return found if any(astuple(found)) else None
