"""A model as far as its memory goes: what each layer holds and keeps of a token."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from recipe_toolkit.capacity.quantization import Quantization

_MAY_BE_ZERO = frozenset({"index", "shared_inner", "rope", "groups", "norms"})
_MOST = 1 << 40  # of any size


@dataclass(frozen=True)
class Gqa:
    """Grouped, multi-query or multi-head attention.

    ``window``: tokens of a sliding window. ``gated``: the query projection makes an output gate too.
    ``qk_norm``: RMSNorm of head_dim on queries and keys. ``sinks``: a learned scalar a head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    gated: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False


@dataclass(frozen=True)
class Indexer:
    """DeepSeek's lightning indexer. ``built``: vLLM builds it in this layer, or the layer shares another's."""

    heads: int
    head_dim: int
    built: bool = True


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: one latent of ``kv_rank + rope`` values a token, whatever the heads."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    v: int
    indexer: Indexer | None = None


@dataclass(frozen=True)
class Linear:
    """Gated delta net (GDN): a state for each request, of the same size at any length.

    ``kda``: Kimi's delta attention, whose output gate has a rank of ``v_dim`` where ``low_rank``.
    """

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    kernel: int
    kda: bool = False
    low_rank: bool = False


@dataclass(frozen=True)
class Mamba2:
    """A Mamba 2 mixer."""

    inner: int
    groups: int
    heads: int
    head_dim: int
    state: int
    kernel: int
    bias: bool = False
    conv_bias: bool = True


Mixer = Gqa | Mla | Linear | Mamba2


@dataclass(frozen=True)
class Dense:
    """``projections``: 3 with a gate, 2 without."""

    inner: int
    projections: int = 3
    bias: bool = False


@dataclass(frozen=True)
class Moe:
    """Routed experts, of which each token takes ``top_k``; ``shared_inner``: width of what every token takes.

    ``latent``: width at which the experts work, where it is not the model's.
    """

    experts: int
    top_k: int
    inner: int
    shared_inner: int = 0
    shared_gate: bool = False
    projections: int = 3
    bias: bool = False
    router_bias: bool = False


@dataclass(frozen=True)
class Layer:
    """``index``: its number in names of tensors. Either part may be missing. ``norms``: RMSNorms of the hidden size."""

    index: int
    mixer: Mixer | None
    mlp: Dense | Moe | None
    norms: int = 2


@dataclass(frozen=True)
class Architecture:
    """``mtp``: layers of multi-token prediction, loaded with ``speculative-config`` alone.

    ``width``: bytes of a value of the model's dtype. ``ssm_dtype``: what config.json says of a state's dtype.
    """

    name: str
    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    mtp: tuple[Layer, ...]
    width: int
    longest: int
    quantization: Quantization
    prefix: str = "model"
    ssm_dtype: str | None = None
    unit_norms: bool = True

    def kinds(self) -> set[type]:
        """The kinds of attention that it has."""
        return {type(layer.mixer) for layer in self.layers if layer.mixer is not None}

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a state in place of keys and values."""
        return bool(self.kinds() & {Linear, Mamba2})

    @property
    def mla(self) -> bool:
        """Whether its attention is latent."""
        return Mla in self.kinds()

    @property
    def moe(self) -> Moe | None:
        """The first of its mixtures of experts."""
        return next((layer.mlp for layer in self.layers if isinstance(layer.mlp, Moe)), None)


def indivisible(model: Architecture, tp: int) -> str | None:
    """Why vLLM cannot spread the model's heads over ``tp`` ranks, or None."""
    for layer in (*model.layers, *model.mtp):
        mixer = layer.mixer
        if mixer is None:
            continue
        heads = mixer.k_heads if isinstance(mixer, Linear) else mixer.heads
        if heads % tp:
            return f"{heads} heads do not divide by tp {tp}"
        if isinstance(mixer, Gqa) and max(mixer.kv_heads, tp) % min(mixer.kv_heads, tp):
            return f"{mixer.kv_heads} KV heads and tp {tp} do not divide one another"
        if isinstance(mixer, Mamba2) and mixer.groups % tp and mixer.groups > 1:
            return f"{mixer.groups} groups do not divide by tp {tp}"
    return None


def nonsense(part: Any) -> str | None:
    """The first size of an architecture, or of a part of it, that no model can have; None where all can be."""
    for item in fields(part):
        value = getattr(part, item.name)
        for inner in value if isinstance(value, tuple) else (value,):
            found = nonsense(inner) if is_dataclass(inner) and not isinstance(inner, Quantization) else None
            if found:
                return found
        least = 0 if item.name in _MAY_BE_ZERO else 1
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= _MOST:
            return f"{item.name} is {value}"
    return None
