"""What a role holds: tokens, requests, what bounds them, and whether the recipe's own numbers fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recipe_toolkit.capacity.architecture import Architecture, indivisible
from recipe_toolkit.capacity.budget import Budget, Term, assumed_terms, budget, measured_terms, over_reserve
from recipe_toolkit.capacity.card import Card
from recipe_toolkit.capacity.config_json import read_config
from recipe_toolkit.capacity.gpus import Gpu
from recipe_toolkit.capacity.kv_layers import told
from recipe_toolkit.capacity.kv_pool import Pool, build_pool, pool_lines, request_line
from recipe_toolkit.capacity.ledger import Line, size, span
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.capacity.settings import Settings, overridden, settings_of
from recipe_toolkit.capacity.weights import Weights, weigh
from recipe_toolkit.feasibility.benchmarks import most_in_flight
from recipe_toolkit.feasibility.serving import effective_args
from recipe_toolkit.recipe import Benchmark, Recipe, Role


@dataclass(frozen=True)
class Fit:
    """Requests of ``length`` tokens at once on one rank, both ends of the range. ``what``: whose length it is."""

    length: int
    what: str
    low: int
    high: int


@dataclass(frozen=True)
class Check:
    """Whether a number of the recipe fits: ``ok``, ``doubtful`` (by the range) or ``bad``."""

    verdict: str
    text: str


@dataclass(frozen=True)
class Capacity:
    """One role. ``blocks``: of the KV cache of one rank, both ends. ``loads``: ``yes``, ``doubtful`` or ``no``."""

    role: Role
    model: Architecture
    gpu: Gpu | None
    settings: Settings
    weights: Weights
    pool: Pool
    budget: Budget
    blocks: tuple[int, int]
    fits: tuple[Fit, ...]
    loads: str
    checks: tuple[Check, ...]

    @property
    def ranks(self) -> int:
        """DP ranks of all its instances: each has a KV cache of its own."""
        return self.role.instances * self.role.parallel.dp

    @property
    def longest_benchmark(self) -> Fit:
        """Of the recipe's longest benchmark; of max-model-len where there is none."""
        return self.fits[-2] if len(self.fits) > 1 else self.fits[-1]

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of KV of one rank as vLLM's log counts them, both ends."""
        low, high = (self.pool.tokens(blocks, self.settings.longest) for blocks in self.blocks)
        return low, high

    def lines(self) -> Iterator[tuple[str, tuple[Line, ...]]]:
        """The whole ledger, by chapter."""
        yield "weights of a GPU", (*self.weights.lines, _sum_line(self.weights))
        yield "KV cache", tuple(self._kv_lines())
        yield "memory of a GPU", self.budget.lines

    def _kv_lines(self) -> Iterator[Line]:
        yield from told(self.model, self.settings.kv)
        yield from pool_lines(self.pool)
        for fit in self.fits:
            yield request_line(self.pool, fit.length, f" ({fit.what})")


def _sum_line(weights: Weights) -> Line:
    formula = f"sum; the whole model is {size(weights.whole)} ({weights.whole / 1e9:,.1f} GB)"
    return Line("weights", formula, size(weights.local), weights.local)


def known_terms(card: Card, gpu: Gpu | None, batched: int) -> tuple[Term, ...] | None:
    """The terms that logs have given for ``gpu``, if there are any."""
    if gpu is None:
        return None
    found = next((item for item in card.measured if str(item.get("gpu")).lower() == gpu.name.lower()), None)
    return None if found is None else measured_terms(found, batched)


def assess(recipe: Recipe, role: Role, card: Card, gpu: Gpu | None, terms: tuple[Term, ...] | None = None) -> Capacity:
    """The capacity of a role. ``terms``: measured ones in place of the card's and the assumed.

    Raises UnknownModel for what is not known, or cannot be spread.
    """
    only = bool(effective_args(recipe, role).get("language-model-only"))
    model = read_config(overridden(card.config, recipe, role), language_only=only)
    settings = settings_of(recipe, role, model, gpu)
    chosen: tuple[Term, ...] = ()
    if gpu is not None:
        chosen = terms or _merged(assumed_terms(model, settings), known_terms(card, gpu, settings.batched))
    return measure(recipe, role, model, gpu, settings, chosen)


def _merged(assumed: tuple[Term, ...], known: tuple[Term, ...] | None) -> tuple[Term, ...]:
    """The assumed terms, those that are known in their place."""
    by_name = {term.name: term for term in known or ()}
    return tuple(by_name.get(term.name, term) for term in assumed)


def measure(
    recipe: Recipe, role: Role, model: Architecture, gpu: Gpu | None, settings: Settings, terms: tuple[Term, ...]
) -> Capacity:
    """The capacity under given settings and terms."""
    why = indivisible(model, settings.spread.tp)
    if why:
        raise UnknownModel(f"{model.name}: {why}", "another tp")
    if settings.spread.pp > len(model.layers):
        raise UnknownModel(f"{len(model.layers)} layers do not fill {settings.spread.pp} pipeline stages")
    weights = weigh(model, settings.spread, mtp=settings.mtp)
    pool = build_pool(model, settings.kv)
    left = budget(gpu, settings, weights, terms)
    blocks = settings.blocks
    low, high = (blocks, blocks) if blocks else (pool.blocks(left.low), pool.blocks(left.high))
    fits = tuple(
        Fit(length, what, pool.requests(low, length), pool.requests(high, length))
        for length, what in lengths(recipe, role, settings.longest)
    )
    least = 1 if settings.fitted else settings.longest
    one, most = (pool.requests(ends, least) for ends in (low, high))
    loads = "yes" if one else "doubtful" if most else "no"
    found = Capacity(role, model, gpu, settings, weights, pool, left, (low, high), fits, loads, ())
    return replace(found, checks=tuple(_checks(recipe, found)))


