"""Lint: what runs and is seldom meant. A recipe answers a rule by name, with its reason, in ``lint``."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_toolkit.faults import Fault, did_you_mean
from recipe_toolkit.feasibility.lint import engine, hybrid, load, measuring
from recipe_toolkit.feasibility.lint.registry import RULES, Rule
from recipe_toolkit.recipe import Recipe

__all__ = ["RULES", "Rule", "check_answers", "engine", "hybrid", "lint", "load", "measuring"]


def check_answers(recipe: Recipe) -> Iterator[Fault]:
    """Answers to rules that there are not."""
    for name in recipe.lint:
        if name not in RULES:
            hint = did_you_mean(name, RULES) or f"one of {', '.join(sorted(RULES))}"
            yield Fault(("lint", name), "is no rule", hint, key=True)


def lint(recipe: Recipe) -> Iterator[Fault]:
    """What the rules find and the recipe has not answered, and answers to what no rule finds."""
    for name in sorted(RULES):
        found = list(RULES[name].faults(recipe))
        if name not in recipe.lint:
            yield from found
        elif not found:
            yield Fault(("lint", name), "the rule finds nothing here", "leave it out", True, severity="note", rule=name)
