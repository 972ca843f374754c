"""Student's t distribution, which the standard library lacks."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


def tail(t: float, dof: int) -> float:
    """The chance of more than ``t`` under ``dof`` degrees of freedom (at least 1)."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = 0.5 * _incomplete_beta(dof / 2, 0.5, dof / (dof + t * t))
    return half if t >= 0 else 1.0 - half


@lru_cache(maxsize=1024)
def quantile(chance: float, dof: int) -> float:
    """The ``t`` that is exceeded with this chance (below a half)."""
    low, high = 0.0, 1.0
    while tail(high, dof) > chance:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, dof) > chance else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised, by its continued fraction (Press et al., Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1.0 - front * _fraction(b, a, 1 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 / _away(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away(1 + term * d)
            c = _away(1 + term / c)
            found *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return found


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
