"""The pool of blocks that all layers share: groups of layers, bytes of a block, blocks of a request.

After vLLM's ``v1/core/kv_cache_utils.py`` of 0.32 (get_kv_cache_groups, get_kv_cache_config_from_groups,
get_max_concurrency_for_kv_cache_config), with the layer outermost in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from recipe_toolkit.capacity.architecture import Architecture
from recipe_toolkit.capacity.kv_layers import Cache, KvFlags, layer_caches
from recipe_toolkit.capacity.ledger import Line, size
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.capacity.weights import stage_layers

_TOKENS = ("full", "latent", "index")  # kinds that keep every token


@dataclass(frozen=True)
class Group:
    """Layers that share one block table. ``members``: (layer, page) of each cache in it."""

    cache: Cache
    members: tuple[tuple[int, int], ...]

    def blocks(self, length: int, flags: KvFlags) -> int:
        """Blocks of a request of ``length`` tokens."""
        cache = self.cache
        if cache.kind == "state":
            return cache.states
        if cache.kind == "window":
            held = min(cache.window - 1 + flags.in_flight, length)
            return -(-held // cache.block) + 1
        return -(-length // (cache.block * flags.dcp))


@dataclass(frozen=True)
class Pool:
    """``block_bytes``: of one block in all layers of a group, for each pipeline stage."""

    groups: tuple[Group, ...]
    block_bytes: tuple[int, ...]
    flags: KvFlags
    padding: int

    def request_blocks(self, length: int) -> int:
        """Blocks that a request of ``length`` tokens takes."""
        return sum(group.blocks(length, self.flags) for group in self.groups)

    def request_bytes(self, length: int) -> int:
        """Bytes of it on a rank of the stage that holds most."""
        return self.request_blocks(length) * max(self.block_bytes)

    def blocks(self, memory: Sequence[float]) -> int:
        """Blocks that fit, ``memory`` being the bytes for KV of each stage: the poorest stage decides."""
        return max(0, min(int(held // each) for held, each in zip(memory, self.block_bytes, strict=True)))

    def requests(self, blocks: int, length: int) -> int:
        """Requests of ``length`` tokens at once; vLLM keeps one block back."""
        return max(0, blocks - 1) // self.request_blocks(length)

    def tokens(self, blocks: int, length: int) -> int:
        """``GPU KV cache size`` of vLLM's log: the most requests of ``length`` (its max-model-len), in tokens."""
        return int(blocks / self.request_blocks(length) * length)


def build_pool(model: Architecture, flags: KvFlags) -> Pool:
    """The pool of a model. Raises UnknownModel for a combination of caches that is not known."""
    layers = layer_caches(model, flags)
    entries = [(at, cache) for at, caches in enumerate(layers) for cache in caches]
    groups, padding = _groups(entries)
    stages = [_stage_of(at, len(model.layers), flags.pp) for at in range(len(layers))]
    sizes = [
        max(sum(page for at, page in group.members if stages[at] == stage) for group in groups)
        for stage in range(flags.pp)
    ]
    if not all(sizes):
        raise UnknownModel(f"a pipeline stage of pp {flags.pp} has no layer with a cache", "a smaller pp")
    return Pool(tuple(groups), tuple(sizes), flags, padding)


def _stage_of(at: int, count: int, pp: int) -> int:
    return next((stage for stage in range(pp) if at in stage_layers(count, pp, stage)), pp - 1)