def lengths(recipe: Recipe, role: Role, longest: int) -> list[tuple[int, str]]:
    """(tokens, whose) of the recipe's benchmarks, and max-model-len last. Prefill keeps its prompts alone."""
    found: dict[int, str] = {}
    for benchmark in recipe.benchmarks:
        if benchmark.isl is None or benchmark.osl is None:
            continue
        osl = 1 if role.name == "prefill" else benchmark.osl
        found.setdefault(benchmark.isl + osl, benchmark.name)
    found.pop(longest, None)
    return [*sorted(found.items()), (longest, "max-model-len")]


def _checks(recipe: Recipe, found: Capacity) -> Iterator[Check]:
    yield _load_check(found)
    if found.gpu is not None:
        yield from (Check("doubtful", text) for text in over_reserve(found.gpu, found.settings))
    if found.loads == "no" or found.role.name == "prefill":
        return
    by_length = {fit.length: fit for fit in found.fits}
    for benchmark in recipe.benchmarks:
        if benchmark.isl is None or benchmark.osl is None:
            continue
        fit = by_length.get(benchmark.isl + benchmark.osl)
        for concurrency in _in_flight(benchmark):
            if fit is not None:
                yield _concurrency_check(found, fit, benchmark.name, concurrency)
    yield from _flag_checks(recipe, found)


def _in_flight(benchmark: Benchmark) -> tuple[int, ...]:
    """The concurrencies that are listed, or the highest that is searched."""
    return benchmark.concurrency if benchmark.search is None else tuple(filter(None, [most_in_flight(benchmark)]))


def _load_check(found: Capacity) -> Check:
    left, need = found.budget, found.pool.request_bytes(found.settings.longest)
    if found.loads == "yes" and found.settings.fitted:
        return Check("ok", "it loads, and vLLM takes the longest context that fits")
    if found.loads == "yes":
        return Check("ok", "it loads, with room for a request of max-model-len")
    if max(left.high) <= 0:
        return Check(
            "bad", f"it cannot load: weights and what else is needed exceed what vLLM takes by {size(-max(left.high))}"
        )
    held = span(max(0.0, min(left.low)), min(left.high))
    text = f"a request of max-model-len {found.settings.longest:,} takes {size(need)} of KV, and {held} are left"
    if found.loads == "no":
        return Check("bad", f"it cannot load: {text}")
    return Check("doubtful", f"it loads only if it needs less than the most that is assumed: {text}")


def _concurrency_check(found: Capacity, fit: Fit, name: str, concurrency: int) -> Check:
    each = -(-concurrency // found.ranks)
    where = f"{name}: {concurrency:,} in flight are {each:,} a rank"
    most = found.settings.sequences
    if each > most:
        return Check("bad", f"{where}, and max-num-seqs is {most:,}: the others wait")
    if each <= fit.low:
        return Check("ok", f"{where} of {_range(fit)} that fit")
    if each <= fit.high:
        return Check("doubtful", f"{where} of {_range(fit)} that fit: it depends on the terms that are assumed")
    return Check("bad", f"{where}, and {_range(fit)} fit: the others wait, or are preempted")


def _range(fit: Fit) -> str:
    return f"{fit.low:,}" if fit.low == fit.high else f"{fit.low:,}-{fit.high:,}"


def _flag_checks(recipe: Recipe, found: Capacity) -> Iterator[Check]:
    loads = [load for item in recipe.benchmarks for load in _in_flight(item)]
    if not loads:
        return
    each = -(-max(loads) // found.ranks)
    step = 1 + found.settings.kv.drafts
    tokens, settings = each * step, found.settings
    if settings.graphs and {"max-cudagraph-capture-size"} & settings.written:
        if settings.capture < tokens:
            text = f"{each:,} a rank x (1 + drafts) = {tokens:,} tokens, and CUDA graphs end at {settings.capture:,}"
            yield Check("bad", f"{text}: decoding leaves them")
        elif settings.capture % step:
            yield Check("doubtful", f"max-cudagraph-capture-size {settings.capture:,} is no multiple of {step}")
    if settings.batched < tokens:
        text = f"{each:,} a rank x (1 + drafts) = {tokens:,} tokens, and max-num-batched-tokens is {settings.batched:,}"
        yield Check("bad", f"{text}: a step leaves some out")


def bound(found: Capacity, fit: Fit) -> str:
    """Which term bounds the requests of a rank."""
    if fit.high == 0:
        return "weights" if max(found.budget.high) <= 0 else "KV cache"
    if found.settings.sequences <= fit.low:
        return "max-num-seqs"
    return "KV cache" if found.settings.sequences > fit.high else "KV cache or max-num-seqs"
