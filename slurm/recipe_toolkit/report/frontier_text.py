"""The frontier for a terminal: what was put in, the dominant points, measured ones beside their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.table import WIDTH, Column, aligned, wrap

_COMPARED = (
    ("requests_per_s", "req/s"),
    ("ttft_ms", "TTFT ms"),
    ("tpot_ms", "TPOT ms"),
    ("e2e_ms", "E2E ms"),
    ("output_tps_per_user", "tok/s per user"),
    ("total_tps_per_gpu", "total tok/s per GPU"),
)
_FORMS = {"prefill": "prefill alone", "decode-bench": "dummy KV", "isl-1": "ISL 1"}
_SHOWN = 12


def render(data: Mapping[str, Any], width: int = WIDTH) -> str:
    """The document of schemas/frontier.json as text."""
    labels = {pool["id"]: pool["label"] for pool in data["pools"]}
    blocks = [_lines(_head(data), width), aligned(_pool_columns(), [_row(pool) for pool in data["pools"]], width)]
    leading = [point for point in data["points"] if point["dominant"] or point["best"]]
    if leading:
        title = "predicted, not measured; none of as many GPUs or fewer is better " + _on(data)
        rows = sorted((_row(point) for point in leading), key=lambda row: (row["output_tps_per_user"], row["gpus"]))
        blocks.append(f"{title}\n{aligned(_point_columns(data, labels), rows, width)}")
    else:
        blocks.append(f"no split of {data['gpus']['most']} GPUs holds an instance of each")
    if data["measured"]:
        blocks.append(_lines(_measured(data["measured"]), width))
    blocks.append(_lines(_tail(data), width))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _row(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "valid": True}


def _lines(lines: Iterator[str], width: int) -> str:
    return "\n".join(wrapped for line in lines for wrapped in wrap(line, width))


def _head(data: Mapping[str, Any]) -> Iterator[str]:
    most = "exactly" if data["gpus"]["exactly"] else "up to"
    unit = "GPUs" if data["device"] == "gpu" else "worker slots"
    yield f"{data['model']}: prefill and decode combined, {most} {data['gpus']['most']} {data['gpu']} {unit}"
    warning = text.warning(data)
    if warning is not None:
        yield warning.upper()
    yield f"{text.engine(data)}, ISL {text.count(data['isl'])}, OSL {text.count(data['osl'])} tokens"
    if data["slo"]:
        yield "SLO: " + ", ".join(text.bound(name, value) for name, value in data["slo"].items())


def _on(data: Mapping[str, Any]) -> str:
    return "on " + " and ".join(f"{item['metric']} ({item['better']})" for item in data["axes"])


def _pool_columns() -> list[Column]:
    def loads(pool: Mapping[str, Any]) -> str:
        said = [str(item["concurrency"] or item["point"]) for item in pool["samples"]]
        return " ".join(said)

    def transfer(pool: Mapping[str, Any]) -> str:
        return text.number((pool.get("transfer") or {}).get("ms"))

    return [
        Column(("", "pool"), lambda pool: pool["id"], left=True),
        Column(("", "layout"), lambda pool: pool["label"], left=True),
        Column(("", "GPUs"), lambda pool: str(pool["gpus"])),
        Column(("", "measured"), lambda pool: _FORMS[pool["form"]], left=True),
        Column(("", "in flight"), loads, left=True, give_up=1),
        Column(("peak", "req/s"), lambda pool: text.number(pool["peak_requests_per_s"])),
        Column(("KV transfer", "ms"), transfer),
    ]


def _point_columns(data: Mapping[str, Any], labels: Mapping[str, str]) -> list[Column]:
    def figure(key: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda point: text.number(point[key])

    def met(point: Mapping[str, Any]) -> str:
        return {True: "met", False: "missed", None: text.MISSING}[point["slo_met"]]

    unit = "per GPU" if data["device"] == "gpu" else "per slot"
    return [
        Column(("", "split"), lambda point: split_name(point, labels), left=True),
        Column(("", "GPUs"), lambda point: str(point["gpus"])),
        Column(("", "users"), lambda point: str(point["concurrency"])),
        Column(("TTFT", "ms"), figure("ttft_ms")),
        Column(("tok/s", "per user"), figure("output_tps_per_user")),
        Column(("E2E", "ms"), figure("e2e_ms"), give_up=2),
        Column(("total tok/s", unit), figure("total_tps_per_gpu")),
        Column(("", "limits"), lambda point: point["limits"], left=True),
        Column(("", "waste"), lambda point: text.percent(point["waste"]), give_up=1),
        Column(("", "SLO"), met),
        Column(("", ""), lambda point: "best" if point["best"] else "", left=True),
    ]


def split_name(point: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """``2 × TP1 DP4 + 1 × TP1 DP8``: prefill, then decode."""
    sides = [point[role] for role in ("prefill", "decode")]
    return " + ".join(f"{side['instances']} × {labels[side['pool']]}" for side in sides)


def _measured(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "measured, beside what was predicted for as many requests"
    for point in points:
        yield f"{point['run']} {point['point']}:"
        if point["predicted"] is None:
            yield f"  not predicted: {point['not_predicted']}"
            continue
        for key, title in _COMPARED:
            error = point["error_percent"].get(key)
            said = "" if error is None else f" ({error:+.1f} %)"
            seen, wanted = text.number(point[key]), text.number(point["predicted"].get(key))
            yield f"  {title:<20} {seen:>9} measured {wanted:>9} predicted{said}"


def _tail(data: Mapping[str, Any]) -> Iterator[str]:
    for note in data["notes"]:
        yield f"note: {note}"
    for term in data["missing_terms"]:
        yield f"not in the prediction: {term}"
    for item in data["left_out"][:_SHOWN]:
        yield f"not used: {item['run']} {item['point']}: {item['reason']}"
    if len(data["left_out"]) > _SHOWN:
        yield f"not used: {len(data['left_out']) - _SHOWN} more points"
    if data["points"]:
        yield "a predicted point counts when a run confirms it"
