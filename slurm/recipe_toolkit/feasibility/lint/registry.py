"""The rules by name, and what each is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from recipe_toolkit.errors import Severity
from recipe_toolkit.faults import Fault
from recipe_toolkit.recipe import Recipe

Check = Callable[[Recipe], Iterator[Fault]]


@dataclass(frozen=True)
class Rule:
    """A thing that runs and yet is seldom meant. ``about``: when it is said; ``why``: what comes of it."""

    name: str
    severity: Severity
    about: str
    why: str
    check: Check

    def faults(self, recipe: Recipe) -> Iterator[Fault]:
        """What the rule finds, under its name."""
        for fault in self.check(recipe):
            yield replace(fault, severity=self.severity, rule=self.name)


RULES: dict[str, Rule] = {}


def rule(name: str, severity: Severity, about: str, why: str) -> Callable[[Check], Check]:
    """Register a check under a name that stays: recipes answer it by that name."""

    def register(check: Check) -> Check:
        assert name not in RULES, name
        RULES[name] = Rule(name, severity, about, why, check)
        return check

    return register
