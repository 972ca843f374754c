"""What is left for the KV cache: the share that vLLM takes of a GPU, less weights and what it cannot do without.

The terms beside the weights follow from no config. Each is a range: from what is counted to what has been measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.capacity.architecture import Architecture, Dense, Moe
from recipe_toolkit.capacity.gpus import Gpu
from recipe_toolkit.capacity.ledger import GIB, Line, size, span
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.capacity.settings import Settings
from recipe_toolkit.capacity.weights import Weights

# One GPU, Llama 8B on an H200 with vLLM 0.22: 0.62 GiB of CUDA graphs up to 512 tokens, over 32 layers of 4,096.
_GRAPHS = 0.62 * GIB / (512 * 32 * 4096)
_MOST_GRAPHS = 10  # vLLM's estimate of the same can be that much higher (Qwen3.8 on GB300: 33 GiB, 8.6 used)
_MOST_SEEN = 33.1 * GIB  # the highest estimate in a log
_CONTEXT = (0.4 * GIB, 1.2 * GIB)  # CUDA's context and libraries
_COMMUNICATION = (0.5 * GIB, 1.5 * GIB)  # NCCL's and all-to-all's buffers; 2.4 GiB with the context in EP16
_MOST_ACTIVATIONS = 2  # buffers that live at once


@dataclass(frozen=True)
class Term:
    """Bytes beside the weights, as a range. ``source``: where it is from."""

    name: str
    low: float
    high: float
    formula: str
    source: str

    def line(self) -> Line:
        """For the ledger."""
        return Line(self.name, self.formula, span(self.low, self.high), self.low, self.source, high=self.high)


@dataclass(frozen=True)
class Budget:
    """``low`` and ``high``: bytes for KV on the rank of each pipeline stage, both ends of the range."""

    taken: float
    terms: tuple[Term, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    lines: tuple[Line, ...]


def measured_terms(measured: Mapping[str, Any], batched: int) -> tuple[Term, ...]:
    """Terms that a log has given, in bytes, each a number or [low, high]: ``other`` (not torch's), ``graphs``, and
    ``activations``, or ``activations_per_token`` of the ``batched`` ones.
    """
    source, terms = str(measured.get("source", "a log")), []
    for key, name in (("other", "context, NCCL"), ("activations", "activations"), ("graphs", "CUDA graphs")):
        each = measured.get(f"{key}_per_token")
        value = each * batched if each is not None else measured.get(key)
        if value is not None:
            low, high = value if isinstance(value, (list, tuple)) else (value, value)
            formula = f"measured: {batched:,} tokens x {each / 1000:,.0f} KB" if each is not None else "measured"
            terms.append(Term(name, float(low), float(high), formula, source))
    return tuple(terms)


def assumed_terms(model: Architecture, settings: Settings) -> tuple[Term, ...]:
    """The terms where nothing was measured."""
    alone = settings.spread.tp * settings.spread.pp * settings.spread.dp == 1
    low, high = _CONTEXT if alone else (one + two for one, two in zip(_CONTEXT, _COMMUNICATION, strict=True))
    what = "CUDA's context" if alone else "CUDA's context and buffers of NCCL"
    yielded = [Term("context, NCCL", low, high, what, "assumed; measured: 2.4 GiB in EP16 on GB300")]
    low, high = _activations(model, settings)
    formula = f"{settings.batched:,} tokens at the model's width .. through the widest layer, and logits"
    yielded.append(Term("activations", low, _MOST_ACTIVATIONS * high, formula, "assumed"))
    if settings.graphs:
        graphs = _GRAPHS * settings.capture * len(model.layers) * model.hidden
        formula = f"up to {settings.capture:,} tokens x {len(model.layers)} layers x {model.hidden:,} wide"
        most = min(_MOST_GRAPHS * graphs, max(_MOST_SEEN, 2 * graphs))
        source = f"assumed: 1 to {_MOST_GRAPHS} times what was measured on an H200"
        yielded.append(Term("CUDA graphs", graphs, most, formula, source))
    return tuple(yielded)


def _activations(model: Architecture, settings: Settings) -> tuple[float, float]:
    """(what no kernel can do without, all that the widest layer makes) of one batch, in bytes."""
    widest = 0.0
    for layer in model.layers:
        mlp = layer.mlp
        if isinstance(mlp, Dense):
            widest = max(widest, mlp.projections * mlp.inner / settings.spread.tp)
        elif isinstance(mlp, Moe):
            routed = mlp.top_k * mlp.inner * mlp.projections + mlp.top_k * model.hidden
            widest = max(widest, routed / settings.spread.tp)
    least = settings.batched * 2 * model.hidden * model.width  # the residual, and what a layer reads
    logits = settings.sequences * (1 + settings.kv.drafts) * model.vocab * 6 / settings.spread.tp
    return least, settings.batched * (widest + 4 * model.hidden) * model.width + logits


def budget(gpu: Gpu | None, settings: Settings, weights: Weights, terms: tuple[Term, ...]) -> Budget:
    """The bytes that are left for KV, by the flags of a role. ``gpu``: None on device cpu.

    Raises UnknownModel where nothing says how much memory there is.
    """
    if settings.memory is not None:
        held, total = float(settings.memory), gpu.total if gpu else 0
        formula = "kv-cache-memory-bytes: gpu-memory-utilization does not bear on it"
        fixed = tuple(held for _ in weights.stages)
        return Budget(total, terms, fixed, fixed, (Line("left for KV", formula, size(held), held),))
    if gpu is None:
        raise UnknownModel("the memory of a CPU is not known", "kv-cache-memory-bytes says what is for the KV cache")
    taken = gpu.total * settings.utilization
    lines = [_taken_line(gpu, settings, taken), Line("weights", "from above", size(weights.local), weights.local)]
    lines += [term.line() for term in terms]
    least, most = (sum(getattr(term, end) for term in terms) for end in ("low", "high"))
    low = tuple(taken - stage - most for stage in weights.stages)
    high = tuple(taken - stage - least for stage in weights.stages)
    text = span(min(low), min(high)) if min(low) > 0 else f"{size(min(low))} .. {size(min(high))}"
    lines.append(Line("left for KV", "the first less all others", text, min(low), high=min(high)))
    return Budget(taken, terms, low, high, tuple(lines))


def _taken_line(gpu: Gpu, settings: Settings, taken: float) -> Line:
    formula = f"{gpu.name}: {size(gpu.total)} x gpu-memory-utilization {settings.utilization:g}"
    return Line("vLLM takes", formula, size(taken), taken, gpu.source)


def over_reserve(gpu: Gpu, settings: Settings) -> Iterator[str]:
    """What is to be said where the share leaves the system less than it keeps."""
    if gpu.reserved and gpu.total * (1 - settings.utilization) < gpu.reserved:
        most = 1 - gpu.reserved / gpu.total
        yield (
            f"gpu-memory-utilization {settings.utilization:g} leaves {size(gpu.total * (1 - settings.utilization))} "
            f"of {gpu.name}, whose driver keeps about {size(gpu.reserved)}: {most:.2f} or less"
        )
