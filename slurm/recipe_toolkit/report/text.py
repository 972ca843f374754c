"""Figures and facts in words, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_toolkit import slo as slo_names

MISSING = "–"
SIMULATED = "simulated engine: no figure here is a measurement of a real model"
REHEARSAL = "rehearsal on the simulated engine: no figure here is a measurement of a real model or a GPU"

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def number(value: object) -> str:
    """Three significant digits, all digits from 1,000 on; a dash for what was not measured."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return MISSING
    size = abs(value)
    if value == 0:
        return "0"
    # The limits are where rounding would show a digit more.
    for limit, form in ((0.001, ".2g"), (0.9995, ".3f"), (9.995, ".2f"), (99.95, ".1f"), (999.5, ".0f")):
        if size < limit:
            return f"{value:{form}}"
    return f"{value:,.0f}"


def statistic(point: Mapping[str, Any], name: str, key: str) -> str:
    """A figure of a distribution; ``~`` before a percentile that the point's requests are too few for."""
    value = number((point[name] or {}).get(key))
    return f"~{value}" if key in point.get("few_for", ()) and value != MISSING else value


def plus_minus(made: Mapping[str, Any] | None) -> str:
    """``86.0 ± 6.7``: the mean and the standard deviation of repeats; a dash for fewer than two."""
    return MISSING if made is None else f"{number(made['mean'])} ± {number(made['stdev'])}"


def few(points: Sequence[Mapping[str, Any]]) -> str | None:
    """What the ``~`` means, where a point has one."""
    marked = any(set(point.get("few_for", ())) & set(point.get("ttft_ms") or ()) for point in points)
    return "~ of too few requests: ten must lie beyond a percentile, p90 needs 100 and p99 1,000" if marked else None


def count(value: object) -> str:
    """A whole number with separators, or a dash."""
    return MISSING if isinstance(value, bool) or not isinstance(value, (int, float)) else f"{value:,.0f}"


def percent(value: object) -> str:
    """A ratio as percent, or a dash."""
    return MISSING if isinstance(value, bool) or not isinstance(value, (int, float)) else f"{value:.1%}"


def size(value: object) -> str:
    """Bytes with a decimal unit, or a dash."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return MISSING
    for unit, name in _BYTES:
        if value >= unit:
            return f"{number(value / unit)} {name}"
    return f"{value:,.0f} B"


def span(seconds: float) -> str:
    """A time span: ``850 ms``, ``12.3 s``, ``4 min 05 s``, ``2 h 03 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def load(point: Mapping[str, Any]) -> str:
    """What load the point put on: ``c 64`` (requests at a time) or ``4 req/s``."""
    if point.get("request_rate_rps") is not None:
        return f"{number(point['request_rate_rps'])} req/s"
    if point.get("concurrency") is not None:
        return f"c {point['concurrency']}"
    return MISSING


def answered(point: Mapping[str, Any]) -> str:
    """Requests answered of those wanted: ``640/640``."""
    requests = point["requests"]
    ok, wanted = requests.get("ok"), requests.get("wanted")
    if ok is None and wanted is None:
        return MISSING
    return count(ok) if wanted is None else f"{count(ok)}/{count(wanted)}"


def of_accuracy(point: Mapping[str, Any]) -> bool:
    """Whether a point measures what the model knows, and not how fast it is."""
    return bool(point["client"]["name"] == "lm-eval")


def score(found: Mapping[str, Any]) -> str:
    """``95.2 %``, ``95.2 ± 0.6 %``, or a bare number for a metric that is no share."""
    error = "" if found["stderr"] is None else f" ± {number(found['stderr'])}"
    return f"{number(found['score'])}{error} {found['unit']}".rstrip()


def threshold(found: Mapping[str, Any]) -> str:
    """``≥ 93.5 %``, or a dash where the recipe asks for none."""
    return MISSING if found["min"] is None else f"≥ {found['min']:g} %"


def reached(found: Mapping[str, Any]) -> str:
    """Whether the threshold is reached; of simulated answers nobody asks."""
    if found["min"] is None:
        return MISSING
    return {True: "met", False: "missed", None: "not judged"}[found["met"]]


