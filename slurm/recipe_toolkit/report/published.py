"""A run against what others have published of the same system: reproduced, better, worse, or not comparable and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report import text
from recipe_toolkit.report.metrics import BY_NAME, WAIT, Metric

# sa-bench is made from vLLM's benchmark_serving.py, and measures as it does.
_SAME_CLIENT = {"sa-bench": "vllm-bench"}
_PER_USER = {
    "tps_per_user": "output_tps_per_user.from_median_tpot",
    "tps_per_user_mean": "output_tps_per_user.mean_of_inverse_tpot",
}
_PER_GPU = ("input_tps_per_gpu", "output_tps_per_gpu", "total_tps_per_gpu")

_NO_ACCURACY = "accuracy was not measured"
# Reported scores are rounded, and of another harness.
_POINTS = 1.0  # percentage points, or two standard errors where that is more

Point = Mapping[str, Any]
Results = Mapping[str, Any]
Item = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One published figure beside one point of the run.

    ``verdict``: ``reproduced``, ``better``, ``worse``, ``not comparable``, or ``not published`` of a figure that only
    stands beside; ``why``: why not, or what to bear in mind. ``percent``: by how much the run's is more (less:
    negative). ``point``: None where no point of the run is under its conditions.
    """

    item: int
    metric: Metric
    published: float | None
    tolerance: float
    verdict: str
    why: str | None = None
    point: str | None = None
    seen: float | None = None
    percent: float | None = None


def against(results: Results) -> list[Verdict]:
    """Each figure that the recipe says was published, beside each point that it can be held against.

    Raises RecipeError where nothing was published, and for figures of the simulated engine.
    """
    if not results["published"]:
        raise RecipeError(
            f"the recipe of {results['run']} has nothing published",
            hint="add `published:` to the recipe: what was reported, with its conditions",
        )
    if results["simulated"]:
        raise RecipeError(
            f"{results['run']} ran on the simulated engine: its figures say nothing beside published ones",
            hint="measure with the recipe's own engine",
        )
    return [verdict for index, item in enumerate(results["published"]) for verdict in _item(index, item, results)]


def metric_of(name: str, per_gpu: str) -> Metric:
    """The results' metric that a published name means. ``per_gpu``: ``working``, ``allocated`` or a role."""
    if name in _PER_USER:
        return BY_NAME[_PER_USER[name]]
    if name in _PER_GPU:
        path = f"{name}.{per_gpu}" if per_gpu in ("working", "allocated") else f"{name}.by_role.{per_gpu}"
        return Metric(path, f"{name.split('_', 1)[0]} per {per_gpu} GPU", "tok/s", per_gpu=True, tokens=True)
    if name.endswith("_ms"):
        kind, stat = name.removesuffix("_ms").rsplit("_", 1)
        return BY_NAME[f"{kind}_ms.{stat}"]
    return BY_NAME[name]


def _item(index: int, item: Item, results: Results) -> Iterator[Verdict]:
    tolerance = item.get("tolerance", 0.05)
    timed = [point for point in results["points"] if not text.of_accuracy(point)]
    candidates = [point for point in timed if _matches(item, point)]
    for name, published in item.get("metrics", {}).items():
        metric = metric_of(name, item.get("per_gpu", "working"))
        if not candidates:
            why = f"no point of {conditions(item)}"
            yield Verdict(index, metric, published, tolerance, "not comparable", why)
        for point in candidates:
            yield _held(Verdict(index, metric, published, tolerance, "", point=point["id"]), item, point)
    if any(name in _PER_USER for name in item.get("metrics", {})):
        yield from _waits(index, item, candidates)
    for task, score in item.get("accuracy", {}).items():
        yield from _scored(index, task, score, results)


def _waits(index: int, item: Item, candidates: Sequence[Point]) -> Iterator[Verdict]:
    """The run's TTFT, where a user's speed was published without one."""
    if any(name.startswith("ttft_") for name in item["metrics"]):
        return
    why = "a user's speed says nothing of the wait for the first token"
    for point in candidates:
        if point["valid"]:
            metric = BY_NAME[WAIT]
            yield Verdict(index, metric, None, 0.0, "not published", why, point["id"], metric.of(point))


def _scored(index: int, task: str, published: float, results: Results) -> Iterator[Verdict]:
    """A published score beside the main one of the same task, in each point that has it."""
    metric = Metric(f"accuracy.{task}", task, "%")
    named = [(point, found) for point in results["points"] if (found := _score(point, task)) is not None]
    if not named:
        why = f"{task} was not measured" if any(map(text.of_accuracy, results["points"])) else _NO_ACCURACY
        yield Verdict(index, metric, published, 0.0, "not comparable", why)
    for point, found in named:
        verdict = Verdict(index, metric, published, 0.0, "not comparable", point=point["id"])
        if not point["valid"]:
            yield replace(verdict, why=f"the point is invalid: {'; '.join(point['reasons'])}")
            continue
        off, stderr = found["score"] - published, found["stderr"] or 0.0
        room = max(_POINTS, 2 * stderr)
        word = "reproduced" if abs(off) <= room else "better" if off > 0 else "worse"
        percent = off / published * 100 if published else None
        how = f"{found['metric']}, {found['filter']}, {found['num_fewshot']} shots, {found['samples']} documents"
        tolerance = room / published if published else 0.0
        yield replace(verdict, verdict=word, tolerance=tolerance, why=how, seen=found["score"], percent=percent)


