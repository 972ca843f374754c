"""Rows of InferenceX's as our results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_toolkit.results.inferencex import CLIENT, LATENCIES, PARTS
from recipe_toolkit.results.model import (
    Client,
    Gpus,
    Layout,
    Length,
    PerGpu,
    PerUser,
    PointResult,
    Requests,
    Results,
    Stat,
    number,
)
from recipe_toolkit.results.rules import Reason

Row = Mapping[str, Any]

_LENGTHS = "InferenceX draws lengths from 0.8 of these up to them, unless its recipe says otherwise"
# The rates of a row agree with each other within what rounding leaves.
_ADDS_UP = 0.02
_MOST = 1e15


class RowError(ValueError):
    """A document that holds no rows, or a row that cannot be read; says which and why."""


def is_rows(data: object) -> bool:
    """Whether a JSON document is a row of InferenceX's, or a list of them."""
    first = data[0] if isinstance(data, list) and data else data
    return isinstance(first, Mapping) and "conc" in first and "framework" in first and "points" not in first


def read_rows(data: object, name: str) -> list[Results]:
    """The rows of a document as results, one for each configuration (hardware, model, framework, precision, layout).

    ``name``: of the file, which the results have as their run. Raises RowError.
    """
    if not is_rows(data):
        raise RowError("holds no result row of InferenceX: a row has `conc`, `framework` and `hw`")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for index, row in enumerate(data if isinstance(data, list) else [data]):
        if not isinstance(row, Mapping):
            raise RowError(f"row {index}: no JSON object")
        flat = _flat(row, index)
        groups.setdefault(_identity(flat), []).append(flat)
    return [_results(rows, name) for rows in groups.values()]


def _flat(row: Row, index: int) -> dict[str, Any]:
    """The row with its figures beside its conditions, under one set of names."""
    if "request_metrics" in row or str(row.get("scenario_type") or "").startswith("agentic"):
        raise RowError(f"row {index}: of an agentic trace, which has no ISL and OSL: not comparable with a point")
    metrics = row.get("metrics")
    flat = {**row, **(metrics if isinstance(metrics, Mapping) else {}), "row": index}
    flat.setdefault("hw", flat.get("hardware", flat.get("device")))
    flat.setdefault("spec_decoding", flat.get("spec_method"))
    for key in ("hw", "model"):
        if not isinstance(flat.get(key), str) or not flat[key]:
            raise RowError(f"row {index}: {key} is {flat.get(key)!r:.40}, and a name is wanted")
    for key in ("conc", "isl", "osl"):
        if not (value := _count(flat.get(key))):
            raise RowError(f"row {index}: {key} is {flat.get(key)!r:.40}, and a number of 1 or more is wanted")
        flat[key] = value
    return flat


_WHAT = ("hw", "framework", "model", "precision", "spec_decoding", "image")
_SHAPE = ("tp", "pp", "pcp_size", "dcp_size", "ep", "dp_attention", "num_workers")


def _identity(row: Row) -> tuple[Any, ...]:
    shape = [f"{role}{key}" for role in ("", "prefill_", "decode_") for key in _SHAPE]
    return (_true(row.get("is_multinode")), *(str(row.get(key)) for key in (*_WHAT, *shape)))


def _results(rows: Sequence[Row], name: str) -> Results:
    row = rows[0]
    by_role = _gpus(row)
    total = sum(by_role.values())
    points = tuple(_point(item, by_role) for item in rows)
    framework = str(row.get("framework") or "unknown")
    return Results(
        run=name,
        recipe=str(row.get("infmax_model_prefix") or row["model"]),
        model=row["model"],
        engine="vllm" if framework == "vllm" else "other",
        engine_version=framework if framework != "vllm" else "of an unknown version",
        simulated=False,
        rehearsal=False,
        gpus=Gpus(row["hw"], "gpu", total, total, by_role),
        state="done",
        points_wanted=len(points),
        points=points,
        layout=_layout(row, by_role),
        images={str(row["image"]).replace("#", "/"): None} if row.get("image") else {},
        message="read from result rows of InferenceX",
        valid=all(point.valid for point in points),
        reasons=tuple(f"{point.id}: invalid" for point in points if not point.valid),
    )


def _gpus(row: Row) -> dict[str, int]:
    if not _true(row.get("is_multinode")):
        size = _count(row.get("num_gpus")) or _product(row, "")
        return {"serve": size}
    prefill, decode = _count(row.get("num_prefill_gpu")), _count(row.get("num_decode_gpu"))
    if prefill is None or decode is None or prefill + decode == 0:
        raise RowError(f"row {row['row']}: is_multinode, and num_prefill_gpu and num_decode_gpu do not say its GPUs")
    return {"prefill": prefill, "decode": decode} if decode else {"serve": prefill}


def _product(row: Row, role: str) -> int:
    sizes = [_count(row.get(f"{role}{key}")) for key in ("tp", "pp", "pcp_size")]
    if not sizes[0]:
        raise RowError(f"row {row['row']}: {role}tp is {row.get(f'{role}tp')!r:.40}, and a size is wanted")
    return sizes[0] * (sizes[1] or 1) * (sizes[2] or 1)


