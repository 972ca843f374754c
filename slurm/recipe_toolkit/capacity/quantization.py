"""How many bytes a weight takes: ``quantization_config`` of config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from recipe_toolkit.capacity.refusal import UnknownModel


@dataclass(frozen=True)
class Scheme:
    """Bytes of a matrix: ``bits`` a weight, a scale of ``scale`` bytes for each block of ``block`` weights.

    ``block``: (rows, columns); 0 rows or columns: all of them. ``constant``: bytes beside, for each matrix.
    """

    name: str
    bits: int
    block: tuple[int, int] = (0, 0)
    scale: float = 0
    constant: int = 0

    def bytes(self, rows: int, columns: int) -> float:
        """What a matrix of ``rows`` outputs and ``columns`` inputs takes."""
        tall, wide = (size or whole for size, whole in zip(self.block, (rows, columns), strict=True))
        scales = -(-rows // tall) * -(-columns // wide) if self.scale else 0
        return rows * columns * self.bits / 8 + scales * self.scale + self.constant

    def told(self) -> str:
        """The scheme with its cost of a weight."""
        return self.name


PLAIN = {2: Scheme("16 bit", 16), 4: Scheme("32 bit", 32)}
# Each with two scales of a tensor (weight_scale_2, input_scale) in 32 bits; ModelOpt's NVFP4.
NVFP4 = Scheme("NVFP4", 4, (1, 16), 1, 8)
MXFP4 = Scheme("MXFP4", 4, (1, 32), 1)


@dataclass(frozen=True)
class Rule:
    """A scheme for the modules whose name one of ``targets`` matches; ``Linear`` means every one."""

    targets: tuple[str, ...]
    scheme: Scheme


@dataclass(frozen=True)
class Quantization:
    """``method`` as config.json names it. ``ignored``: patterns of modules that stay as they are."""

    method: str = "none"
    rules: tuple[Rule, ...] = ()
    ignored: tuple[str, ...] = ()
    experts_only: bool = False

    def scheme(self, module: str, width: int, *, expert: bool = False) -> Scheme:
        """What holds for a linear ``module`` (its full name) in a model of ``width`` bytes a value."""
        plain = PLAIN[width]
        if not self.rules or (self.experts_only and not expert) or _pattern(self.ignored).search(module):
            return plain
        return next((rule.scheme for rule in self.rules if _pattern(rule.targets).search(module)), plain)


@lru_cache(maxsize=64)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all patterns: a model has a thousand modules."""
    try:
        return re.compile("|".join(map(_expression, patterns)) or r"(?!)")
    except re.error as error:
        raise UnknownModel(f"a pattern of quantization_config is no regular expression: {error}") from None


def _expression(pattern: str) -> str:
    if pattern == "Linear":
        return "^"
    if pattern.startswith("re:"):
        return f"^(?:{pattern[3:]})"
    if "*" in pattern:
        return "^" + re.escape(pattern).replace(r"\*", ".*") + r"(?:\.|$)"
    return rf"(?:^|\.){re.escape(pattern)}(?:\.|$)"


def read_quantization(config: Mapping[str, Any]) -> Quantization:
    """``quantization_config`` of a config.json. Raises UnknownModel for a method or a scheme that is not known."""
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return Quantization()
    if not isinstance(found, Mapping):
        raise UnknownModel("quantization_config is no mapping")
    method = str(found.get("quant_method") or found.get("quant_algo") or "unnamed")
    reader = _READERS.get(method.lower().replace("_", "-"))
    if reader is None:
        raise UnknownModel(f"quantization {method} is not known", f"known: {', '.join(sorted(_READERS))}")
    return reader(found, method)


