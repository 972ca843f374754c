"""AIPerf's artifacts, in our names.

AIPerf's ``inter_token_latency`` is what everybody else calls TPOT, and its ``inter_chunk_latency``
is their ITL (read in ``aiperf/metrics/types``, 0.13.0). It exits with 0 when some requests failed
and when it was cancelled, and writes no summary when all of them failed, so the exit code says
little. Its rates are over the phase's window, a few ms longer than ``benchmark_duration``. 0.12
has no ``is_complete``, and counts the server's ``usage`` only when it is told to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.model import Length, Requests, Stat, number
from recipe_toolkit.results.records import Records, error_text, error_texts, read_records

SUMMARY = "profile_export_aiperf.json"
RECORDS = "profile_export.jsonl"

# The client's own count of output tokens against the server's: beyond this, TPOT and rates are off.
_COUNT_TOLERANCE = 0.01
# Summary against records. They hold the same numbers; what differs is a cut or foreign file.
_RECORD_TOLERANCE = 0.01
# The summary is some 40 kB. Beyond this it is not one.
_SUMMARY_BYTES = 256 * 1024 * 1024


def read_aiperf(folder: Path) -> Figures:
    """What AIPerf measured, from the artifacts in ``folder``; never raises on bad files, the faults say why."""
    records = read_records(folder / RECORDS)
    summary, fault = _read_summary(folder / SUMMARY)
    if summary is None:
        return _without_summary(fault, records)
    faults = [*_ended(summary), *_check_counts(summary), *_check_records(summary, records)]
    ok, failed = _count(summary, "request_count"), _count(summary, "error_request_count")
    return Figures(
        version=_text(summary.get("aiperf_version")),
        endpoint=_endpoint(summary),
        isl=_length(summary, "input_sequence_length", "usage_prompt_tokens"),
        osl=_length(summary, "output_sequence_length", "usage_completion_tokens"),
        # AIPerf leaves error_request_count out where there was none.
        requests=Requests(ok=ok, failed=failed if failed is not None else (0 if ok is not None else None)),
        duration_s=_avg(summary, "benchmark_duration"),
        ttft_ms=_stat(summary, "time_to_first_token"),
        tpot_ms=_stat(summary, "inter_token_latency"),
        itl_ms=_stat(summary, "inter_chunk_latency"),
        e2e_ms=_stat(summary, "request_latency"),
        requests_per_s=_avg(summary, "request_throughput"),
        input_tps=_avg(summary, "input_token_throughput"),
        output_tps=_avg(summary, "output_token_throughput"),
        total_tps=_avg(summary, "total_token_throughput"),
        per_user_tps=_avg(summary, "output_token_throughput_per_user"),
        goodput_rps=_avg(summary, "goodput"),
        good_request_ratio=_avg(summary, "good_request_fraction"),
        faults=tuple(faults),
        notes=tuple(_notes(summary)),
        raw=records.raw if records else (),
        warmup=records.warmup if records else None,
        began=min((item.sent for item in records.raw), default=None) if records else None,
    )


def _read_summary(path: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        if path.stat().st_size > _SUMMARY_BYTES:
            return None, f"{path.name} is larger than {_SUMMARY_BYTES} bytes"
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"the client wrote no {path.name}"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path.name} cannot be read: {error}"
    if not isinstance(data, dict):
        return None, f"{path.name} holds no JSON object"
    return data, ""


def _without_summary(fault: str, records: Records | None) -> Figures:
    faults = [fault]
    if records is None:
        return Figures(faults=tuple(faults))
    faults += error_texts(records.errors)
    return Figures(requests=Requests(ok=records.ok, failed=records.failed), faults=tuple(faults))


def _ended(summary: Mapping[str, Any]) -> list[str]:
    faults = []
    if summary.get("was_cancelled") is True:
        faults.append("the client was cancelled before it had finished")
    elif summary.get("is_complete") is False:
        reason = _text(summary.get("incomplete_reason")) or "no reason given"
        faults.append(f"the client says that its results are incomplete: {reason}")
    return faults + error_texts(_errors(summary))


def _errors(summary: Mapping[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    entries = summary.get("error_summary")
    for entry in entries if isinstance(entries, list) else ():
        details = entry.get("error_details") if isinstance(entry, dict) else None
        if isinstance(details, dict):
            text = error_text(details)
            counts[text] = counts.get(text, 0) + round(number(entry.get("count")) or 0)
    return counts


def _check_counts(summary: Mapping[str, Any]) -> list[str]:
    faults = []
    client, server = _avg(summary, "output_sequence_length"), _avg(summary, "usage_completion_tokens")
    if client is not None and server and abs(client / server - 1) > _COUNT_TOLERANCE:
        faults.append(
            f"the client counted {client:.2f} output tokens a request where the server says {server:.2f}: "
            "TPOT and rates rest on the client's count (AIPerf: --use-server-token-count)"
        )
    ok, off = _count(summary, "request_count"), _count(summary, "osl_mismatch_count")
    if off and ok:
        faults.append(f"{off} of {ok} answers are not as long as asked (more than 5 % off)")
    return faults


def _check_records(summary: Mapping[str, Any], records: Records | None) -> list[str]:
    if records is None:
        return []
    faults = []
    if records.bad_lines:
        faults.append(f"{RECORDS}: {records.bad_lines} lines are no records")
    ok = _count(summary, "request_count")
    if ok is not None and ok != records.ok:
        faults.append(f"the summary counts {ok} requests and the records {records.ok}")
    for name, values in (("time_to_first_token", records.ttft_ms), ("request_latency", records.e2e_ms)):
        said = _avg(summary, name)
        if said and values:
            mean = sum(values) / len(values)
            if abs(mean / said - 1) > _RECORD_TOLERANCE:
                faults.append(f"mean {name} is {said:.3f} ms in the summary and {mean:.3f} ms in the records")
    return faults


def _notes(summary: Mapping[str, Any]) -> list[str]:
    client, server = _avg(summary, "input_sequence_length"), _avg(summary, "usage_prompt_tokens")
    if client and server and abs(client / server - 1) > _COUNT_TOLERANCE:
        return [
            f"input rates rest on the client's count, {client:.2f} prompt tokens a request; "
            f"the server says {server:.2f}"
        ]
    return []


def _length(summary: Mapping[str, Any], client: str, server: str) -> Length:
    seen = _avg(summary, server)
    if seen is not None:
        return Length(seen_mean_tokens=seen, counted_by="server")
    seen = _avg(summary, client)
    return Length(seen_mean_tokens=seen, counted_by=None if seen is None else "client")


def _endpoint(summary: Mapping[str, Any]) -> str | None:
    config = summary.get("input_config")
    endpoint = config.get("endpoint") if isinstance(config, dict) else None
    return _text(endpoint.get("type")) if isinstance(endpoint, dict) else None


def _metric(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    metric = summary.get(name)
    return metric if isinstance(metric, dict) else {}


def _avg(summary: Mapping[str, Any], name: str) -> float | None:
    return number(_metric(summary, name).get("avg"))


def _count(summary: Mapping[str, Any], name: str) -> int | None:
    value = _avg(summary, name)
    return None if value is None else round(value)


def _stat(summary: Mapping[str, Any], name: str) -> Stat | None:
    metric = _metric(summary, name)
    stat = Stat(*(number(metric.get(key)) for key in ("avg", "p50", "p90", "p99")))
    return None if stat == Stat() else stat


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
