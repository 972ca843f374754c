"""The frontier as data: schemas/frontier.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.frontier.closed import Split, State, at_concurrency, at_rate, of_requests, steady
from recipe_toolkit.frontier.pareto import Axis
from recipe_toolkit.frontier.pool import DECODE, Pool, Sample
from recipe_toolkit.frontier.read import LeftOut, Material, Measured
from recipe_toolkit.frontier.search import Point, Workload, best_within, rates, search, split_of, splits
from recipe_toolkit.frontier.transfer import Transfer

SCHEMA = 1
# Of a measured point: where its figures stand in results.json.
_MEASURED = {
    "requests_per_s": ("requests_per_s",),
    "ttft_ms": ("ttft_ms", "mean"),
    "tpot_ms": ("tpot_ms", "mean"),
    "e2e_ms": ("e2e_ms", "mean"),
    "output_tps_per_user": ("output_tps_per_user", "from_median_tpot"),
    "output_tps": ("output_tps",),
    "total_tps": ("total_tps",),
    "output_tps_per_gpu": ("output_tps_per_gpu", "working"),
    "total_tps_per_gpu": ("total_tps_per_gpu", "working"),
}
_LEFT_OUT = (
    "steps that mix prefill and decode, where a pool does both",
    "the router, and what instances of one host or one fabric take from each other",
    "KV transfers that wait for each other",
)


@dataclass(frozen=True)
class Asked:
    """What the frontier is asked for. ``exactly``: all of the GPUs, not up to so many."""

    gpus: int
    exactly: bool
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Frontier:
    """``transfers``: by the label of the decode pool. ``best``: the most tokens a GPU within the SLO."""

    material: Material
    asked: Asked
    transfers: Mapping[str, Transfer]
    points: Sequence[Point]
    best: Point | None

    @property
    def work(self) -> Workload:
        """Lengths and bounds."""
        return Workload(self.material.isl, self.material.osl, self.material.slo)

    def missing(self) -> list[str]:
        """What the formula leaves out here: terms that are not known, then those that it never has."""
        unknown = [
            f"the KV transfer to decode {label}: {item.source}"
            for label, item in self.transfers.items()
            if item.seconds is None
        ]
        unknown += [
            f"the decode steps that wait while decode {label} posts a transfer: only a prefill/decode run counts them"
            for label, item in self.transfers.items()
            if item.post_s is None
        ]
        return [*unknown, *_LEFT_OUT]


def frontier(material: Material, asked: Asked, transfers: Mapping[str, Transfer]) -> Frontier:
    """The predicted points of all splits."""
    work = Workload(material.isl, material.osl, material.slo)
    found = list(splits(material.prefill, material.decode, transfers, asked.gpus, asked.exactly))
    points = search(found, work, asked.axes)
    return Frontier(material, asked, transfers, points, best_within(points))


def to_json(found: Frontier, about: Mapping[str, Any]) -> dict[str, Any]:
    """The document. ``about``: what the runs share, from the results of one of them."""
    material = found.material
    pools = [*material.prefill, *material.decode]
    ids = {id(pool): f"{pool.role[0]}{_number(pool, pools)}" for pool in pools}
    return {
        "schema": SCHEMA,
        "model": about["model"],
        "engine": about["engine"],
        "engine_version": about["engine_version"],
        "simulated": about["simulated"],
        "rehearsal": about["rehearsal"],
        "gpu": about["gpus"]["name"],
        "device": about["gpus"]["device"],
        "isl": material.isl,
        "osl": material.osl,
        "slo": dict(material.slo),
        "gpus": {"most": found.asked.gpus, "exactly": found.asked.exactly},
        "axes": [{"metric": item.metric, "better": item.better} for item in found.asked.axes],
        "missing_terms": found.missing(),
        "notes": list(material.notes),
        "pools": [_pool(ids[id(pool)], pool, found.transfers) for pool in pools],
        "points": [_point(point, ids, point == found.best) for point in found.points],
        "measured": list(_measured(found, ids)),
        "left_out": [_left(item) for item in material.left_out],
    }


def _number(pool: Pool, pools: Sequence[Pool]) -> int:
    return [id(item) for item in pools if item.role == pool.role].index(id(pool)) + 1


def _pool(name: str, pool: Pool, transfers: Mapping[str, Transfer]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": name,
        "role": pool.role,
        "label": pool.label,
        "recipe": pool.recipe,
        "layout": dict(pool.layout),
        "gpus": pool.gpus,
        "form": pool.form,
        "peak_requests_per_s": pool.peak,
        "samples": [_sample(item) for item in pool.samples],
    }
    transfer = transfers.get(pool.label)
    if pool.role == DECODE and transfer is not None:
        data["transfer"] = {
            "ms": None if transfer.seconds is None else transfer.seconds * 1000,
            "post_ms": None if transfer.post_s is None else transfer.post_s * 1000,
            "bytes": transfer.bytes,
            "bytes_per_s": transfer.bytes_per_s,
            "source": transfer.source,
        }
    return data


def _sample(item: Sample) -> dict[str, Any]:
    return {
        "run": item.run,
        "point": item.point,
        "concurrency": item.concurrency,
        "in_flight": item.in_flight,
        "requests_per_s": item.rate,
        "residence_ms": item.residence_s * 1000,
        "tpot_ms": item.tpot_ms,
    }


def _point(point: Point, ids: Mapping[int, str], best: bool) -> dict[str, Any]:
    split, state = point.split, point.state
    row = {key: value for key, value in point.row.items() if key != "gpus"}
    return {
        "kind": "predicted",
        "prefill": {"pool": ids[id(split.prefill)], "instances": split.prefills},
        "decode": {"pool": ids[id(split.decode)], "instances": split.decodes},
        "gpus": split.gpus,
        "concurrency": point.concurrency,
        **row,
        "in_flight": _in_flight(state),
        "limits": split.limits,
        "use": _use(state),
        "waste": split.waste,
        "slo_met": point.slo_met,
        "dominant": point.dominant,
        "best": best,
    }


def _in_flight(state: State) -> dict[str, float]:
    return {"prefill": state.in_prefill, "transfer": state.in_transfer, "decode": state.in_decode}


def _use(state: State) -> dict[str, float]:
    """Rate over the highest that was measured, of each pool."""
    return {"prefill": state.rate / state.split.supply, "decode": state.rate / state.split.demand}


def _left(item: LeftOut) -> dict[str, str]:
    return {"run": item.run, "point": item.point, "reason": item.reason}


def _measured(found: Frontier, ids: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for item in found.material.measured:
        point, layout = item.point, item.results["layout"]
        split = _split_of(item, found)
        figures = {key: _figure(point, path) for key, path in _MEASURED.items()}
        predicted, why = _prediction(item, split, found)
        errors = {
            key: (predicted[key] / value - 1) * 100
            for key, value in figures.items()
            if predicted is not None and value and key in predicted
        }
        yield {
            "kind": "measured",
            "run": item.run,
            "point": point["id"],
            "prefill": _side(layout["prefill"], split.prefill if split else None, ids),
            "decode": _side(layout["decode"], split.decode if split else None, ids),
            "gpus": item.results["gpus"]["working"],
            "concurrency": point["concurrency"],
            "request_rate_rps": point["request_rate_rps"],
            "requests": point["requests"]["ok"],
            **figures,
            "predicted": predicted,
            "error_percent": errors or None,
            "not_predicted": why,
        }


def _figure(point: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = point
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def _side(shape: Mapping[str, Any], pool: Pool | None, ids: Mapping[int, str]) -> dict[str, Any]:
    return {
        "pool": None if pool is None else ids[id(pool)],
        "instances": shape["instances"],
        "layout": {key: value for key, value in shape.items() if key != "instances"},
    }


def _split_of(item: Measured, found: Frontier) -> Split | None:
    layout = item.results["layout"]
    pools = []
    for role, known in (("prefill", found.material.prefill), ("decode", found.material.decode)):
        shape = {key: value for key, value in layout[role].items() if key != "instances"}
        pools.append([pool for pool in known if dict(pool.layout) == shape])
    # Two recipes of one layout differ in what the layout does not say.
    if any(len(fitting) != 1 for fitting in pools):
        return None
    transfer = found.transfers.get(pools[1][0].label)
    prefills, decodes = layout["prefill"]["instances"], layout["decode"]["instances"]
    return split_of(pools[0][0], prefills, pools[1][0], decodes, transfer)


def _prediction(item: Measured, split: Split | None, found: Frontier) -> tuple[dict[str, float] | None, str | None]:
    """What the formula says of the measured load, for as many requests; or why it says nothing."""
    if split is None:
        return None, "its layouts were not measured alone, or by more than one recipe"
    point = item.point
    users, rate = point["concurrency"], point["request_rate_rps"]
    if users:
        state = at_concurrency(split, users)
        if state is None:
            return None, "decode would hold more than was measured of it"
        figures = of_requests(state, point["requests"]["ok"] or 0)
    elif rate <= split.peak:
        figures = steady(at_rate(split, rate))
    else:
        return None, f"{rate:g} requests/s are more than the {split.peak:.3g} that it can answer"
    return rates(figures, split.gpus, found.work), None
