from __future__ import annotations

import json
from importlib.resources import files

import pytest

from recipe_toolkit import sim_options
from recipe_toolkit.sim import options
from recipe_toolkit.sim.flags import UsageError


def test_every_key_takes_its_default():
    assert sim_options.check({name: key.default for name, key in sim_options.KEYS.items()}) == []
    assert options.parse("{}", {}).values == {name: key.default for name, key in sim_options.KEYS.items()}


@pytest.mark.parametrize(
    ("mapping", "key", "message"),
    [
        ({"tpot_bse_ms": 1}, "tpot_bse_ms", "unknown key"),
        ({"tpot_base_ms": "1"}, "tpot_base_ms", "not a number"),
        ({"tpot_base_ms": True}, "tpot_base_ms", "not a number"),
        ({"tpot_base_ms": -1}, "tpot_base_ms", "not at least 0"),
        ({"prefill_tokens_per_s": 0}, "prefill_tokens_per_s", "not above 0"),
        ({"kv_cache_tokens": 1.5}, "kv_cache_tokens", "not a whole number"),
        ({"spec_acceptance": 1.5}, "spec_acceptance", "above 1"),
        ({"fault": "exit"}, "fault", "not a mapping"),
        ({"fault": {}}, "fault", "has no kind"),
        ({"fault": {"kind": "exti"}}, "fault.kind", "no kind of fault"),
        ({"fault": {"kind": "exit", "cod": 1}}, "fault.cod", "unknown key"),
        ({"fault": {"kind": "exit", "code": 256}}, "fault.code", "above 255"),
        ({"fault": {"kind": "exit", "rank": 0.5}}, "fault.rank", "not a whole number"),
        ({"fault": {"kind": "exit", "after_s": "soon"}}, "fault.after_s", "not a number"),
    ],
)
def test_a_wrong_document_is_refused(mapping, key, message):
    troubles = sim_options.check(mapping)
    assert [(name, text) for name, text, _ in troubles if name == key and message in text], troubles
    with pytest.raises(UsageError, match=key):
        options.parse(json.dumps(mapping), {})


def test_a_misspelt_key_is_recognised():
    ((_, _, hint),) = sim_options.check({"tpot_bse_ms": 1})
    assert hint == "did you mean `tpot_base_ms`?"


def test_the_documents_must_be_an_object():
    for text in ("[]", "{", "1"):
        with pytest.raises(UsageError, match="--sim"):
            options.parse(text, {})


@pytest.mark.parametrize(
    ("fault", "environment", "mine"),
    [
        ({}, {}, True),
        ({"instance": 1}, {"RECIPE_INSTANCE": "1"}, True),
        ({"instance": 1}, {"RECIPE_INSTANCE": "0"}, False),
        ({"rank": 1}, {"RECIPE_RANK": "1", "RECIPE_INSTANCE": "0"}, True),
        ({"rank": 1}, {"RECIPE_RANK": "0"}, False),
        ({"rank": 0, "instance": 0}, {}, True),
        ({"rank": 1, "instance": 0}, {"RECIPE_RANK": "1", "RECIPE_INSTANCE": "1"}, False),
    ],
)
def test_whose_fault_it_is(fault, environment, mine):
    document = json.dumps({"fault": {"kind": "exit", **fault}})
    assert (options.parse(document, environment).fault is not None) is mine


def test_the_schema_of_recipes_says_the_same():
    schema = json.loads((files("recipe_toolkit") / "schemas" / "recipe.json").read_text())["$defs"]["sim"]["properties"]
    fault = schema.pop("fault")["properties"]
    assert {name: item["default"] for name, item in schema.items()} == {
        name: key.default for name, key in sim_options.KEYS.items()
    }
    assert {name: "exclusiveMinimum" in item for name, item in schema.items()} == {
        name: key.positive for name, key in sim_options.KEYS.items()
    }
    assert set(fault) == set(sim_options.FAULT_KEYS)
    assert fault["kind"]["enum"] == list(sim_options.FAULT_KINDS)
