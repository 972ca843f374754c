"""Results of runs to pools and measured points; what cannot be used is refused or named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.frontier.pool import DECODE, PREFILL, Pool, Sample, rising, spread

DECODE_BENCH, ISL_1 = "decode-bench", "isl-1"
# Prefill is measured with as little output as a client takes, decode with as little input.
_PREFILL_OSL = 2
_DECODE_ISL = 1
_HINT = "prefill alone has an OSL of 1 or 2; decode alone the connector decode-bench, or an ISL of 1"


@dataclass(frozen=True)
class Source:
    """A run. ``results``: as results.json has them. ``decode_bench``: whether its plan fills in dummy KV."""

    results: Mapping[str, Any]
    decode_bench: bool = False

    @property
    def run(self) -> str:
        """Its id."""
        return str(self.results["run"])

    @property
    def apart(self) -> bool:
        """Whether prefill and decode run in instances of their own."""
        return PREFILL in self.results["layout"]


@dataclass(frozen=True)
class LeftOut:
    """A point that is not used, and why."""

    run: str
    point: str
    reason: str


@dataclass(frozen=True)
class Measured:
    """A valid point of prefill and decode instances together. ``gpus``: working ones, by role."""

    run: str
    results: Mapping[str, Any]
    point: Mapping[str, Any]


@dataclass
class Material:
    """All that the runs give. ``notes``: what a reader should know of it."""

    isl: int = 0
    osl: int = 0
    slo: Mapping[str, float] = field(default_factory=dict)
    prefill: list[Pool] = field(default_factory=list)
    decode: list[Pool] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """A point of prefill or decode alone."""

    source: Source
    point: Mapping[str, Any]
    form: str

    @property
    def lengths(self) -> tuple[int, int]:
        """ISL and OSL that were wanted."""
        return self.point["isl"]["wanted_tokens"], self.point["osl"]["wanted_tokens"]


def read(sources: Sequence[Source]) -> Material:
    """The pools of the runs of prefill alone and decode alone, and the measured points of those of both.

    Raises RecipeError where runs cannot be put together, or one of the two is missing.
    """
    _same_conditions(sources)
    out = Material(slo=_slo(sources))
    found: list[_Found] = []
    for source in sources:
        for point in source.results["points"]:
            form = _form(source, point)
            reason = _unusable(point, form)
            if reason:
                out.left_out.append(LeftOut(source.run, point["id"], reason))
            elif form == "both":
                out.measured.append(Measured(source.run, source.results, point))
            else:
                found.append(_Found(source, point, form))
    _lengths(found, out)
    prefer = _preferred(found, out)
    out.prefill, out.decode = (list(_pools(prefer, role, out)) for role in (PREFILL, DECODE))
    for role, pools in ((PREFILL, out.prefill), (DECODE, out.decode)):
        if not pools:
            raise RecipeError(f"no valid point of {role} alone{_said(out.left_out)}", hint=_HINT)
    out.measured = [item for item in out.measured if _of_length(item, out)]
    return out


def _said(left_out: Sequence[LeftOut]) -> str:
    lines = [f"\n  {item.run} {item.point}: {item.reason}" for item in left_out[:8]]
    return "".join(lines) + (f"\n  and {len(left_out) - 8} more" if len(left_out) > 8 else "")


def _same_conditions(sources: Sequence[Source]) -> None:
    """Raise RecipeError, with every difference, for runs of different models, engines or hardware."""
    differences = []
    for what, of in _CONDITIONS.items():
        values: dict[str, str] = {}
        for source in sources:
            said = of(source.results)
            if said is not None:
                values.setdefault(str(said), source.run)
        if len(values) > 1:
            shown = "; ".join(f"{value} in {run}" for value, run in values.items())
            differences.append(f"{what}: {shown}")
    if differences:
        raise RecipeError("the runs cannot be combined: they differ in\n  " + "\n  ".join(differences))


_CONDITIONS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "model": lambda results: results["model"],
    "engine": lambda results: results["engine"],
    "engine version": lambda results: results["engine_version"],
    "vLLM on the nodes": lambda results: results["versions"].get("vllm"),
    "GPU": lambda results: results["gpus"]["name"],
    "simulated or not": lambda results: "simulated" if results["simulated"] else "not simulated",
    "rehearsal or not": lambda results: "rehearsal" if results["rehearsal"] else "no rehearsal",
}


def _slo(sources: Sequence[Source]) -> dict[str, float]:
    """The bounds that the runs share: those that one has and another has otherwise are left out."""
    bounds = [source.results["slo"] for source in sources]
    return {name: value for name, value in bounds[0].items() if all(item.get(name) == value for item in bounds)}


def _form(source: Source, point: Mapping[str, Any]) -> str:
    if source.apart:
        return "both"
    isl, osl = point["isl"]["wanted_tokens"], point["osl"]["wanted_tokens"]
    if isl is None or osl is None:
        return ""
    if source.decode_bench:
        return DECODE_BENCH
    if osl <= _PREFILL_OSL < isl:
        return PREFILL
    return ISL_1 if isl <= _DECODE_ISL < osl else ""


def _unusable(point: Mapping[str, Any], form: str) -> str | None:
    if not point["valid"]:
        return f"invalid: {(point['reasons'] or ['no reason is said'])[0]}"
    if not form:
        return f"neither prefill nor decode alone: {_HINT}"
    ttft, tpot, rate = _mean(point, "ttft_ms"), _mean(point, "tpot_ms"), point["requests_per_s"]
    if not ttft or not rate or (form != PREFILL and not tpot):
        return "its rate, TTFT or TPOT was not measured"
    if form == "both" and not point["concurrency"] and not point["request_rate_rps"]:
        return "its load is not said"
    return None


def _mean(point: Mapping[str, Any], key: str) -> float | None:
    value: float | None = (point[key] or {}).get("mean")
    return value


def _lengths(found: Sequence[_Found], out: Material) -> None:
    """The tokens of a request: input as prefill had it, output as decode had it. Raises RecipeError."""
    prompts: dict[int, str] = {}
    outputs: dict[int, str] = {}
    bench = any(item.form == DECODE_BENCH for item in found)
    for item in found:
        isl, osl = item.lengths
        if item.form != ISL_1:
            prompts.setdefault(isl, item.source.run)
        if item.form == DECODE_BENCH or (item.form == ISL_1 and not bench):
            outputs.setdefault(osl, item.source.run)
    for what, values in (("input", prompts), ("output", outputs)):
        if len(values) > 1:
            shown = ", ".join(f"{length:,} in {run}" for length, run in values.items())
            raise RecipeError(f"the runs cannot be combined: {what} lengths of {shown}")
    out.isl, out.osl = next(iter(prompts), 0), next(iter(outputs), 0)


def _preferred(found: Sequence[_Found], out: Material) -> list[_Found]:
    """Without the decode points at ISL 1 of a layout that was measured at the real length too."""
    real = {_layout(item) for item in found if item.form == DECODE_BENCH}
    kept = []
    for item in found:
        if item.form == ISL_1 and _layout(item) in real:
            reason = "decode alone was measured at the real ISL too"
            out.left_out.append(LeftOut(item.source.run, item.point["id"], reason))
            continue
        kept.append(item)
    if any(item.form == ISL_1 for item in kept):
        out.notes.append("decode at ISL 1 reads next to no KV: where attention reads much, real decode is slower")
    lengths = {item.lengths[1] for item in kept if item.form == ISL_1} - {out.osl}
    if lengths:
        measured = ", ".join(f"{length:,}" for length in sorted(lengths))
        out.notes.append(f"decode at OSL {measured} is taken for OSL {out.osl:,} by its TPOT")
    return kept


def _layout(item: _Found) -> tuple[Any, ...]:
    return tuple(sorted(item.source.results["layout"]["serve"].items()))


def _pools(found: Sequence[_Found], role: str, out: Material) -> Iterator[Pool]:
    groups: dict[tuple[Any, ...], list[_Found]] = {}
    for item in found:
        if (item.form == PREFILL) == (role == PREFILL):
            groups.setdefault((item.form, item.source.results["recipe"], _layout(item)), []).append(item)
    layouts = [key[2] for key in groups]
    for (form, recipe, layout), items in groups.items():
        shape = dict(layout)
        instances = shape.pop("instances")
        name = shape_name(shape)
        label = f"{name} ({recipe})" if layouts.count(layout) > 1 else name
        kept, beyond = rising(_sample(item, instances, out.osl) for item in items)
        if role == DECODE:
            kept = spread(kept)
        gpus = shape["tp"] * shape["pp"] * shape["dp"]
        pool = Pool(role, label, recipe, shape, gpus, form, kept, beyond)
        out.notes += _remarks(pool)
        yield pool


def _remarks(pool: Pool) -> Iterator[str]:
    if pool.beyond:
        loads = ", ".join(str(item.concurrency or item.point) for item in pool.beyond)
        yield f"{pool.role} {pool.label}: no more requests/s at {loads} in flight, so these points are not used"
    least = pool.samples[0]
    if pool.role == PREFILL and least.in_flight > 1.5:
        yield (
            f"{pool.role} {pool.label}: its lowest load has {least.in_flight:.1f} in flight; what one request alone "
            "takes is not known, so the TTFT of low loads is too high"
        )
    if pool.role == PREFILL and len(pool.samples) > 1 and pool.samples[-1].rate > 1.1 * pool.samples[-2].rate:
        yield f"{pool.role} {pool.label}: its rate still grows at the highest load: its peak may be higher"


def shape_name(shape: Mapping[str, Any]) -> str:
    """``TP4 DP2 EP``."""
    sizes = [f"TP{shape['tp']}", *(f"{key.upper()}{shape[key]}" for key in ("pp", "dp", "dcp") if shape[key] > 1)]
    return " ".join([*sizes, "EP"] if shape["ep"] else sizes)


def _sample(item: _Found, instances: int, osl: int) -> Sample:
    """A point of one instance. Prefill ends at the first token; decode of another OSL is as long as its TPOT says."""
    point = item.point
    rate, ttft = point["requests_per_s"] / instances, _mean(point, "ttft_ms") or 0.0
    concurrency = point["concurrency"]
    if item.form == PREFILL:
        return Sample(item.source.run, point["id"], concurrency, rate, ttft / 1000)
    # In a closed loop all users begin at once, and a few first requests make the mean; behind prefill they come one
    # by one, so that the median is what the first token takes.
    tpot, first = _mean(point, "tpot_ms") or 0.0, point["ttft_ms"]["p50"] or ttft
    sample = Sample(item.source.run, point["id"], concurrency, rate, 0.0, first / 1000, tpot)
    measured = (ttft + tpot * (item.lengths[1] - 1)) / 1000
    wanted = (first + tpot * (osl - 1)) / 1000
    return replace(sample, residence_s=wanted, rate=rate * measured / wanted)


def _of_length(item: Measured, out: Material) -> bool:
    isl, osl = (item.point[key]["wanted_tokens"] for key in ("isl", "osl"))
    if (isl, osl) == (out.isl, out.osl):
        return True
    reason = f"ISL {isl}, OSL {osl}: the prediction is for {out.isl}, {out.osl}"
    out.left_out.append(LeftOut(item.run, item.point["id"], reason))
    return False
