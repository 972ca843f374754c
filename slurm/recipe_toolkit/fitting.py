"""Capacity of whole recipes: for ``recipe capacity``, in short for ``plan`` and ``validate``, and for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import Problem, Severity
from recipe_toolkit.model_files import Found, fetch_model, find_model
from recipe_toolkit.recipe import Recipe

if TYPE_CHECKING:
    from recipe_toolkit.capacity.assess import Capacity, Check
    from recipe_toolkit.capacity.budget import Term
    from recipe_toolkit.capacity.gpus import Gpu

_OFF = 0.01  # share of a checkpoint that may be tensors which config.json does not tell of


@dataclass(frozen=True)
class Answer:
    """The capacity of every role. ``source``: where the model's facts are from."""

    source: str
    roles: list[Capacity]
    checks: list[Check]


def assess_recipe(
    recipe: Recipe,
    cluster: Cluster | None,
    model: Path | None = None,
    memory: float | None = None,
    *,
    hub: bool = False,
    terms: Mapping[str, tuple[Term, ...]] | None = None,
) -> Answer:
    """The capacity of every role. ``memory``: GiB of a GPU; ``hub``: ask the hub for the model's facts.

    ``terms``: of a role, in place of what is assumed. Raises UnknownModel where something is not known.
    """
    if recipe.engine.kind != "vllm":
        raise UnknownModel("the simulated engine holds no model", "engine: {kind: vllm, ...}")
    found = fetch_model(recipe.model.path) if hub else find_model(recipe, cluster, model)
    if found is None:
        hint = "--model DIR: its folder or config.json; or the profile's `models`"
        hint += "; or --hub" if recipe.model.path.startswith("hf:") else ""
        raise UnknownModel(f"nothing is known of the model {recipe.model.path}", hint)
    # Late, as in all of this module: other verbs ask of models of which nothing is known.
    from recipe_toolkit.capacity.assess import assess

    gpu = _gpu(recipe, memory)
    known = terms or {}
    roles = [assess(recipe, role, found.card, gpu, known.get(role.name)) for role in recipe.roles]
    return Answer(found.card.source, roles, list(_checkpoint_checks(found, roles)))


def _gpu(recipe: Recipe, memory: float | None) -> Gpu | None:
    from recipe_toolkit.capacity.gpus import gpu_of

    return None if recipe.resources.device == "cpu" else gpu_of(recipe.resources.gpu, memory)


def _checkpoint_checks(found: Found, roles: Sequence[Capacity]) -> Iterator[Check]:
    if found.checkpoint is None or not roles:
        return
    from recipe_toolkit.capacity.assess import Check

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
    from recipe_toolkit.capacity.handshake import check_handshake

    return check_handshake(recipe, by_name["prefill"], by_name["decode"])


def known_capacity(recipe: Recipe, cluster: Cluster | None) -> Answer | None:
    """The capacity where all is known, else None: other verbs say nothing of what they cannot know."""
    if recipe.engine.kind != "vllm" or recipe.resources.device == "cpu":
        return None
    try:
        return assess_recipe(recipe, cluster)
    except UnknownModel:
        return None


@dataclass(frozen=True)
class Memory:
    """What ``plan`` and ``validate`` say of it: a line a role, and problems that name fields of the recipe.

    ``reads``: bytes of weights that a node of each role reads.
    """

    lines: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    reads: Mapping[str, float] = field(default_factory=dict)


def memory_of(recipe: Recipe, cluster: Cluster | None) -> Memory:
    """The short form, where the model and the GPU are known; else nothing.

    Errors are what cannot load or cannot shake hands whatever is assumed; warnings what may not.
    """
    answer = known_capacity(recipe, cluster)
    if answer is None:
        return Memory()
    from recipe_toolkit.capacity.text import short

    reads = {found.role.name: _read(recipe, found) for found in answer.roles}
    return Memory(tuple(map(short, answer.roles)), tuple(_problems(recipe, answer)), reads)


def _read(recipe: Recipe, found: Capacity) -> float:
    """Bytes of the parts that the ranks of a node hold; what several hold is read once."""
    ranks = min(found.role.parallel.size, recipe.resources.gpus_per_node)
    return float(min(found.weights.local * ranks, found.weights.whole))


def _problems(recipe: Recipe, answer: Answer) -> Iterator[Problem]:
    hint = "recipe capacity shows the arithmetic, and with --topologies N other layouts"
    for found in answer.roles:
        if found.loads != "yes":
            severity: Severity = "error" if found.loads == "no" else "warning"
            field, text = f"roles.{found.role.name}.parallel", found.checks[0].text
            yield Problem("recipe", 0, 0, field, text, hint, severity)
    for check in pair_checks(recipe, answer.roles):
        if check.verdict == "bad":
            yield Problem("recipe", 0, 0, "roles.decode", check.text, hint)