def slo(point: Mapping[str, Any]) -> str:
    """Whether the bounds on means are met; a dash where there are none. An invalid point meets nothing."""
    bounds = point.get("slo") or {}
    if bounds and not point["valid"]:
        return "invalid"
    if not bounds:
        return MISSING
    met = [bound.get("met") for bound in bounds.values()]
    return "met" if all(met) else "unknown" if None in met and False not in met else "missed"


def bound(name: str, value: float) -> str:
    """A bound of the recipe's ``slo``: ``mean TTFT ≤ 2.5 s``."""
    return slo_names.said(name, value)


def mark(results: Mapping[str, Any]) -> str | None:
    """What every figure is marked with; None where figures are measurements."""
    if results["rehearsal"]:
        return "rehearsal"
    return "simulated engine" if results["simulated"] else None


def warning(results: Mapping[str, Any]) -> str | None:
    """The mark as a sentence, without its end."""
    if results["rehearsal"]:
        return REHEARSAL
    return SIMULATED if results["simulated"] else None


def gpus(results: Mapping[str, Any]) -> str:
    """``4 of 8 H200 GPUs``, or worker slots on a CPU; the places of those that a rehearsal did not use."""
    return f"the places of {_gpus(results)}" if results["rehearsal"] else _gpus(results)


def _gpus(results: Mapping[str, Any]) -> str:
    known = results["gpus"]
    name = f"{known['name']} GPUs"
    if known["device"] != "gpu":
        name = "CPU worker slots" if known["name"].lower() == "cpu" else f"worker slots on {known['name']}"
    if known["working"] == known["allocated"]:
        return f"{known['working']} {name}"
    return f"{known['working']} of {known['allocated']} {name}"


def unit_of_work(results: Mapping[str, Any]) -> str:
    """What the per-GPU rates are per: ``GPU`` or ``slot``."""
    return "GPU" if results["gpus"]["device"] == "gpu" else "slot"


def layout(results: Mapping[str, Any]) -> str:
    """``prefill 4 × TP1 DP4, decode 1 × TP1 DP8``."""
    parts = []
    for role, shape in results["layout"].items():
        sizes = f"TP{shape['tp']}" + "".join(
            f" {key.upper()}{shape[key]}" for key in ("pp", "dp", "dcp") if shape[key] > 1
        )
        sizes += " EP" if shape["ep"] else ""
        parts.append(f"{role} {shape['instances']} × {sizes}")
    return ", ".join(parts)


def engine(results: Mapping[str, Any]) -> str:
    """``vLLM 0.32.0``; the simulated engine says that it is one, and whose flags it takes."""
    if results["rehearsal"]:
        return f"simulated engine in place of vLLM {results['engine_version']}"
    if results["simulated"]:
        return f"simulated engine (flags of vLLM {results['engine_version']})"
    return results["engine_version"] if results["engine"] == "other" else f"vLLM {results['engine_version']}"


def setup(results: Mapping[str, Any]) -> str:
    """``fix (sha256 0123456789ab), deps (sha256 …)``: the setup steps in order; empty without any."""
    return ", ".join(f"{step['name']} (sha256 {step['sha256'][:12]})" for step in results["setup"])


def images(results: Mapping[str, Any]) -> str:
    """The container images, each with what identifies it where the reference itself does not."""
    return ", ".join(
        reference if known is None or known in reference else f"{reference} ({known})"
        for reference, known in results["images"].items()
    )


def verdict(results: Mapping[str, Any]) -> str:
    """``valid``, ``invalid`` or ``not finished``."""
    valid = results.get("valid")
    return "not finished" if valid is None else "valid" if valid else "invalid"


def same_length(points: Sequence[Mapping[str, Any]]) -> tuple[int | None, int | None] | None:
    """ISL and OSL wanted, if they are the same in all points."""
    timed = [point for point in points if not of_accuracy(point)]
    lengths = {(point["isl"]["wanted_tokens"], point["osl"]["wanted_tokens"]) for point in timed}
    return lengths.pop() if len(lengths) == 1 else None
