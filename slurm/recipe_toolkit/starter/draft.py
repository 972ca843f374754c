"""Drafts: what the answers so far would write, read and planned as the files would be."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.plan.any_site import any_site
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.starter.questions import Answers, Question, Site, presumed
from recipe_toolkit.starter.texts import profile_text, recipe_text


def faults(answers: Answers, cluster: Cluster | None) -> list[Problem]:
    """What is wrong with the files of complete answers; ``cluster``: the profile that is there, if one is used."""
    with tempfile.TemporaryDirectory() as scratch:
        profile, recipe = Path(scratch, "profile.yaml"), Path(scratch, "recipe.yaml")
        found: list[Problem] = []
        if answers.get("profile") is not None:
            profile.write_text(profile_text(answers), encoding="utf-8")
            try:
                cluster = load_profile(profile).cluster
            except InputError as error:
                found += error.problems
        recipe.write_text(recipe_text(answers), encoding="utf-8")
        try:
            loaded = load_recipe(recipe).recipe
            if not found:
                build_plan(loaded, cluster or any_site(loaded))
        except InputError as error:
            found += error.problems
    return [problem for problem in found if problem.refuses]


def answer(question: Question, text: str, answers: Answers, site: Site, cluster: Cluster | None) -> Any:
    """The value that ``text`` gives. Raises ValueError with what it makes wrong in the files."""
    choices = question.choices(site)
    if choices and question.closed and text not in choices:
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
    value = question.parse(text)
    if question.key == "profile" and value == "local":
        raise ValueError("'local' is the package's own profile: take another name")
    # What is presumed for later questions may not fit either: that is told at theirs.
    before = _known(faults(presumed(answers, site), cluster))
    after = faults(presumed({**answers, question.key: value}, site), cluster)
    new = [problem for problem in after if (problem.field, problem.message) not in before]
    if new:
        raise ValueError(_said(new))
    return value


def _known(problems: Sequence[Problem]) -> set[tuple[str, str]]:
    return {(problem.field, problem.message) for problem in problems}


def _said(problems: Sequence[Problem]) -> str:
    first = problems[0]
    return f"{first.field}: {first.message}" + (f"\n  hint: {first.hint}" if first.hint else "")
