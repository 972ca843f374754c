"""What an engine's log says of its memory, and the same beside what is predicted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from recipe_toolkit.capacity.assess import Capacity
from recipe_toolkit.capacity.budget import Term
from recipe_toolkit.capacity.ledger import GIB, size, span

_GIB = r"([0-9.]+) GiB"
# vLLM's lines, of 0.20 to 0.33 (gpu_worker.py, gpu_model_runner.py, kv_cache_utils.py), and what of them is bytes.
_LINES = {
    "weights": rf"Model loading took {_GIB}",
    "kv": rf"Available KV cache memory: {_GIB}",
    "tokens": r"(?:GPU|CPU|[A-Z]+) KV cache size: ([0-9,]+) tokens",
    "concurrency": r"Maximum concurrency for [0-9,]+ tokens per request: ([0-9.]+)x",
    "length": r"Maximum concurrency for ([0-9,]+) tokens per request",
    "graphs": rf"Graph capturing finished in [0-9.]+ secs, took {_GIB}",
    "estimate": rf"(?:Estimated CUDA graph memory: |\(actual\), ){_GIB}",
    "total": r"Free memory on device (?:\S+ )?\([0-9.]+/([0-9.]+) GiB\)",
    "block": r"Setting attention block size to ([0-9]+) tokens",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in _LINES.items()}
_BYTES = frozenset({"weights", "kv", "graphs", "estimate", "total"})
_FULLEST = frozenset({"weights", "graphs", "estimate"})  # of several ranks the largest counts, else the smallest


@dataclass(frozen=True)
class EngineLog:
    """What was found, None where nothing was; sizes in bytes. ``estimate``: of CUDA graphs, before they are made."""

    weights: float | None = None
    kv: float | None = None
    tokens: float | None = None
    concurrency: float | None = None
    length: float | None = None
    graphs: float | None = None
    estimate: float | None = None
    total: float | None = None
    block: float | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) is not None for item in fields(self))


def read_log(lines: Iterable[str]) -> EngineLog:
    """The memory of an engine as its log tells it; of several ranks in one log what bounds them all."""
    found = EngineLog()
    for line in lines:
        if "GiB" in line or "tokens" in line:
            found = merged([found, _line(line)])
    return found


def _line(line: str) -> EngineLog:
    values: dict[str, float] = {}
    for name, pattern in _PATTERNS.items():
        match = pattern.search(line)
        if match:
            number = float(match[1].replace(",", "").rstrip("."))
            values[name] = number * GIB if name in _BYTES else number
    return EngineLog(**values)


def merged(logs: Iterable[EngineLog]) -> EngineLog:
    """Several ranks as one: the fullest weights, the smallest cache."""
    result = EngineLog()
    for log in logs:
        for item in fields(EngineLog):
            one, other = getattr(result, item.name), getattr(log, item.name)
            if other is not None:
                chosen = other if one is None else (max if item.name in _FULLEST else min)(one, other)
                result = replace(result, **{item.name: chosen})
    return result


def calibrated(found: Capacity, log: EngineLog, source: str) -> tuple[Term, ...] | None:
    """The terms beside the weights as the log has them; None where it does not say what was left for KV.

    What the weights have more than is counted is in them, so that the sum is the log's.
    """
    if log.kv is None or found.gpu is None or found.settings.memory is not None:
        return None
    total = log.total if log.total is not None else found.gpu.total
    rest = total * found.settings.utilization - found.weights.local - log.kv
    graphs = log.estimate if log.estimate is not None else 0.0
    shift = (total - found.gpu.total) * found.settings.utilization
    other = Term("all else", rest - graphs - shift, rest - graphs - shift, "what the log leaves", source)
    return (other, Term("CUDA graphs", graphs, graphs, "vLLM's estimate", source)) if graphs else (other,)


def compared(found: Capacity, log: EngineLog) -> Iterator[tuple[str, str, str]]:
    """(what, predicted, logged) of a rank, for what the log has."""
    left, length = found.budget, found.settings.longest
    if log.weights is not None:
        yield "weights a GPU", size(found.weights.local), size(log.weights)
    if log.kv is not None:
        yield "left for KV", span(max(0.0, min(left.low)), max(0.0, min(left.high))), size(log.kv)
    if log.estimate is not None:
        yield "CUDA graphs, vLLM's estimate", _term(found, "CUDA graphs"), size(log.estimate)
    if log.graphs is not None:
        yield "CUDA graphs, taken", _term(found, "CUDA graphs"), size(log.graphs)
    if log.block is not None:
        block = max(group.cache.block for group in found.pool.groups)
        yield "tokens of a block", f"{block:,}", f"{log.block:,.0f}"
    if log.tokens is not None:
        low, high = found.tokens
        yield "tokens of KV", f"{low:,}" if low == high else f"{low:,}-{high:,}", f"{log.tokens:,.0f}"
    if log.concurrency is not None and log.length == length:
        low_, high_ = (blocks / found.pool.request_blocks(length) for blocks in found.blocks)
        told = f"{low_:.2f}" if found.blocks[0] == found.blocks[1] else f"{low_:.2f}-{high_:.2f}"
        yield f"requests of {length:,} tokens", told, f"{log.concurrency:.2f}"


def _term(found: Capacity, name: str) -> str:
    term = next((item for item in found.budget.terms if item.name == name), None)
    return span(term.low, term.high) if term else "none"
