"""Guesses at what was meant."""

from __future__ import annotations

import pytest

from recipe_toolkit.cli import SECTIONS, VERBS
from recipe_toolkit.faults import did_you_mean
from recipe_toolkit.schema_check import load_schema

KEYS = [*load_schema("recipe")["properties"], *load_schema("recipe")["$defs"]["parallel"]["properties"]]


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("statsu", VERBS, "status"),
        ("plna", VERBS, "plan"),
        ("lst", VERBS, "list"),
        ("log", VERBS, "logs"),
        ("stat", VERBS, "status"),
        ("Validat", VERBS, "validate"),
        ("resorces", KEYS, "resources"),
        ("kv-transfer", KEYS, "kv_transfer"),
        ("dead", KEYS, "deadlines"),
        ("dcpp", KEYS, "dcp"),
    ],
)
def test_a_slip_or_a_beginning_is_guessed(word, known, meant):
    assert did_you_mean(word, known) == f"did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("word", "known"),
    [("bogus", VERBS), ("kill", VERBS), ("ls", VERBS), ("help", VERBS), ("stop", VERBS), ("node", KEYS), ("x", KEYS)],
)
def test_a_word_of_its_own_is_not(word, known):
    assert did_you_mean(word, known) is None


def test_every_verb_has_one_section():
    placed = [name for names in SECTIONS.values() for name in names]
    assert len(placed) == len(set(placed))
    assert [verb for verb in VERBS if verb not in placed] == []
