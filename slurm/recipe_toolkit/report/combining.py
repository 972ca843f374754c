"""Runs of prefill alone and of decode alone, from their folders, put together to a frontier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.errors import InputError
from recipe_toolkit.fitting import assess_recipe
from recipe_toolkit.frontier.document import Asked, Frontier, frontier
from recipe_toolkit.frontier.pool import Pool
from recipe_toolkit.frontier.read import Material, Source, read
from recipe_toolkit.frontier.transfer import Transfer, by_rate, measured
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.recipe import Recipe
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.sim_options import KEYS

_DUMMY_KV = "DecodeBenchConnector"


@dataclass(frozen=True)
class Part:
    """A run to combine."""

    run: RunDir
    plan: Plan
    results: Mapping[str, Any]

    @property
    def source(self) -> Source:
        """What is read of it. Dummy KV is seen in the commands of its plan."""
        words = (str(word) for process in self.plan.processes for word in process.argv)
        return Source(self.results, any(_DUMMY_KV in word for word in words))


def combined(parts: Sequence[Part], asked: Asked, gb_per_s: float | None) -> Frontier:
    """The frontier of the runs. ``gb_per_s``: of one KV transfer; by default as the runs' counters say.

    Raises RecipeError where they cannot be combined.
    """
    material = read([part.source for part in parts])
    recipes = {part.results["recipe"]: part for part in parts}
    transfers = {pool.label: _transfer(pool, recipes[pool.recipe], material, gb_per_s) for pool in material.decode}
    return frontier(material, asked, transfers)


def _transfer(pool: Pool, part: Part, material: Material, gb_per_s: float | None) -> Transfer:
    if gb_per_s is None:
        counted = measured(list(_counted(pool, material)), material.isl)
        if counted is not None:
            return counted
    recipe, site = _locked(part.run)
    if recipe is None:
        return by_rate(None, gb_per_s or 0.0, "its recipe.lock.yaml cannot be read")
    if recipe.engine.kind == "sim" and gb_per_s is None:
        return _simulated(recipe, material.isl)
    size, source = kv_bytes(recipe, site, material.isl)
    if gb_per_s is None:
        said = f"{source}; no run has transfer counters, and --transfer-gb-per-s is not given"
        return Transfer(None, said, size)
    return by_rate(size, gb_per_s, source)


def _counted(pool: Pool, material: Material) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The measured points whose decode side is this pool's layout; all where none is."""
    everything = [(item.run, item.point) for item in material.measured]
    shape = dict(pool.layout)
    same = [
        (item.run, item.point)
        for item in material.measured
        if {key: value for key, value in item.results["layout"]["decode"].items() if key != "instances"} == shape
    ]
    yield from same or everything


def _locked(run: RunDir) -> tuple[Recipe | None, Cluster | None]:
    """The recipe and the profile that a run kept; None for what cannot be read."""
    try:
        recipe = load_recipe(run.recipe_lock).recipe
    except InputError:
        return None, None
    return recipe, _profile(run.cluster_lock)


def _profile(path: Path) -> Cluster | None:
    try:
        return load_profile(path).cluster
    except InputError:
        return None


def kv_bytes(recipe: Recipe, site: Cluster | None, isl: int) -> tuple[int | None, str]:
    """KV of a prompt at one GPU of the recipe's last role, and how it is known, or why it is not."""
    try:
        role = assess_recipe(recipe, site).roles[-1]
    except UnknownModel as error:
        return None, f"the bytes are not known: {error.message}"
    size = role.pool.request_bytes(isl)
    return size, f"{size:,} bytes of a prompt of {isl:,} tokens at each GPU, by its config.json"


def _simulated(recipe: Recipe, isl: int) -> Transfer:
    """As the simulated engine's own options have it."""
    options = {**{name: key.default for name, key in KEYS.items()}, **recipe.engine.sim, **recipe.roles[-1].sim}
    size, rate = isl * options["kv_bytes_per_token"], options["kv_bytes_per_s"]
    seconds = options["kv_transfer_ms"] / 1000 + size / rate
    return Transfer(seconds, "options of the simulated engine", size, size / seconds if seconds else None, 0.0)
