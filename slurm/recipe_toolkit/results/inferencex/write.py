"""Our results as rows of InferenceX's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_toolkit.results.inferencex import LATENCIES, PARTS


def write_rows(results: Mapping[str, Any], said: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The valid points of a run (results.json's data) as rows, and what was left out and why.

    ``said``: fields of InferenceX that a run does not know, such as ``precision``; they win over what is known.
    """
    head = {**_head(results), **said}
    rows, left = [], []
    for point in results["points"]:
        why = _why_not(point)
        if why is None:
            rows.append({**head, **_load(point), **_deployment(results, point), **dict(_times(point))})
        else:
            left.append(f"{point['id']}: {why}")
    return rows, left


def _why_not(point: Mapping[str, Any]) -> str | None:
    if point["client"]["name"] == "lm-eval":
        return "a row holds no score"
    if not point["valid"]:
        return f"invalid: {point['reasons'][0]}"
    if point["concurrency"] is None or not point["isl"]["wanted_tokens"] or not point["osl"]["wanted_tokens"]:
        return "a row has a concurrency and lengths, and this point has not all of them"
    if point["total_tps"] is None or point["output_tps"] is None:
        return "its rates were not measured"
    return None


def _head(results: Mapping[str, Any]) -> dict[str, Any]:
    decode = results["gpus"]["by_role"].get("decode")
    drafts = any(
        (pool.get("spec_decode") or {}).get("drafts") for p in results["points"] for pool in p["pools"].values()
    )
    return {
        "hw": results["gpus"]["name"].lower(),
        "image": next(iter(results["images"]), ""),
        "model": results["model"],
        "infmax_model_prefix": results["model"],
        "framework": results["engine"] if results["engine"] != "other" else results["engine_version"],
        "precision": "unknown",
        "spec_decoding": "mtp" if drafts else "none",
        "disagg": bool(decode),
    }


def _load(point: Mapping[str, Any]) -> dict[str, Any]:
    lengths = {key: point[key]["wanted_tokens"] for key in ("isl", "osl")}
    wanted, ok = point["requests"]["wanted"], point["requests"]["ok"]
    outcome = {"status": "passed", "requested": wanted, "completed": ok} if wanted is not None else None
    return {"conc": point["concurrency"], **lengths, **({"benchmark_outcome": outcome} if outcome else {})}


def _deployment(results: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    by_role, layout = results["gpus"]["by_role"], results["layout"]
    total, output = point["total_tps"], point["output_tps"]
    everyone = sum(by_role.values())
    roles = {role: _parallel(shape) for role, shape in layout.items()}
    serve = layout.get("serve")
    if serve is not None and serve["instances"] == 1 and len(results["nodes"]) <= 1:
        rates = {"tput": total, "output_tput": output, "input_tput": total - output}
        per = {f"{key}_per_gpu": rate / everyone for key, rate in rates.items()}
        return {"is_multinode": False, **roles["serve"], **per}
    first = "serve" if serve is not None else "prefill"
    prefill, decode = by_role[first], by_role.get("decode", 0)
    found: dict[str, Any] = {"is_multinode": True}
    for prefix, role in (("prefill", first), ("decode", "decode" if decode else first)):
        found |= {f"{prefix}_{key}": value for key, value in roles[role].items()}
        found[f"{prefix}_num_workers"] = layout[role]["instances"] if prefix == "prefill" or decode else 0
    return {
        **found,
        "num_prefill_gpu": prefill,
        "num_decode_gpu": decode,
        **({} if decode else {"num_aggregate_gpu": prefill}),
        "tput_per_gpu": total / everyone,
        "output_tput_per_gpu": output / (decode or everyone),
        "input_tput_per_gpu": (total - output) / prefill,
    }


def _parallel(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Their tp holds the DP ranks too, where there are any."""
    tp, dp = shape["tp"], shape["dp"]
    return {
        "tp": tp * dp,
        "pp": shape["pp"],
        "dcp_size": shape["dcp"],
        "pcp_size": 1,
        "ep": tp * dp if shape["ep"] else 1,
        "dp_attention": "true" if dp > 1 else "false",
    }


def _times(point: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for ours, theirs in LATENCIES.items():
        for part, word in PARTS.items():
            value = (point[ours] or {}).get(part)
            if value is None:
                continue
            yield f"{word}_{theirs}", value / 1000
            if theirs == "tpot" and value > 0:
                yield f"{word}_intvty", 1000 / value
