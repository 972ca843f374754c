"""Capacity for the verbs that show it: ``recipe capacity`` whole, ``plan`` and ``validate`` in short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe_toolkit.capacity.assess import Capacity, Check, assess
from recipe_toolkit.capacity.gpus import Gpu, gpu_of
from recipe_toolkit.capacity.handshake import check_handshake
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import Problem
from recipe_toolkit.model_files import Found, find_model
from recipe_toolkit.recipe import Recipe

_OFF = 0.01  # share of a checkpoint that may be tensors which config.json does not tell of


@dataclass(frozen=True)
class Answer:
    """The capacity of every role. ``source``: where the model's facts are from."""

    source: str
    roles: list[Capacity]
    checks: list[Check]


def load_for_capacity(file: Path, cluster: str, sets: Sequence[str]) -> tuple[Recipe, Cluster]:
    """The recipe and the profile. Raises InputError with every problem of both."""
    from recipe_toolkit.cli.foreign import load_any
    from recipe_toolkit.cluster_loader import load_cluster

    site = load_cluster(cluster).cluster
    return load_any(file, sets).recipe, site


def assess_recipe(recipe: Recipe, cluster: Cluster | None, model: Path | None, memory: float | None) -> Answer:
    """The capacity of every role. Raises UnknownModel where something is not known."""
    if recipe.engine.kind != "vllm":
        raise UnknownModel("the simulated engine holds no model", "engine: {kind: vllm, ...}")
    found = find_model(recipe, cluster, model)
    if found is None:
        hint = "--model DIR: its folder or config.json; or the profile's `models`"
        raise UnknownModel(f"nothing is known of the model {recipe.model.path}", hint)
    gpu = _gpu(recipe, memory)
    roles = [assess(recipe, role, found.card, gpu) for role in recipe.roles]
    return Answer(found.card.source, roles, list(_checkpoint_checks(found, roles)))


def _gpu(recipe: Recipe, memory: float | None) -> Gpu | None:
    return None if recipe.resources.device == "cpu" else gpu_of(recipe.resources.gpu, memory)


def _checkpoint_checks(found: Found, roles: Sequence[Capacity]) -> Iterator[Check]:
    if found.checkpoint is None or not roles:
        return
    fullest = max(roles, key=lambda role: role.weights.whole)
    counted = fullest.weights.whole
    said = f"the checkpoint has {_gb(found.checkpoint)} of tensors, the arithmetic {_gb(counted)}"
    off = counted / found.checkpoint - 1
    left_out = fullest.model.mtp and not fullest.settings.mtp
    if abs(off) <= _OFF or left_out:
        what = " without the MTP layers" if left_out else ""
        yield Check("ok", f"{said}{what} ({off:+.2%})")
    else:
        yield Check("doubtful", f"{said} ({off:+.1%}): config.json does not tell of all")


def _gb(number: float) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e8 else f"{number:,.0f} B"


def pair_checks(recipe: Recipe, roles: Sequence[Capacity]) -> list[Check]:
    """What is to be said of prefill and decode together."""
    by_name = {found.role.name: found for found in roles}
    if by_name.keys() < {"prefill", "decode"} or len(by_name) < 2:
        return []
    return check_handshake(recipe, by_name["prefill"], by_name["decode"])


def known_capacity(recipe: Recipe, cluster: Cluster | None) -> Answer | None:
    """The capacity where all is known, else None: other verbs say nothing of what they cannot know."""
    if recipe.engine.kind != "vllm" or recipe.resources.device == "cpu":
        return None
    try:
        return assess_recipe(recipe, cluster, None, None)
    except UnknownModel:
        return None


def capacity_problems(recipe: Recipe, answer: Answer) -> list[Problem]:
    """What cannot load or cannot shake hands, as errors of the recipe's fields; what may not, as warnings."""
    problems = []
    for found in answer.roles:
        if found.loads != "yes":
            check = found.checks[0]
            severity = "error" if found.loads == "no" else "warning"
            field = f"roles.{found.role.name}.parallel"
            hint = "recipe capacity shows the arithmetic; --topologies N other layouts"
            problems.append(Problem("recipe", 0, 0, field, check.text, hint, severity))  # type: ignore[arg-type]
    for check in pair_checks(recipe, answer.roles):
        if check.verdict == "bad":
            hint = "recipe capacity shows the arithmetic"
            problems.append(Problem("recipe", 0, 0, "roles.decode", check.text, hint))
    return problems
