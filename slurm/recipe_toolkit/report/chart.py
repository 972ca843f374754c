"""The picture of a run: throughput of a GPU against the speed that a user sees. SVG, no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.report import text
from recipe_toolkit.report.html import Markup, el, escape, join

_WIDTH, _HEIGHT = 960, 350
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 40, 24, 56
_LABEL_ROOM = 62.0


@dataclass(frozen=True)
class _Dot:
    label: str
    load: str
    user: float
    gpu: float
    ttft: str
    tpot: str


def chart(results: Mapping[str, Any]) -> Markup | None:
    """The valid points that have both figures; None where there are fewer than two."""
    dots = [dot for dot in map(_dot, results["points"]) if dot is not None]
    if len(dots) < 2:
        return None
    unit = text.unit_of_work(results)
    mark = text.mark(results)
    x_ticks, y_ticks = ticks(max(dot.user for dot in dots)), ticks(max(dot.gpu for dot in dots))
    x_top, y_top = x_ticks[-1], y_ticks[-1]

    def x(value: float) -> float:
        return _LEFT + value / x_top * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / y_top * (_HEIGHT - _TOP - _BOTTOM)

    ordered = sorted(dots, key=lambda dot: (dot.user, dot.gpu))
    line = " ".join(f"{x(dot.user):.1f},{y(dot.gpu):.1f}" for dot in ordered)
    title = f"Total tokens/s per {unit} against output tokens/s per user"
    described = "; ".join(
        f"{dot.load}: {text.number(dot.gpu)} per {unit} at {text.number(dot.user)} per user" for dot in ordered
    )
    return el(
        "svg",
        el("title", title),
        el("desc", described),
        join(_grid(x_ticks, y_ticks, x, y)),
        el("text", f"total tokens/s per {unit}", x=_LEFT, y=14, class_="axis"),
        el(
            "text",
            "output tokens/s per user (1000 / median TPOT in ms)",
            x=_WIDTH - _RIGHT,
            y=_HEIGHT - 10,
            class_="axis end",
        ),
        el("text", mark, x=_WIDTH - _RIGHT, y=14, class_="axis end") if mark is not None else None,
        el("polyline", points=line, class_="curve"),
        join(_marks(ordered, x, y, unit)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{title}. {described}",
        class_="chart",
    )


def ticks(top: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to the first that is not below ``top``, some ``wanted`` steps."""
    if not top > 0 or not math.isfinite(top):
        return [0.0, 1.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [index * step for index in range(math.ceil(top / step - 1e-9) + 1)]


def _dot(point: Mapping[str, Any]) -> _Dot | None:
    user, gpu = point["output_tps_per_user"]["from_median_tpot"], point["total_tps_per_gpu"]["working"]
    if not point["valid"] or user is None or gpu is None:
        return None
    means = [text.number((point[name] or {}).get("mean")) for name in ("ttft_ms", "tpot_ms")]
    return _Dot(point["id"], text.load(point), user, gpu, means[0], means[1])


def _grid(x_ticks: Sequence[float], y_ticks: Sequence[float], x: Any, y: Any) -> list[Markup]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value in y_ticks:
        parts.append(el("line", x1=_LEFT, x2=right, y1=f"{y(value):.1f}", y2=f"{y(value):.1f}", class_="grid"))
        parts.append(el("text", _tick(value), x=_LEFT - 10, y=f"{y(value) + 4:.1f}", class_="tick end"))
    for value in x_ticks:
        parts.append(el("line", x1=f"{x(value):.1f}", x2=f"{x(value):.1f}", y1=bottom, y2=bottom + 5, class_="grid"))
        parts.append(el("text", _tick(value), x=f"{x(value):.1f}", y=bottom + 20, class_="tick middle"))
    return parts


def _marks(dots: Sequence[_Dot], x: Any, y: Any, unit: str) -> list[Markup]:
    """Dots with labels; a label that would lie on one before it is left to the tooltip and the table."""
    taken: list[tuple[float, float]] = []
    parts = []
    for dot in dots:
        left, top = x(dot.user), y(dot.gpu)
        tip = (
            f"{dot.label} ({dot.load}): {text.number(dot.gpu)} total tokens/s per {unit}, "
            f"{text.number(dot.user)} tokens/s per user, mean TTFT {dot.ttft} ms, mean TPOT {dot.tpot} ms"
        )
        label = None
        if all(abs(left - other) > _LABEL_ROOM or abs(top - above) > 16 for other, above in taken):
            taken.append((left, top))
            # Points near the right edge are labelled on their left.
            near = left > _WIDTH - _RIGHT - _LABEL_ROOM
            place = left - 10 if near else left + 10
            label = el("text", dot.load, x=f"{place:.1f}", y=f"{top - 9:.1f}", class_="label end" if near else "label")
        parts.append(
            el("g", el("circle", el("title", tip), cx=f"{left:.1f}", cy=f"{top:.1f}", r=5, class_="dot"), label)
        )
    return parts


def _tick(value: float) -> str:
    return escape(f"{value:,.6g}")
