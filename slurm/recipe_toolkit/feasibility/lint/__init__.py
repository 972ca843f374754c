"""Lint: what runs and is seldom meant. A recipe, or a profile, answers a rule by name with its reason in ``lint``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from recipe_toolkit.faults import Fault, did_you_mean
from recipe_toolkit.feasibility.lint import engine, fabric, hybrid, load, loading, measuring
from recipe_toolkit.feasibility.lint.registry import RULES, SITE_RULES, Rule, Setting, Told
from recipe_toolkit.recipe import Recipe

__all__ = [
    "RULES",
    "SITE_RULES",
    "Rule",
    "Setting",
    "Told",
    "check_answers",
    "engine",
    "fabric",
    "hybrid",
    "lint",
    "lint_site",
    "load",
    "loading",
    "measuring",
]


def check_answers(answers: Mapping[str, str], known: Iterable[str]) -> Iterator[Fault]:
    """Answers to rules that there are not."""
    names = sorted(known)
    for name in answers:
        if name not in names:
            hint = did_you_mean(name, names) or f"one of {', '.join(names)}"
            yield Fault(("lint", name), "is no rule", hint, key=True)


def lint(recipe: Recipe) -> Iterator[Fault]:
    """What the rules find and the recipe has not answered, and answers to what no rule finds."""
    for name in sorted(RULES):
        rule = RULES[name]
        found = [rule.named(fault) for fault in rule.check(recipe)]
        if name not in recipe.lint:
            yield from found
        elif not found:
            yield Fault(("lint", name), "the rule finds nothing here", "leave it out", True, severity="note", rule=name)


def lint_site(setting: Setting) -> Iterator[Told]:
    """What the rules find of a recipe where it is to run, and neither recipe nor profile has answered.

    An answer to what is not found is left alone: the next site, or the next model, may have it.
    """
    if setting.recipe.engine.kind != "vllm" or setting.recipe.resources.device != "gpu":
        return
    answered = {**setting.recipe.lint, **(setting.cluster.lint if setting.cluster else {})}
    for name in sorted(SITE_RULES.keys() - answered.keys()):
        rule = SITE_RULES[name]
        yield from (replace(told, fault=rule.named(told.fault)) for told in rule.check(setting))
