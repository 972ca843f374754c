"""Weights of one GPU: by class of module, scheme, and how vLLM spreads them over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from recipe_toolkit.capacity.architecture import Architecture, Dense, Gqa, Layer, Linear, Mamba2, Mla, Moe
from recipe_toolkit.capacity.ledger import Line, size
from recipe_toolkit.capacity.quantization import PLAIN, Scheme

_PAD = 64  # vLLM rounds the vocabulary up to it (vocab_parallel_embedding.py)


@dataclass(frozen=True)
class Spread:
    """The ranks that share the weights of one instance.

    ``replicate_shared``: each rank of a TP group holds the shared experts whole (vLLM's sequence-parallel MoE).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    replicate_shared: bool = False

    @property
    def experts(self) -> int:
        """Ranks that share the experts: whole ones with EP, slices of each without it; DP ranks too, either way."""
        return self.tp * self.dp


@dataclass(frozen=True)
class Piece:
    """A matrix, or several of one shape. ``whole`` and ``local``: bytes in the model and on one rank."""

    group: str
    scheme: str
    share: str
    whole: float
    local: float
    count: int = 1


@dataclass(frozen=True)
class Weights:
    """``local``: bytes of the fullest pipeline stage's rank, ``whole``: of the model. ``stages``: local of each."""

    local: float
    whole: float
    stages: tuple[float, ...]
    lines: tuple[Line, ...]


@lru_cache(maxsize=128)
def weigh(model: Architecture, spread: Spread, *, mtp: bool) -> Weights:
    """The weights of one rank. ``mtp``: with the layers of multi-token prediction."""
    stages = [list(_stage(model, spread, stage, mtp=mtp)) for stage in range(spread.pp)]
    local = [sum(piece.local for piece in pieces) for pieces in stages]
    fullest = max(range(spread.pp), key=local.__getitem__)
    whole = sum(piece.whole for pieces in stages for piece in pieces)
    return Weights(local[fullest], whole, tuple(local), tuple(_lines(stages[fullest], spread)))


def stage_layers(count: int, pp: int, stage: int) -> range:
    """The layers of a pipeline stage, as vLLM's get_pp_indices deals them: the last stage takes no extra one."""
    sizes = [count // pp] * pp
    for extra in range(count % pp):
        sizes[-(extra + 2)] += 1
    first = sum(sizes[:stage])
    return range(first, first + sizes[stage])


def _stage(model: Architecture, spread: Spread, stage: int, *, mtp: bool) -> Iterator[Piece]:
    make = _Maker(model, spread)
    for at in stage_layers(len(model.layers), spread.pp, stage):
        yield from make.layer(model.layers[at], f"{model.prefix}.layers.{model.layers[at].index}")
    first, last = stage == 0, stage == spread.pp - 1
    rows = -(-model.vocab // _PAD) * _PAD
    if first or (last and model.tied):
        yield make.vocabulary("embeddings", rows)
    if last:
        if not model.tied:
            yield make.vocabulary("output head", rows, make.scheme("lm_head"))
        yield make.small("norms and biases", model.hidden)
        if mtp:
            yield from make.drafts()


class _Maker:
    """Pieces of one model for one spread."""

    def __init__(self, model: Architecture, spread: Spread) -> None:
        self.model, self.spread = model, spread

    def scheme(self, name: str, *, expert: bool = False) -> Scheme:
        return self.model.quantization.scheme(name, self.model.width, expert=expert)

    def matrix(self, group: str, name: str, rows: int, columns: int, share: str, scheme: Scheme | None = None) -> Piece:
        """``share``: ``tp``, ``kv:HEADS`` (as tp, but a rank keeps a whole head) or ``each`` (replicated)."""
        chosen = scheme or self.scheme(name)
        whole = chosen.bytes(rows, columns)
        ranks: float = 1
        if share == "tp":
            ranks = self.spread.tp
        elif share.startswith("kv:"):
            ranks = min(self.spread.tp, int(share[3:]))
        return Piece(group, chosen.name, "each rank" if ranks == 1 else f"/ {ranks:g}", whole, whole / ranks)

    def vocabulary(self, group: str, rows: int, scheme: Scheme | None = None) -> Piece:
        return self.matrix(group, "", rows, self.model.hidden, "tp", scheme or PLAIN[self.model.width])

    def small(self, group: str, values: int, width: int | None = None) -> Piece:
        taken = values * (width or self.model.width)
        return Piece(group, f"{8 * (width or self.model.width)} bit", "each rank", taken, taken)

    def layer(self, layer: Layer, name: str, draft: str = "") -> Iterator[Piece]:
        mixer = layer.mixer
        if isinstance(mixer, Gqa):
            yield from self.gqa(mixer, f"{name}.self_attn", draft)
        elif isinstance(mixer, Mla):
            yield from self.mla(mixer, f"{name}.self_attn", draft)
        elif isinstance(mixer, Linear) and mixer.kda:
            yield from self.kda(mixer, f"{name}.self_attn")
        elif isinstance(mixer, Linear):
            yield from self.linear(mixer, f"{name}.linear_attn", draft)
        elif isinstance(mixer, Mamba2):
            yield from self.mamba(mixer, f"{name}.mixer")
        if isinstance(layer.mlp, Dense):
            yield from self.dense(layer.mlp, f"{name}.mlp", draft)
        elif isinstance(layer.mlp, Moe):
            yield from self.moe(layer.mlp, f"{name}.mlp", draft)
        yield self.small(f"{draft}norms and biases", layer.norms * self.model.hidden)

    def gqa(self, mixer: Gqa, name: str, draft: str) -> Iterator[Piece]:
        group, hidden = f"{draft}attention", self.model.hidden
        width, kv = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
        yield self.matrix(group, f"{name}.q_proj", width * (2 if mixer.gated else 1), hidden, "tp")
        yield self.matrix(group, f"{name}.k_proj", kv, hidden, f"kv:{mixer.kv_heads}")
        yield self.matrix(group, f"{name}.v_proj", kv, hidden, f"kv:{mixer.kv_heads}")
        yield self.matrix(group, f"{name}.o_proj", hidden, width, "tp")
        values = (width + 2 * kv) * mixer.qkv_bias + hidden * mixer.o_bias
        values += 2 * mixer.head_dim * mixer.qk_norm + mixer.heads * mixer.sinks
        if values:
            yield self.small(f"{draft}norms and biases", values)

    def mla(self, mixer: Mla, name: str, draft: str) -> Iterator[Piece]:
        group, hidden = f"{draft}attention", self.model.hidden
        width, latent = mixer.heads * (mixer.nope + mixer.rope), mixer.kv_rank + mixer.rope
        if mixer.q_rank is None:
            yield self.matrix(group, f"{name}.q_proj", width, hidden, "tp")
        else:
            yield self.matrix(group, f"{name}.q_a_proj", mixer.q_rank, hidden, "each")
            yield self.matrix(group, f"{name}.q_b_proj", width, mixer.q_rank, "tp")
        yield self.matrix(group, f"{name}.kv_a_proj_with_mqa", latent, hidden, "each")
        expanded = mixer.heads * (mixer.nope + mixer.v)
        yield self.matrix(group, f"{name}.kv_b_proj", expanded, mixer.kv_rank, "tp")
        yield self.matrix(group, f"{name}.o_proj", hidden, mixer.heads * mixer.v, "tp")
        # vLLM keeps the halves of kv_b_proj once more, unquantized, for decoding (mla_attention.py).
        copied = expanded * mixer.kv_rank * self.model.width
        yield Piece(f"{draft}absorbed kv_b_proj", "16 bit copy", f"/ {self.spread.tp}", 0, copied / self.spread.tp)
        yield self.small(f"{draft}norms and biases", (mixer.q_rank or 0) + mixer.kv_rank)
        indexer = mixer.indexer
        if indexer is not None and indexer.built:
            rank = mixer.q_rank or hidden
            yield self.matrix(f"{draft}indexer", f"{name}.indexer.wq_b", indexer.heads * indexer.head_dim, rank, "each")
            plain = PLAIN[self.model.width]  # wk and weights_proj are one matrix there, unquantized
            rows = indexer.head_dim + indexer.heads
            yield self.matrix(f"{draft}indexer", f"{name}.indexer.wk", rows, hidden, "each", plain)
            yield self.small(f"{draft}norms and biases", 2 * indexer.head_dim, 4)

    def linear(self, mixer: Linear, name: str, draft: str) -> Iterator[Piece]:
        group, hidden = f"{draft}linear attention", self.model.hidden
        keys, values = mixer.k_heads * mixer.k_dim, mixer.v_heads * mixer.v_dim
        yield self.matrix(group, f"{name}.in_proj_qkv", 2 * keys + values, hidden, "tp")
        yield self.matrix(group, f"{name}.in_proj_z", values, hidden, "tp")
        yield self.matrix(group, f"{name}.in_proj_b", mixer.v_heads, hidden, "tp")
        yield self.matrix(group, f"{name}.in_proj_a", mixer.v_heads, hidden, "tp")
        conv = (2 * keys + values) * mixer.kernel
        yield self.matrix(group, f"{name}.conv1d", conv, 1, "tp", PLAIN[self.model.width])
        yield self.matrix(group, f"{name}.out_proj", hidden, values, "tp")
        yield self.small(f"{draft}norms and biases", 2 * mixer.v_heads + mixer.v_dim)

    def kda(self, mixer: Linear, name: str) -> Iterator[Piece]:
        group, hidden, inner = "linear attention", self.model.hidden, mixer.v_heads * mixer.v_dim
        for part in ("q_proj", "k_proj", "v_proj"):
            yield self.matrix(group, f"{name}.{part}", inner, hidden, "tp")
        yield self.matrix(group, f"{name}.b_proj", mixer.v_heads, hidden, "tp")
        for gate in ("f", "g") if mixer.low_rank else ("f",):
            yield self.matrix(group, f"{name}.{gate}_a_proj", mixer.v_dim, hidden, "each")
            yield self.matrix(group, f"{name}.{gate}_b_proj", inner, mixer.v_dim, "tp")
        if not mixer.low_rank:
            yield self.matrix(group, f"{name}.g_proj", inner, hidden, "tp")
        yield self.matrix(group, f"{name}.conv1d", 3 * inner, mixer.kernel, "tp", PLAIN[4])
        yield self.matrix(group, f"{name}.o_proj", hidden, inner, "tp")
        yield self.small("norms and biases", mixer.v_heads + inner, 4)
        yield self.small("norms and biases", mixer.v_dim)

    def mamba(self, mixer: Mamba2, name: str) -> Iterator[Piece]:
        group, hidden, plain = "state-space mixers", self.model.hidden, PLAIN[self.model.width]
        conv = mixer.inner + 2 * mixer.groups * mixer.state
        yield self.matrix(group, f"{name}.in_proj", mixer.inner + conv + mixer.heads, hidden, "tp")
        yield self.matrix(group, f"{name}.conv1d", conv, mixer.kernel + mixer.conv_bias, "tp", plain)
        yield self.matrix(group, f"{name}.out_proj", hidden, mixer.inner, "tp")
        yield self.small("norms and biases", 3 * mixer.heads + mixer.inner)

    def dense(self, mlp: Dense, name: str, draft: str) -> Iterator[Piece]:
        yield from self.mlp(f"{draft}dense MLP", name, mlp.inner, mlp.projections, "tp")
        if mlp.bias:
            yield self.small(f"{draft}norms and biases", (mlp.projections - 1) * mlp.inner + self.model.hidden)

    def mlp(self, group: str, name: str, inner: int, projections: int, share: str) -> Iterator[Piece]:
        for part in ("gate_proj", "up_proj")[-(projections - 1) :]:
            yield self.matrix(group, f"{name}.{part}", inner, self.model.hidden, share)
        yield self.matrix(group, f"{name}.down_proj", self.model.hidden, inner, share)

    def moe(self, moe: Moe, name: str, draft: str) -> Iterator[Piece]:
        hidden, ranks = self.model.hidden, self.spread.experts
        scheme = self.scheme(f"{name}.experts.0.gate_proj", expert=True)
        one = (moe.projections - 1) * scheme.bytes(moe.inner, hidden) + scheme.bytes(hidden, moe.inner)
        if moe.bias:
            one += ((moe.projections - 1) * moe.inner + hidden) * self.model.width
        # Whole experts: a rank has the rounded-up share of them.
        local = one * (-(-moe.experts // ranks)) if moe.experts >= ranks else one * moe.experts / ranks
        yield Piece(f"{draft}experts", scheme.name, f"/ {ranks}", one * moe.experts, local)
        router = self.matrix(f"{draft}router", f"{name}.gate", moe.experts, hidden, "each", PLAIN[self.model.width])
        yield router
        if moe.router_bias:
            yield self.small(f"{draft}norms and biases", moe.experts, 4)
        if moe.shared_inner:
            share = "each" if self.spread.replicate_shared else "tp"
            part = "shared_expert" if moe.shared_gate else "shared_experts"
            group = f"{draft}shared experts"
            yield from self.mlp(group, f"{name}.{part}", moe.shared_inner, moe.projections, share)
            if moe.shared_gate:
                yield self.small(f"{draft}norms and biases", hidden)

    def drafts(self) -> Iterator[Piece]:
        """The MTP layers; embeddings and output head are the model's own."""
        hidden, latent = self.model.hidden, self.model.mla
        for layer in self.model.mtp:
            # DeepSeek's are further layers of the model, Qwen's stand apart.
            name = f"{self.model.prefix if latent else 'mtp'}.layers.{layer.index}"
            yield from self.layer(layer, name, "MTP ")
            joined = f"{name}.eh_proj" if latent else "mtp.fc"
            plain = PLAIN[self.model.width] if latent else None  # a plain torch Linear there
            yield self.matrix("MTP projection", joined, hidden, 2 * hidden, "each" if latent else "tp", plain)
            yield self.small("MTP norms and biases", 3 * hidden)


def _lines(pieces: list[Piece], spread: Spread) -> Iterator[Line]:
    """A line for each class of modules, scheme and share."""
    sums: dict[tuple[str, str, str], tuple[float, float]] = {}
    for piece in pieces:
        key = (piece.group, piece.scheme, piece.share)
        whole, local = sums.get(key, (0.0, 0.0))
        sums[key] = (whole + piece.whole, local + piece.local)
    where = f" of one of {spread.pp} stages" if spread.pp > 1 else ""
    for (group, scheme, share), (whole, local) in sums.items():
        held = f"{size(whole)} {share}" if whole else share
        yield Line(group, f"{held}{where}, {scheme}", size(local), local)