def _names(found: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    lists = [found[key] for key in keys if isinstance(found.get(key), Sequence)]
    return tuple(str(item) for names in lists for item in names)


def _fp8(found: Mapping[str, Any], method: str) -> Quantization:
    block = found.get("weight_block_size")
    if block is None:
        scheme = Scheme("FP8", 8, (0, 0), 4)
    elif isinstance(block, Sequence) and len(block) == 2:
        scheme = Scheme(f"FP8, blocks of {block[0]} x {block[1]}", 8, (int(block[0]), int(block[1])), 4)
    else:
        raise UnknownModel(f"weight_block_size {block!r} of quantization {method} is not known")
    ignored = (*_names(found, "modules_to_not_convert", "ignored_layers"), "lm_head", "mlp.gate")
    return Quantization(method, (Rule(("Linear",), scheme),), ignored)


def _modelopt(found: Mapping[str, Any], method: str) -> Quantization:
    inner = found.get("quantization", found)
    algorithm = str(inner.get("quant_algo", "")).upper()
    ignored = _names(inner, "ignore", "exclude_modules")
    if algorithm == "NVFP4":
        group = int(inner.get("group_size") or 16)
        return Quantization(method, (Rule(("Linear",), Scheme("NVFP4", 4, (1, group), 1, 8)),), ignored)
    if algorithm == "FP8":
        return Quantization(method, (Rule(("Linear",), Scheme("FP8", 8, (0, 0), 4, 4)),), ignored)
    raise UnknownModel(f"quant_algo {algorithm or 'unnamed'} of ModelOpt is not known", "known: FP8, NVFP4")


def _compressed(found: Mapping[str, Any], method: str) -> Quantization:
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnknownModel(f"quantization {method} has no config_groups")
    rules = [_rule(str(name), group, str(found.get("format", ""))) for name, group in groups.items()]
    # A rule that names modules goes before one for every linear layer.
    rules.sort(key=lambda rule: "Linear" in rule.targets)
    return Quantization(method, tuple(rules), _names(found, "ignore"))


def _rule(name: str, group: Any, form: str) -> Rule:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise UnknownModel(f"group {name} of compressed-tensors has no weights")
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    targets = _names(group, "targets")
    if (bits, kind) == (4, "float"):
        scheme = NVFP4 if weights.get("group_size") == 16 else MXFP4 if weights.get("group_size") == 32 else None
    elif bits in (4, 8) and kind in ("int", "float"):
        scheme = _integer(int(bits), str(kind), str(strategy), weights, form)
    else:
        scheme = None
    if scheme is None:
        what = f"{bits} bits of type {kind}, strategy {strategy}"
        raise UnknownModel(f"group {name} of compressed-tensors is not known: {what}")
    return Rule(targets, scheme)


def _integer(bits: int, kind: str, strategy: str, weights: Mapping[str, Any], form: str) -> Scheme | None:
    zeros = 0.0 if weights.get("symmetric", True) else bits / 8
    constant = 8 if "pack" in form else 0  # weight_shape: two numbers of 32 bits
    letter = "INT" if kind == "int" else "FP"
    if strategy == "group" and weights.get("group_size"):
        group = int(weights["group_size"])
        return Scheme(f"{letter}{bits}, groups of {group}", bits, (1, group), 2 + zeros, constant)
    if strategy == "channel":
        return Scheme(f"{letter}{bits} by channel", bits, (1, 0), 2 + zeros, constant)
    if strategy == "tensor":
        return Scheme(f"{letter}{bits}", bits, (0, 0), 4, constant)
    if strategy == "block" and isinstance(weights.get("block_structure"), Sequence):
        tall, wide = (int(item) for item in weights["block_structure"])
        return Scheme(f"{letter}{bits}, blocks of {tall} x {wide}", bits, (tall, wide), 4, constant)
    return None


def _grouped(found: Mapping[str, Any], method: str) -> Quantization:
    bits, group = found.get("bits", found.get("w_bit")), found.get("group_size", found.get("q_group_size"))
    if bits not in (4, 8) or not isinstance(group, int):
        raise UnknownModel(f"{bits} bits in groups of {group} of quantization {method} are not known")
    block = (1, group) if group > 0 else (1, 0)
    # A scale in 16 bits and a packed zero point for each group of inputs and each output.
    scheme = Scheme(f"INT{bits}, groups of {group}", int(bits), block, 2 + int(bits) / 8)
    return Quantization(method, (Rule(("Linear",), scheme),), (*_names(found, "modules_to_not_convert"), "lm_head"))


def _mxfp4(found: Mapping[str, Any], method: str) -> Quantization:
    return Quantization(method, (Rule(("Linear",), MXFP4),), _names(found, "modules_to_not_convert"), experts_only=True)


_READERS = {
    "fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "nvfp4": _modelopt,
    "compressed-tensors": _compressed,
    "awq": _grouped,
    "gptq": _grouped,
    "mxfp4": _mxfp4,
}
