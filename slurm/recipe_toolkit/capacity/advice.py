"""What would raise the requests of a role, and all layouts of its GPUs side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from recipe_toolkit.capacity.architecture import Gqa, Mla, indivisible
from recipe_toolkit.capacity.assess import Capacity, measure
from recipe_toolkit.capacity.budget import assumed_terms
from recipe_toolkit.capacity.kv_layers import align, cache_width
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.capacity.settings import settings_of, spread_of
from recipe_toolkit.feasibility.layout import check_role
from recipe_toolkit.recipe import Parallel, Recipe

_WORTH = 1.03  # changes that raise less are left out


@dataclass(frozen=True)
class Layout:
    """One way to lay the GPUs of an instance out. ``why``: None, or why it cannot be."""

    parallel: Parallel
    capacity: Capacity | None
    why: str | None = None

    @property
    def name(self) -> str:
        """``TP4 DP4 EP``."""
        return told(self.parallel)


def told(parallel: Parallel) -> str:
    """The sizes that are more than one, as the field names them."""
    sizes = (("TP", parallel.tp), ("PP", parallel.pp), ("DP", parallel.dp), ("DCP", parallel.dcp))
    words = [f"{name}{number}" for name, number in sizes if number > 1]
    return " ".join([*(words or ["TP1"]), *(["EP"] if parallel.ep else [])])


@dataclass(frozen=True)
class Change:
    """``what`` would be changed; requests of the longest benchmark in all ranks then, both ends."""

    what: str
    low: int
    high: int


def changes(recipe: Recipe, found: Capacity) -> list[Change]:
    """Changes that would let more requests of the recipe's longest benchmark in, the best first."""
    now = _total(found)
    result = []
    for what, flags in _flags(found):
        settings = replace(found.settings, kv=replace(found.settings.kv, **flags))
        if flags.get("mtp") is False:
            settings = replace(settings, mtp=False)
        try:
            other = measure(recipe, found.role, found.model, found.gpu, settings, found.budget.terms)
        except UnknownModel:
            continue
        result.append(Change(what, *_total(other)))
    parallel = found.role.parallel
    if found.gpu is not None and parallel.size > 1:
        for layout in layouts(recipe, found, parallel.size):
            if layout.capacity is not None and layout.parallel != parallel:
                result.append(Change(f"{layout.name} in place of {told(parallel)}", *_total(layout.capacity)))
    better = [item for item in result if item.high > now[1] * _WORTH and item.low >= now[0]]
    better.sort(key=lambda item: (-item.low - item.high, item.what))
    return better[:5]


def _flags(found: Capacity) -> Iterator[tuple[str, dict[str, Any]]]:
    kv = found.settings.kv
    if kv.drafts:
        yield "no speculative decoding", {"drafts": 0, "mtp": False}
    if cache_width(kv, found.model) > 1 and any(isinstance(layer.mixer, (Gqa, Mla)) for layer in found.model.layers):
        yield "kv-cache-dtype: fp8", {"cache_dtype": "fp8"}
    aligned = align(found.model, kv)
    if aligned and kv.block_size:
        free = align(found.model, replace(kv, block_size=None))
        if free and free.block < aligned.block:
            yield f"no block-size: {free.block:,} tokens a block in place of {aligned.block:,}", {"block_size": None}
    if kv.align:
        yield "enable-prefix-caching: false", {"align": False}
    if aligned and kv.ssm_dtype in ("auto", "float32"):
        yield "mamba-ssm-cache-dtype: bfloat16 (states lose precision)", {"ssm_dtype": "bfloat16"}


def _total(found: Capacity) -> tuple[int, int]:
    """Requests of the longest benchmark in all DP ranks of an instance; of max-model-len where there is none."""
    fit = found.longest_benchmark
    ranks = found.role.parallel.dp
    return fit.low * ranks, fit.high * ranks


def layouts(recipe: Recipe, found: Capacity, gpus: int) -> Iterator[Layout]:
    """Every layout of ``gpus`` GPUs for one instance of the role, TP first; DCP and EP as the role has them."""
    mine = found.role.parallel
    for pp in _divisors(gpus):
        for tp in reversed(_divisors(gpus // pp)):
            dp = gpus // pp // tp
            ep = found.model.moe is not None and (mine.ep or found.role.parallel.size == 1) and tp * dp > 1
            parallel = Parallel(tp=tp, pp=pp, dp=dp, dcp=mine.dcp if tp % mine.dcp == 0 else 1, ep=ep)
            if pp > 1 and pp != mine.pp:
                continue
            why = _impossible(recipe, found, parallel)
            yield Layout(parallel, None, why) if why else _layout(recipe, found, parallel)


def _layout(recipe: Recipe, found: Capacity, parallel: Parallel) -> Layout:
    role = replace(found.role, parallel=parallel, instances=1)
    # Whether TP ranks hold shared experts whole is the backend's, but for layouts with TP and DP alone.
    shared = settings_of(recipe, role, found.model, found.gpu).spread.replicate_shared
    kv = replace(found.settings.kv, tp=parallel.tp, pp=parallel.pp, dcp=parallel.dcp)
    settings = replace(found.settings, spread=spread_of(parallel, found.model, shared=shared), kv=kv)
    try:
        other = measure(recipe, role, found.model, found.gpu, settings, _terms(found, settings))
    except UnknownModel as error:
        return Layout(parallel, None, error.message)
    return Layout(parallel, other)


def _terms(found: Capacity, settings: Any) -> Any:
    """The measured terms as they are, the assumed ones for these settings."""
    assumed = {term.name: term for term in assumed_terms(found.model, settings)}
    return tuple(
        assumed.get(term.name, term) if term.source.startswith("assumed") else term for term in found.budget.terms
    )


def _divisors(number: int) -> list[int]:
    return [item for item in range(1, number + 1) if number % item == 0]


def _impossible(recipe: Recipe, found: Capacity, parallel: Parallel) -> str | None:
    why = indivisible(found.model, parallel.tp)
    if why:
        return why
    role = replace(found.role, parallel=parallel, instances=1)
    fault = next((item for item in check_role(role, recipe.resources) if item.refuses), None)
    return fault.message if fault is not None else None
