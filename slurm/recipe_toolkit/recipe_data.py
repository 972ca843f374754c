"""Plain data that the schema has passed to a :class:`Recipe`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_toolkit.durations import format_time_limit, parse_duration, parse_time_limit
from recipe_toolkit.recipe import (
    Benchmark,
    Deadlines,
    Engine,
    KvTransfer,
    Model,
    Parallel,
    Published,
    Recipe,
    Resources,
    Role,
    Router,
    Search,
    Slo,
    Step,
)

SCHEMA = 1
ROLES = ("serve", "prefill", "decode")
_PLAIN_SCRIPT = "#!/bin/sh -e\n"
_COUNTS = ("requests", "requests_per_concurrency", "warmup", "warmup_per_concurrency", "max_concurrency")
_INTEGERS = ("isl", "osl", "isl_min", "osl_min", "seed", "limit", "num_fewshot", "repeats", *_COUNTS)
_LM_EVAL = ("tasks", "limit", "num_fewshot", "min", "data")


def build_recipe(data: Mapping[str, Any]) -> Recipe:
    """The recipe that the data says. The data must have passed the schema ``recipe``."""
    kv = data.get("kv_transfer")
    return Recipe(
        name=data["name"],
        description=data.get("description"),
        source=dict(data.get("source", {})),
        model=_model(data["model"]),
        engine=Engine(**data["engine"]),
        resources=_resources(data["resources"]),
        roles=tuple(_role(name, data["roles"][name]) for name in ROLES if name in data["roles"]),
        setup=tuple(_step(item) for item in data.get("setup", ())),
        kv_transfer=KvTransfer(**kv) if kv is not None else None,
        router=Router(**data.get("router", {})),
        benchmarks=tuple(_benchmark(item) for item in data["benchmarks"]),
        slo=Slo(**data.get("slo", {})),
        published=tuple(Published(**item) for item in data.get("published", ())),
        deadlines=Deadlines(**{f"{key}_s": parse_duration(item) for key, item in data.get("deadlines", {}).items()}),
        lint=dict(data.get("lint", {})),
        time_limit_s=parse_time_limit(data["time_limit"]) if "time_limit" in data else Recipe.time_limit_s,
    )


def _model(data: Mapping[str, Any]) -> Model:
    path: str = data["path"]
    last = path.split("@")[0].rstrip("/").rsplit("/", 1)[-1].removeprefix("hf:")
    return Model(path, data.get("served_name") or last or path, data.get("tokenizer"))


def _resources(data: Mapping[str, Any]) -> Resources:
    return Resources(**{"gpu": "cpu", **data, "gpus_per_node": int(data["gpus_per_node"])})


def _step(data: Mapping[str, Any]) -> Step:
    """Commands without a ``#!`` line end at the first that fails, as those of a checked script should."""
    text: str = data.get("run", "")
    return Step(data.get("name", ""), text if text.startswith("#!") else f"{_PLAIN_SCRIPT}{text}")


def _role(name: str, data: Mapping[str, Any]) -> Role:
    parallel = data.get("parallel", {})
    sizes: dict[str, Any] = {key: item if key in ("ep", "dp_lb") else int(item) for key, item in parallel.items()}
    return Role(
        name=name,
        instances=int(data.get("instances", 1)),
        parallel=Parallel(**sizes),
        **{key: data[key] for key in ("args", "env", "sim", "instances_per_node") if key in data},
    )


def _benchmark(data: Mapping[str, Any]) -> Benchmark:
    values: dict[str, Any] = {key: int(item) if key in _INTEGERS else item for key, item in data.items()}
    if "timeout" in values:
        values["timeout_s"] = parse_duration(values.pop("timeout"))
    if "search" in values:
        values["search"] = _search(values["search"])
    if values["client"] == "lm-eval":
        # One number, not a list: a score does not depend on it.
        values["concurrency"] = [values.get("concurrency", 1)]
        values = {"name": "lm-eval", **values}
    for key, convert in (("tasks", str), ("concurrency", int), ("request_rate", float), ("command", str)):
        if key in values:
            values[key] = tuple(convert(item) for item in values[key])
    if values["client"] == "command":
        return Benchmark(**{"name": "command", **values})
    return Benchmark(**{"name": f"{values['client']}-{values.get('isl')}x{values.get('osl')}", **values})


_SEARCH = {"from": "least", "to": "most", "deadline": "deadline_s"}


def _search(data: Mapping[str, Any]) -> Search:
    values = {_SEARCH.get(key, key): item for key, item in data.items()}
    for key, convert in (("least", float), ("most", float), ("repeats", int), ("points", int)):
        if key in values:
            values[key] = convert(values[key])
    if "deadline_s" in values:
        values["deadline_s"] = parse_duration(values["deadline_s"])
    return Search(**values)


def _search_data(search: Search) -> dict[str, Any]:
    names = {field: key for key, field in _SEARCH.items()}
    return {
        names.get(key, key): _number(item) if isinstance(item, float) else item for key, item in vars(search).items()
    }


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """The recipe with all its defaults as data: it passes the schema and builds an equal recipe."""
    parts = {
        "schema": SCHEMA,
        "name": recipe.name,
        "description": recipe.description,
        "source": recipe.source,
        "model": vars(recipe.model),
        "engine": vars(recipe.engine),
        "resources": vars(recipe.resources),
        "setup": [{"name": step.name, "run": step.script} for step in recipe.setup],
        "roles": {role.name: _role_data(role) for role in recipe.roles},
        "kv_transfer": vars(recipe.kv_transfer) if recipe.kv_transfer else None,
        "router": vars(recipe.router),
        "benchmarks": [_benchmark_data(item) for item in recipe.benchmarks],
        "slo": vars(recipe.slo),
        "published": [vars(item) for item in recipe.published],
        "deadlines": {key.removesuffix("_s"): _number(item) for key, item in vars(recipe.deadlines).items()},
        "time_limit": format_time_limit(recipe.time_limit_s),
        "lint": recipe.lint,
    }
    data: dict[str, Any] = _said(parts)
    return data


def _role_data(role: Role) -> dict[str, Any]:
    return {key: value for key, value in vars(role).items() if key != "name"} | {"parallel": vars(role.parallel)}


def _benchmark_data(benchmark: Benchmark) -> dict[str, Any]:
    data = dict(vars(benchmark))
    data["timeout"] = _number(data.pop("timeout_s"))
    if benchmark.client == "command":
        return {key: data[key] for key in ("client", "name", "command", "env", "timeout")}
    if benchmark.client == "lm-eval":
        data["concurrency"] = data["concurrency"][0]
        own = ("client", "version", "name", *_LM_EVAL, "concurrency", "endpoint", "args", "env", "timeout")
        return {key: data[key] for key in own}
    data["search"] = _search_data(benchmark.search) if benchmark.search else None
    return {key: item for key, item in data.items() if key not in _LM_EVAL}


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


_FREE = frozenset({"args", "env", "sim", "extra"})


def _said(data: Any, key: str = "") -> Any:
    """Without what is None or empty, and tuples as lists; what stands under a free key stays as it is."""
    if key in _FREE:
        return _copy(data)
    if isinstance(data, Mapping):
        kept = {name: _said(item, name) for name, item in data.items()}
        return {name: item for name, item in kept.items() if item is not None and item not in ({}, [])}
    return [_said(item) for item in data] if isinstance(data, (list, tuple)) else data


def _copy(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: _copy(item) for name, item in data.items()}
    return [_copy(item) for item in data] if isinstance(data, (list, tuple)) else data
