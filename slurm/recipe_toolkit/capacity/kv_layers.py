"""What each layer keeps of a request: pages of keys and values, of latents, or a state of fixed size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recipe_toolkit.capacity.architecture import Architecture, Gqa, Layer, Linear, Mamba2, Mla
from recipe_toolkit.capacity.ledger import Line, size
from recipe_toolkit.capacity.refusal import UnknownModel

_CACHE_BYTES = {"auto": 0, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_DS_MLA = 656  # 512 of NoPE in FP8, 16 of scales, 128 of RoPE in 16 bits (flashmla_sparse.py)
_INDEX_BLOCK = 128  # values of an indexer key under one scale of 4 bytes (deepseek_v2.py, quant_block_size)


@dataclass(frozen=True)
class KvFlags:
    """What decides the cache of one rank.

    ``drafts``: speculative tokens. ``mtp``: with the cache of the MTP layers. ``kernel_block``: tokens that the
    attention kernel takes at least. ``block_size``: as the recipe writes it. ``in_flight``: tokens scheduled and
    not settled. ``ds_mla``: sparse MLA in FP8 takes the packed layout of 656 bytes. ``unified``: the hybrid KV
    cache manager is off. ``align``: prefix caching of states.
    """

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    cache_dtype: str = "auto"
    conv_dtype: str = "auto"
    ssm_dtype: str = "auto"
    block_size: int | None = None
    kernel_block: int = 16
    default_block: int = 16
    drafts: int = 0
    mtp: bool = False
    in_flight: int = 0
    ds_mla: bool = True
    unified: bool = False
    align: bool = False


@dataclass(frozen=True)
class Cache:
    """The cache of one layer. ``kind``: ``full``, ``latent``, ``index``, ``window`` or ``state``.

    ``block``: tokens of a page of ``page`` bytes. ``states``: pages of a request, whatever its length.
    """

    kind: str
    block: int
    page: int
    window: int = 0
    states: int = 0


def cache_width(flags: KvFlags, model: Architecture) -> int:
    """Bytes of a cached value. Raises UnknownModel for a dtype that is not known."""
    if flags.cache_dtype == "fp8_ds_mla":
        return 1
    if flags.cache_dtype not in _CACHE_BYTES:
        raise UnknownModel(
            f"kv-cache-dtype {flags.cache_dtype} is not known", f"known: {', '.join(_CACHE_BYTES)}, fp8_ds_mla"
        )
    return _CACHE_BYTES[flags.cache_dtype] or model.width


def token_bytes(mixer: Gqa | Mla, flags: KvFlags, model: Architecture) -> int:
    """Bytes of a token in one layer of one rank: a rank holds at least one whole KV head."""
    width = cache_width(flags, model)
    if isinstance(mixer, Gqa):
        return 2 * max(1, mixer.kv_heads // flags.tp) * mixer.head_dim * width
    if flags.cache_dtype == "fp8_ds_mla" or (mixer.indexer is not None and width == 1 and flags.ds_mla):
        return _DS_MLA
    return (mixer.kv_rank + mixer.rope) * width


def index_bytes(mixer: Mla) -> int:
    """Bytes of a token in an indexer: a key in FP8 with its scales; 0 where the layer has none."""
    indexer = mixer.indexer
    return 0 if indexer is None or not indexer.built else indexer.head_dim + indexer.head_dim // _INDEX_BLOCK * 4


def state_bytes(mixer: Linear | Mamba2, flags: KvFlags, model: Architecture) -> tuple[int, int]:
    """(convolution, recurrent state) of one request in one layer of one rank (mamba_utils.py)."""
    conv = _state_width(flags.conv_dtype, model.width)
    length = mixer.kernel - 1 + flags.drafts
    if isinstance(mixer, Linear):
        wide = 2 * mixer.k_heads * mixer.k_dim + mixer.v_heads * mixer.v_dim
        state = mixer.v_heads // flags.tp * mixer.v_dim * mixer.k_dim
    else:
        groups = mixer.groups if mixer.groups % flags.tp == 0 else flags.tp
        wide = mixer.inner + 2 * groups * mixer.state
        state = mixer.heads // flags.tp * mixer.head_dim * mixer.state
    return wide // flags.tp * length * conv, state * ssm_width(flags, model)


def ssm_width(flags: KvFlags, model: Architecture) -> int:
    """Bytes of a value of a recurrent state: the flag's, else config.json's where vLLM heeds it, else conv's."""
    if flags.ssm_dtype != "auto":
        return _state_width(flags.ssm_dtype, model.width)
    default = "float32" if model.name.startswith(("NemotronH", "KimiLinear")) else "auto"
    heeded = model.name.startswith(("NemotronH", "Qwen3_5"))
    told = (model.ssm_dtype if heeded else None) or default
    return _state_width(flags.conv_dtype if told == "auto" else told, model.width)


def _state_width(dtype: str, width: int) -> int:
    if dtype == "auto":
        return width
    if dtype not in _STATE_BYTES:
        raise UnknownModel(f"dtype {dtype} of a state is not known", f"known: {', '.join(_STATE_BYTES)}")
    return _STATE_BYTES[dtype]


@dataclass(frozen=True)
class Aligned:
    """The block of attention as vLLM aligns it with states. ``state``: bytes that one takes, ``page``: that it gets."""

    block: int
    state: int
    page: int
    step: int