def _layout(row: Row, by_role: Mapping[str, int]) -> dict[str, Layout]:
    found = {}
    for role in by_role:
        prefix = "" if not _true(row.get("is_multinode")) else "decode_" if role == "decode" else "prefill_"
        tp, pp = _count(row.get(f"{prefix}tp")) or 1, _count(row.get(f"{prefix}pp")) or 1
        ranks = tp if _true(row.get(f"{prefix}dp_attention")) else 1
        found[role] = Layout(
            instances=_count(row.get(f"{prefix}num_workers")) or 1,
            tp=tp // ranks,
            pp=pp,
            dp=ranks,
            dcp=_count(row.get(f"{prefix}dcp_size")) or 1,
            ep=(_count(row.get(f"{prefix}ep")) or 1) > 1,
        )
    return found


def _point(row: Row, by_role: Mapping[str, int]) -> PointResult:
    rates, notes = _rates(row, by_role)
    stats = {ours: _stat(row, theirs) for ours, theirs in LATENCIES.items()}
    figures: dict[str, Any] = {**stats, **rates}
    figures |= {f"{key}_per_gpu": _per_gpu(rate, by_role) for key, rate in rates.items()}
    tpot = stats["tpot_ms"]
    outcome = row.get("benchmark_outcome")
    done = outcome if isinstance(outcome, Mapping) else {}
    wanted, ok = _count(done.get("requested")), _count(done.get("completed"))
    failed = None if wanted is None or ok is None else wanted - ok
    reasons = [Reason("requests-failed", f"{failed} of {wanted} requests failed")] if failed else []
    if not reasons and done.get("status") == "failed":
        reasons = [Reason("client-failed", "the row says that its client failed")]
    return PointResult(
        id=f"{row['isl']}x{row['osl']}-c{row['conc']}",
        client=Client(CLIENT),
        artifacts="",
        exit_code=0,
        isl=Length(wanted_tokens=row["isl"]),
        osl=Length(wanted_tokens=row["osl"]),
        concurrency=row["conc"],
        requests=Requests(wanted, ok, failed),
        **figures,
        output_tps_per_user=PerUser(from_median_tpot=1000 / tpot.p50 if tpot and tpot.p50 else None),
        valid=not reasons,
        reasons=tuple(reason.text for reason in reasons),
        rules=tuple(reason.rule for reason in reasons),
        notes=(*notes, _LENGTHS),
    )


def _rates(row: Row, by_role: Mapping[str, int]) -> tuple[dict[str, float | None], list[str]]:
    """Tokens/s of the whole deployment. Which GPUs its per-GPU rates divide by is in the package's head."""
    everyone = sum(by_role.values())
    names = ("input_tput_per_gpu", "output_tput_per_gpu", "tput_per_gpu")
    given, gave, total = (_rate(row, key) for key in names)
    total = None if total is None else total * everyone
    of_roles = (by_role.get("prefill", everyone), by_role.get("decode", everyone))
    ways = [of_roles, (everyone, everyone)] if "output_tput_per_decode_gpu" not in row else [(everyone, everyone)]
    notes: list[str] = []
    chosen = ways[0]
    if None not in (given, gave, total) and not _add_up(given, gave, total, chosen):
        other = next((way for way in ways[1:] if _add_up(given, gave, total, way)), None)
        if other is not None:
            notes.append("its output_tput_per_gpu is over all GPUs: only so do its rates add up")
            chosen = other
        else:
            notes.append("its rates of input, output and both do not add up over any of its numbers of GPUs")
    found = {
        "input_tps": None if given is None else given * chosen[0],
        "output_tps": None if gave is None else gave * chosen[1],
        "total_tps": total,
    }
    return found, notes


def _rate(row: Row, name: str) -> float | None:
    value = number(row.get(name))
    if value is not None and not 0 <= value < _MOST:
        raise RowError(f"row {row['row']}: {name} is {value:g}, and a figure from 0 on is wanted")
    return value


def _add_up(given: float | None, gave: float | None, total: float | None, over: tuple[int, int]) -> bool:
    made = (given or 0.0) * over[0] + (gave or 0.0) * over[1]
    return abs(made - (total or 0.0)) <= _ADDS_UP * max(made, total or 0.0)


def _per_gpu(rate: float | None, by_role: Mapping[str, int]) -> PerGpu:
    everyone = sum(by_role.values())
    whole = None if rate is None else rate / everyone
    return PerGpu(whole, whole, {role: None if rate is None else rate / gpus for role, gpus in by_role.items()})


def _stat(row: Row, name: str) -> Stat | None:
    found = Stat(**{ours: _milliseconds(row, f"{theirs}_{name}") for ours, theirs in PARTS.items()})
    return None if found == Stat() else found


def _milliseconds(row: Row, name: str) -> float | None:
    seconds = _rate(row, name)
    if seconds is not None:
        return seconds * 1000
    speed = _rate(row, name.replace("tpot", "intvty")) if name.endswith("tpot") else None
    return 1000 / speed if speed else None


def _count(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    found = number(value)
    return None if found is None or not 0 <= found < _MOST or found != int(found) else int(found)


def _true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")