def _groups(entries: list[tuple[int, Cache]]) -> tuple[list[Group], int]:
    kinds = {cache.kind for _, cache in entries}
    uniform = kinds <= set(_TOKENS) or (len({cache for _, cache in entries}) == 1)
    if uniform and len({cache.block for _, cache in entries}) == 1:
        return [_group(entries)], 0
    entries = _one_page(entries)
    buckets: dict[Cache, list[tuple[int, Cache]]] = {}
    for at, cache in entries:
        buckets.setdefault(cache, []).append((at, cache))
    counts = [len(members) for members in buckets.values()]
    # As many layers a group as the rarest kind has; the commonest, where that is less than half as much again.
    each = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    groups, padding = [], 0
    for members in buckets.values():
        number = -(-len(members) // each)
        padding += number * each - len(members)
        groups += [_group(members[first::number]) for first in range(number)]
    return groups, padding


def _group(members: Sequence[tuple[int, Cache]]) -> Group:
    return Group(members[0][1], tuple((at, cache.page) for at, cache in members))


def _one_page(entries: list[tuple[int, Cache]]) -> list[tuple[int, Cache]]:
    """Every cache with the page of the largest: more tokens in a block, or padding (unify_kv_cache_spec_page_size)."""
    largest = max(cache.page for _, cache in entries)

    def grown(cache: Cache) -> Cache:
        if cache.page == largest:
            return cache
        if cache.kind == "state":
            return replace(cache, page=largest)
        if largest % cache.page == 0:
            return replace(cache, block=cache.block * (largest // cache.page), page=largest)
        if cache.kind in ("latent", "index"):
            raise UnknownModel("latent attention beside caches of other sizes is not known")
        return replace(cache, page=largest)

    return [(at, grown(cache)) for at, cache in entries]


def pool_lines(pool: Pool) -> Iterator[Line]:
    """The arithmetic of the groups and of a block."""
    sizes = sorted({len(group.members) for group in pool.groups}, reverse=True)
    if len(pool.groups) > 1:
        kinds = [group.cache.kind for group in pool.groups]
        counted = " + ".join(f"{kinds.count(kind)} of {_KINDS[kind]}" for kind in dict.fromkeys(kinds))
        spare = f", {pool.padding} places stay empty" if pool.padding else ""
        formula = f"{counted}, {' or '.join(map(str, sizes))} layers each{spare}"
        source = "vLLM: every group has as many layers as the rarest kind"
        yield Line("groups of layers", formula, str(len(pool.groups)), len(pool.groups), source)
    largest = max(pool.block_bytes)
    group = max(pool.groups, key=lambda item: sum(page for _, page in item.members))
    pages: dict[int, int] = {}
    for _, page in group.members:
        pages[page] = pages.get(page, 0) + 1
    formula = " + ".join(f"{count} x {size(page)}" for page, count in pages.items())
    if pool.flags.pp > 1:
        formula = f"the fullest of {pool.flags.pp} stages, of {formula}"
    yield Line("block of a group", formula, size(largest), largest)


def request_line(pool: Pool, length: int, what: str) -> Line:
    """The arithmetic of a request of ``length`` tokens."""
    parts: dict[str, int] = {}
    for group in pool.groups:
        text = _blocks_told(group, length, pool.flags)
        parts[text] = parts.get(text, 0) + 1
    formula = " + ".join(text if count == 1 else f"{count} x {text}" for text, count in parts.items())
    number = pool.request_bytes(length)
    blocks = pool.request_blocks(length)
    told = f"{formula} = {blocks} blocks x {size(max(pool.block_bytes))}"
    return Line(f"request of {length:,} tokens{what}", told, size(number), number)


def _blocks_told(group: Group, length: int, flags: KvFlags) -> str:
    cache = group.cache
    if cache.kind == "state":
        first = 2 if flags.align else 1
        return f"({first} + {flags.drafts} drafts)" if flags.drafts else str(first)
    if cache.kind == "window":
        held = min(cache.window - 1 + flags.in_flight, length)
        return f"(ceil({held:,} / {cache.block}) + 1)"
    shared = f" x DCP {flags.dcp}" if flags.dcp > 1 else ""
    return f"ceil({length:,} / {cache.block:,}{shared})"


_KINDS = {"full": "attention", "latent": "attention", "index": "indexers", "window": "windows", "state": "states"}
