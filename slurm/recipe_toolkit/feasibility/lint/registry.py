"""The rules by name, and what each is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import Severity
from recipe_toolkit.faults import Fault
from recipe_toolkit.recipe import Recipe


@dataclass(frozen=True)
class Setting:
    """A recipe where it is to run. ``cluster``: None where no profile is given.

    ``reads``: bytes of weights that a node of each role reads; empty where nothing is known of the model.
    """

    recipe: Recipe
    cluster: Cluster | None = None
    reads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Told:
    """A fault of the recipe, or of the profile."""

    fault: Fault
    profile: bool = False


Given = TypeVar("Given", Recipe, Setting)
Found = TypeVar("Found", Fault, Told)


@dataclass(frozen=True)
class Rule(Generic[Given, Found]):
    """What runs and is seldom meant. ``about``: when it is said; ``why``: what comes of it; ``do``: what to write."""

    name: str
    severity: Severity
    about: str
    why: str
    do: str
    check: Callable[[Given], Iterator[Found]]

    def named(self, fault: Fault) -> Fault:
        """The fault under the rule's name."""
        return replace(fault, severity=self.severity, rule=self.name)


RULES: dict[str, Rule[Recipe, Fault]] = {}
"""Of a recipe alone."""
SITE_RULES: dict[str, Rule[Setting, Told]] = {}
"""Of a recipe with a profile, or with what is known of its model."""

Check = Callable[[Recipe], Iterator[Fault]]
SiteCheck = Callable[[Setting], Iterator[Told]]


def rule(name: str, severity: Severity, about: str, why: str, *, do: str) -> Callable[[Check], Check]:
    """Register a check under a name that stays: recipes answer it by that name."""

    def register(check: Check) -> Check:
        assert name not in RULES, name
        RULES[name] = Rule(name, severity, about, why, do, check)
        return check

    return register


def site_rule(name: str, severity: Severity, about: str, why: str, *, do: str) -> Callable[[SiteCheck], SiteCheck]:
    """Register a check of a recipe where it is to run."""

    def register(check: SiteCheck) -> SiteCheck:
        assert name not in RULES | SITE_RULES, name
        SITE_RULES[name] = Rule(name, severity, about, why, do, check)
        return check

    return register