def _score(point: Point, task: str) -> Mapping[str, Any] | None:
    """The point's score that a published name means: mmlu-pro is lm-eval's mmlu_pro."""
    for found in point.get("accuracy") or ():
        whole = f"{found['task']}/{found['metric']},{found['filter']}"
        same = found["task"].replace("-", "_").lower() == task.replace("-", "_").lower()
        if found["unit"] == "%" and (whole == task or (found["main"] and same)):
            return found  # type: ignore[no-any-return]
    return None


def _matches(item: Item, point: Point) -> bool:
    """Whether the point is under the conditions that were published, as far as they were."""
    pairs = (
        ("isl", point["isl"]["wanted_tokens"]),
        ("osl", point["osl"]["wanted_tokens"]),
        ("concurrency", point["concurrency"]),
        ("request_rate", point["request_rate_rps"]),
    )
    return all(item[key] == seen for key, seen in pairs if key in item)


def _held(verdict: Verdict, item: Item, point: Point) -> Verdict:
    seen = verdict.metric.of(point)
    why = _why_not(item, point, seen)
    if why is not None or seen is None:
        return Verdict(**{**vars(verdict), "verdict": "not comparable", "why": why})
    assert verdict.published is not None
    share = (seen - verdict.published) / verdict.published
    word = "reproduced"
    if abs(share) > verdict.tolerance:
        word = "better" if (share < 0) == verdict.metric.lower else "worse"
    return Verdict(**{**vars(verdict), "verdict": word, "why": _mind(item), "seen": seen, "percent": share * 100})


def _why_not(item: Item, point: Point, seen: float | None) -> str | None:
    if not point["valid"]:
        return f"the point is invalid: {'; '.join(point['reasons'])}"
    client, ours = item.get("client"), point["client"]["name"]
    if client is not None and _SAME_CLIENT.get(client, client) != ours:
        return f"published with {client}, measured with {ours}"
    return "not measured" if seen is None else None


def _mind(item: Item) -> str | None:
    """What was not published and may make a difference."""
    names = {"isl": "input length", "osl": "output length"}
    missing = [words for key, words in names.items() if key not in item]
    if "concurrency" not in item and "request_rate" not in item:
        missing.append("load")
    return f"{', '.join(missing)} not published" if missing else None


def conditions(item: Item) -> str:
    """The published conditions in words."""
    said = [f"{key.upper()} {text.count(item[key])}" for key in ("isl", "osl") if key in item]
    said += [f"concurrency {text.count(item['concurrency'])}"] if "concurrency" in item else []
    said += [f"{item['request_rate']:g} requests/s"] if "request_rate" in item else []
    return ", ".join(said) or "any load"


def to_json(results: Results, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Plain data for scripts."""
    rows = []
    for found in verdicts:
        row = {**vars(found), "metric": found.metric.path, "unit": found.metric.unit}
        rows.append({**row, "conditions": conditions(results["published"][found.item])})
    return {"schema": 1, "run": results["run"], "recipe": results["recipe"], "published": rows}


def render(results: Results, verdicts: Sequence[Verdict]) -> str:
    """A table a published item, for a terminal."""
    lines = [f"{results['run']} against what was published"]
    for index, item in enumerate(results["published"]):
        rows = [found for found in verdicts if found.item == index]
        url = f" ({item['url']})" if "url" in item else ""
        lines += ["", f"{conditions(item)}{url}"]
        lines += [f"  {item['note']}"] if "note" in item else []
        lines += _table(rows)
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Verdict]) -> list[str]:
    cells = [("", "point", "published", "measured", "", "")]
    for row in rows:
        percent = "" if row.percent is None else f"{row.percent:+.1f} %"
        name = f"{row.metric.title} {row.metric.unit}".strip()
        cells.append((name, row.point or "-", text.number(row.published), text.number(row.seen), percent, row.verdict))
    widths = [max(len(line[column]) for line in cells) for column in range(6)]
    lines = []
    for line, said in zip(cells, ["", *(row.why or "" for row in rows)], strict=True):
        padded = [cell.ljust(size) for cell, size in zip(line[:2], widths, strict=False)]
        padded += [cell.rjust(size) for cell, size in zip(line[2:5], widths[2:], strict=False)]
        why = f": {said}" if said else ""
        lines.append(f"  {'  '.join([*padded, line[5]])}{why}".rstrip())
    return lines
