"""One of the runs that are put side by side: its results, and under which conditions it got them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.document import read_document
from recipe_toolkit.errors import InputError, RecipeError
from recipe_toolkit.report import text
from recipe_toolkit.report.changes import Change, changes
from recipe_toolkit.report.material import read_results
from recipe_toolkit.results.inferencex.read import RowError, is_rows, read_rows
from recipe_toolkit.results.model import Results
from recipe_toolkit.rundir import RunDir, read_json

# Fields of a recipe that are no condition of a measurement, or that its results and points say already.
_NO_CONDITION = ("schema", "name", "description", "source", "published", "slo", "deadlines", "time_limit", "resources")
_SAID = (("engine", "kind"), ("engine", "version"), ("model", "served_name"))
_LOADS = ("concurrency", "request_rate", "search", "timeout")
_NO_CONDITION_OF_A_SITE = (
    "schema",
    "name",
    "scheduler",
    "runs",
    "metrics_targets",
    "python",
    "pythonpath",
    "max_nodes",
    "secrets",
    "models",
    "data",
)


@dataclass(frozen=True)
class Side:
    """``recipe``, ``profile`` and ``facts`` are None where only the results are at hand."""

    results: Mapping[str, Any]
    recipe: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | None = None
    facts: tuple[Mapping[str, Any], ...] | None = None


def side_of_run(run: RunDir, results: Mapping[str, Any]) -> Side:
    """A run with what its folder says of its conditions; what cannot be read is left out."""
    return Side(results, _yaml(run.recipe_lock), _yaml(run.cluster_lock), read_facts(run))


def side_of_results(path: Path) -> Side:
    """A results.json alone, or result rows of InferenceX's. Raises RecipeError."""
    return Side(read_any_results(path).to_json())


def read_any_results(path: Path) -> Results:
    """The results in a results.json, or in a file of InferenceX's rows of one configuration. Raises RecipeError."""
    try:
        data = read_json(path)
    except (OSError, ValueError):
        return read_results(path)  # which says what is wrong
    if not is_rows(data):
        return read_results(path)
    try:
        found = read_rows(data, path.name)
    except RowError as error:
        raise RecipeError(f"{path}: {error}", hint="see docs/metrics.md: InferenceX's rows") from error
    if len(found) > 1:
        names = ", ".join(f"{item.model} on {item.gpus.working} {item.gpus.name}" for item in found)
        raise RecipeError(f"{path}: rows of {len(found)} configurations: {names}", hint="leave one in a file")
    return found[0]


def _yaml(path: Path) -> dict[str, Any] | None:
    try:
        data = read_document(path).data
    except InputError:
        return None
    return data if isinstance(data, dict) else None


def read_facts(run: RunDir) -> tuple[Mapping[str, Any], ...] | None:
    """What the nodes of the last attempt said of themselves; None where none did."""
    attempts = run.attempts()
    found = []
    for path in sorted(run.attempt(attempts[-1]).root.glob("nodes/*/facts.json")) if attempts else []:
        try:
            data = read_json(path)
        except (OSError, ValueError):
            continue
        if isinstance(data, dict):
            found.append(data)
    return tuple(found) or None


def conditions_of_run(run: RunDir) -> dict[str, Any]:
    """What a run's folder says of it beyond its recipe: profile, nodes, versions; what it lacks is left out."""
    found: dict[str, Any] = {"profile": _yaml(run.cluster_lock), "node": summary(read_facts(run))}
    try:
        results = read_results(run.results).to_json()
    except RecipeError:
        results = {}
    for key in ("versions", "images", "rehearsal"):
        found[key] = results.get(key)
    return {key: value for key, value in found.items() if value is not None}


def conditions(sides: Sequence[Side]) -> tuple[list[Change], list[str]]:
    """What differs between the conditions of the runs, the weightiest first; and what could not be compared."""
    labels = [chr(ord("A") + index) for index in range(len(sides))]
    found = changes([dict(_of_results(side.results)) for side in sides])
    unknown = []
    for what, documents in (
        ("recipe", [_of_recipe(side.recipe) for side in sides]),
        ("node", [summary(side.facts) for side in sides]),
        ("profile", [_of_profile(side.profile) for side in sides]),
    ):
        missing = [label for label, document in zip(labels, documents, strict=True) if document is None]
        if missing:
            unknown.append(f"{', '.join(missing)}: no {_FILES[what]}, so {_WHAT[what]} are not compared")
        else:
            found += [_under(what, change) for change in changes(documents)]
    found += changes([{"toolkit": side.results["versions"].get("recipe-toolkit")} for side in sides])
    return found, unknown


_FILES = {"recipe": "recipe.lock.yaml", "node": "facts.json", "profile": "cluster.lock.yaml"}
_WHAT = {"recipe": "flags and environment", "node": "drivers and nodes", "profile": "what the site adds"}


def _under(what: str, change: Change) -> Change:
    return change if what == "recipe" else Change(f"{what}.{change.field}", change.values)


def _of_results(results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "model", results["model"]
    yield "engine", text.engine(results)
    versions = dict(results["versions"])
    versions.pop("recipe-toolkit", None)
    yield "versions", versions
    for key in ("images", "setup"):
        yield key, results.get(key)
    known = results["gpus"]
    yield "gpus", {"name": known["name"], "working": known["working"], "allocated": known["allocated"]}
    yield "layout", text.layout(results)
    yield "nodes", len(results["nodes"])
    yield (
        "clients",
        sorted(
            {f"{point['client']['name']} {point['client']['version'] or ''}".strip() for point in results["points"]}
        ),
    )
    yield "slo", results["slo"]


def _of_recipe(recipe: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if recipe is None:
        return None
    data = {key: value for key, value in recipe.items() if key not in _NO_CONDITION}
    for holder, key in _SAID:
        if isinstance(data.get(holder), dict):
            data[holder] = {name: value for name, value in data[holder].items() if name != key}
    benchmarks = data.get("benchmarks")
    if isinstance(benchmarks, list):
        data["benchmarks"] = [
            {key: value for key, value in item.items() if key not in _LOADS} if isinstance(item, dict) else item
            for item in benchmarks
        ]
    return data


def _of_profile(profile: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if profile is None else {k: v for k, v in profile.items() if k not in _NO_CONDITION_OF_A_SITE}


def summary(facts: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """What the nodes are, as far as a measurement can depend on it: each fact once, however many nodes say it."""
    if facts is None:
        return None
    found: dict[str, Any] = {}
    for name in ("driver", "kernel", "machine", "cpus_allowed", "python_version"):
        found[name] = _once(fact.get(name) for fact in facts)
    found["memory_gib"] = _once(size // 2**30 for fact in facts if type(size := fact.get("memory_bytes")) is int)
    found["gpus"] = _once(f"{gpu.get('name')} {gpu.get('memory_mib')} MiB" for gpu in _items(facts, "gpus"))
    found["rdma"] = _once(f"{port.get('rate')} {port.get('state')}" for port in _items(facts, "rdma"))
    models = [fact["model"] for fact in facts if isinstance(fact.get("model"), dict)]
    found["model_config_sha256"] = _once(model.get("config_sha256") for model in models)
    found["hosts"] = _once(fact.get("host") for fact in facts)
    return found


def _items(facts: Sequence[Mapping[str, Any]], key: str) -> Iterator[Mapping[str, Any]]:
    for fact in facts:
        items = fact.get(key)
        yield from (item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()


def _once(values: Any) -> Any:
    different = sorted({str(value) for value in values if value is not None})
    return different[0] if len(different) == 1 else different