def align(model: Architecture, flags: KvFlags) -> Aligned | None:
    """The block size of a hybrid model (``platforms/interface.py``, _align_hybrid_block_size); None if it is none."""
    if not model.hybrid:
        return None
    block = flags.block_size or flags.default_block
    states = [sum(state_bytes(mixer, flags, model)) for mixer in _states(model)]
    tokens = [token_bytes(layer.mixer, flags, model) for layer in model.layers if isinstance(layer.mixer, (Gqa, Mla))]
    if not tokens:
        raise UnknownModel(f"{model.name} has states alone, and no attention")
    state, token = max(states), tokens[0]
    step = max(flags.kernel_block, block)
    if model.mla:
        step = max(step, 128)
    needed = step * -(-state // (step * token))
    needed = flags.kernel_block * -(-needed // flags.kernel_block)
    block = max(block, needed)
    return Aligned(block, state, block * token, step)


def _states(model: Architecture) -> Iterator[Linear | Mamba2]:
    for layer in model.layers:
        if isinstance(layer.mixer, (Linear, Mamba2)):
            yield layer.mixer


def layer_caches(model: Architecture, flags: KvFlags) -> list[tuple[Cache, ...]]:
    """The caches of every layer, the MTP layers' last."""
    aligned = align(model, flags)
    block = aligned.block if aligned else flags.block_size or flags.default_block
    layers = [*model.layers, *(model.mtp if flags.mtp else ())]
    return [tuple(_caches(layer, block, aligned, flags, model)) for layer in layers]


def _caches(layer: Layer, block: int, aligned: Aligned | None, flags: KvFlags, model: Architecture) -> Iterator[Cache]:
    mixer = layer.mixer
    if isinstance(mixer, Gqa):
        page = block * token_bytes(mixer, flags, model)
        if mixer.window is not None and not flags.unified:
            if flags.dcp > 1:
                raise UnknownModel("dcp with a sliding window is not known", "dcp: 1")
            yield Cache("window", block, page, window=mixer.window)
        else:
            yield Cache("full", block, page)
    elif isinstance(mixer, Mla):
        yield Cache("latent", block, block * token_bytes(mixer, flags, model))
        if index_bytes(mixer):
            yield Cache("index", block, block * index_bytes(mixer))
    elif mixer is not None:
        assert aligned is not None
        pages = (2 if flags.align else 1) + flags.drafts
        yield Cache("state", block, aligned.page, states=pages)


def told(model: Architecture, flags: KvFlags) -> Iterator[Line]:
    """The arithmetic of a token, of a state and of the block."""
    seen: set[object] = set()
    width = cache_width(flags, model)
    for layer in model.layers:
        mixer = layer.mixer
        if mixer is None or mixer in seen:
            continue
        seen.add(mixer)
        if isinstance(mixer, Gqa):
            heads = max(1, mixer.kv_heads // flags.tp)
            number = token_bytes(mixer, flags, model)
            formula = f"K and V x {heads} of {mixer.kv_heads} heads x {mixer.head_dim} x {width} B"
            name = f"sliding window of {mixer.window}" if mixer.window else "attention"
            yield Line(f"{name}, a token and layer", formula, size(number), number)
        elif isinstance(mixer, Mla):
            yield from _told_mla(mixer, flags, model, seen)
        else:
            yield from _told_state(mixer, flags, model)
    aligned = align(model, flags)
    if aligned:
        token = aligned.page // aligned.block
        formula = f"{aligned.step} x ceil({size(aligned.state)} / ({aligned.step} x {size(token)}))"
        if aligned.step * -(-aligned.state // (aligned.step * token)) < aligned.block:
            formula = f"block-size {aligned.block} is more than the state needs"
        source = "vLLM: a block of attention is no smaller than a state"
        yield Line("block", formula, f"{aligned.block:,} tokens", aligned.block, source)
        padding = (aligned.page - aligned.state) / aligned.state
        formula = f"{aligned.block:,} tokens x {size(token)}; a state is padded by {padding:.2%}"
        yield Line("page, a block and layer", formula, size(aligned.page), aligned.page)


def _told_mla(mixer: Mla, flags: KvFlags, model: Architecture, seen: set[object]) -> Iterator[Line]:
    number, width = token_bytes(mixer, flags, model), cache_width(flags, model)
    if ("latent", number) not in seen:
        seen.add(("latent", number))
        formula = f"({mixer.kv_rank} latent + {mixer.rope} RoPE) x {width} B"
        if number == _DS_MLA and width == 1:
            formula = "512 latent in FP8 + 16 of scales + 64 RoPE x 2 B"
        yield Line("latent, a token and layer", formula + ", on each rank", size(number), number)
    keys = index_bytes(mixer)
    if keys and ("index", keys) not in seen:
        seen.add(("index", keys))
        assert mixer.indexer is not None
        formula = f"{mixer.indexer.head_dim} in FP8 + scales, in the layers that build one"
        yield Line("indexer, a token and layer", formula, size(keys), keys)


def _told_state(mixer: Linear | Mamba2, flags: KvFlags, model: Architecture) -> Iterator[Line]:
    conv, state = state_bytes(mixer, flags, model)
    width = ssm_width(flags, model)
    if isinstance(mixer, Linear):
        formula = f"{mixer.v_heads} heads / TP {flags.tp} x {mixer.v_dim} x {mixer.k_dim} x {width} B"
    else:
        formula = f"{mixer.heads} heads / TP {flags.tp} x {mixer.head_dim} x {mixer.state} x {width} B"
    yield Line("recurrent state, a layer", formula, size(state), state)
    length = f"({mixer.kernel} - 1 + {flags.drafts} drafts)" if flags.drafts else f"({mixer.kernel} - 1)"
    values = conv // ((mixer.kernel - 1 + flags.drafts) * _state_width(flags.conv_dtype, model.width))
    formula = f"{values:,} channels x {length} x {_state_width(flags.conv_dtype, model.width)} B"
    yield Line("convolution, a layer", formula, size(conv), conv)
