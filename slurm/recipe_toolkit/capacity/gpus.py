"""Memory of a GPU as torch reports it on the machine: less than the data sheet says."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_toolkit.capacity.ledger import GIB
from recipe_toolkit.capacity.refusal import UnknownModel


@dataclass(frozen=True)
class Gpu:
    """``total``: bytes that gpu-memory-utilization is a share of. ``capability``: major compute capability.

    ``reserved``: bytes of it that the driver and the system keep, where memory is one with the CPU's.
    """

    name: str
    total: int
    capability: int
    source: str
    reserved: int = 0


_MEASURED = "total capacity in torch's messages"
_GPUS = (
    ("A100", 79.25, 8, _MEASURED, 0),
    ("H100", 79.18, 9, _MEASURED, 0),
    ("H200", 139.80, 9, "a vLLM log", 0),
    ("B200", 178.35, 10, _MEASURED, 0),
    ("GB200", 184.31, 10, _MEASURED, 0),
    ("B300", 267.69, 10, _MEASURED, 0),
    ("GB300", 276.62, 10, "a vLLM log", 0),
    ("GB10", 121.7, 12, "DGX Spark, shared with the CPU; the driver keeps about 12 of it", 12),
)
KNOWN = tuple(name for name, *_ in _GPUS)


def gpu_of(name: str, memory_gib: float | None = None) -> Gpu:
    """The GPU of a recipe; ``memory_gib`` stands in for what is not known, or is known better.

    Raises UnknownModel where the memory of ``name`` is not known.
    """
    for known, total, capability, source, reserved in _GPUS:
        if known.lower() == name.lower():
            if memory_gib is not None:
                total, source = memory_gib, "--gpu-memory"
            return Gpu(known, round(total * GIB), capability, source, round(reserved * GIB))
    if memory_gib is not None:
        return Gpu(name, round(memory_gib * GIB), 0, "--gpu-memory")
    raise UnknownModel(
        f"the memory of the GPU {name} is not known", f"--gpu-memory GIB says it; known: {', '.join(KNOWN)}"
    )
