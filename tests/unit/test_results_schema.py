"""The schema of results.json says what the dataclasses are: the same fields, and what may be missing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from recipe_toolkit.results import model
from recipe_toolkit.results.model import ClientLoad, PerUser, Results, Spread, Stat, Window, results_from_json
from recipe_toolkit.results.pools import pool_metrics
from recipe_toolkit.results.search import model as searched
from results_support import SCHEMA, check_schema, make_run, recorded_metrics

DEFINITIONS = {
    "stat": model.Stat,
    "length": model.Length,
    "per_gpu": model.PerGpu,
    "per_user": model.PerUser,
    "bound": model.Bound,
    "client": model.Client,
    "requests": model.Requests,
    "gpus": model.Gpus,
    "layout": model.Layout,
    "host": model.Host,
    "score": model.Score,
    "window": model.Window,
    "client_load": model.ClientLoad,
    "spread": model.Spread,
    "point": model.PointResult,
    "search": searched.SearchResult,
    "tried_load": searched.TriedLoad,
    "tried_bound": searched.TriedBound,
    "answer": searched.Answer,
}
# What a document has only where there is something to say.
SPARSE = {"point": set(model.SPARSE), "results": {"spread", "search"}}


def fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_has_the_fields_of_its_class(name: str) -> None:
    schema = SCHEMA["$defs"][name]
    assert set(schema["properties"]) == fields(DEFINITIONS[name])
    assert set(schema["required"]) == fields(DEFINITIONS[name]) - SPARSE.get(name, set())
    assert schema["additionalProperties"] is False


def test_the_document_has_the_fields_of_its_class() -> None:
    assert set(SCHEMA["properties"]) == fields(Results)
    assert set(SCHEMA["required"]) == fields(Results) - SPARSE["results"]


def test_a_pool_has_the_fields_that_are_made() -> None:
    made = pool_metrics(
        recorded_metrics("before"), recorded_metrics("after"), None, {"decode": ["zero-copy over rc_mlx5"]}
    )["decode"]
    assert set(SCHEMA["$defs"]["pool"]["properties"]) == set(made)
    for name in ("kv_transfer",):
        assert set(SCHEMA["$defs"][name]["properties"]) == set(made[name])


def test_every_definition_is_used_and_known() -> None:
    assert set(SCHEMA["$defs"]) == {*DEFINITIONS, "role", "pool", "kv_transfer", "spec_decode"}


def test_what_stands_there_sometimes_comes_back_as_it_was() -> None:
    _, results = make_run()
    first, *others = results.points
    window = Window(1.0, 9.0, 8, Stat(1, 1, 1, 1), None, None, 5.0, 6.0, PerUser(9.0, 9.5))
    full = dataclasses.replace(
        first,
        few_for=("p99",),
        repeat_of="a",
        repeat=2,
        window=window,
        client_load=ClientLoad(9, 1.2, 0.7, 0.0),
        whole_answers=3,
    )
    spread = Spread("a", ("a-rep1", "a-rep2"), 2, {"output_tps": {"mean": 2.0, "stdev": 1.0, "min": 1.0, "max": 3.0}})
    results = dataclasses.replace(results, points=(full, *others), spread=(spread,))
    document = results.to_json()
    check_schema(document)
    assert results_from_json(document) == results
    assert set(model.SPARSE).isdisjoint(dataclasses.replace(first, few_for=(), window=None).to_json())
