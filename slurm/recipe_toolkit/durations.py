"""Durations (``1h30m``) and Slurm's time limits (``D-HH:MM:SS``), in seconds."""

from __future__ import annotations

import math
import re

_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?")
_TIME = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")
_DAY = 86400
_LONGEST = 366 * _DAY
_MAX_LENGTH = 40

DURATION_FORMS = "seconds, or such as 45s, 30m, 1h30m"
TIME_FORMS = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"


def parse_duration(value: str | int | float) -> float:
    """Seconds of ``90``, ``"30m"``, ``"1h30m"``. Raises ValueError: no duration, zero, or over a year."""
    if isinstance(value, (int, float)):
        seconds = float(value)
    else:
        match = _DURATION.fullmatch(value) if len(value) <= _MAX_LENGTH else None
        if not value or match is None:
            raise ValueError(f"{value[:_MAX_LENGTH]!r} is not a duration ({DURATION_FORMS})")
        days, hours, minutes, rest = (float(part or 0) for part in match.groups())
        seconds = days * _DAY + hours * 3600 + minutes * 60 + rest
    return _bounded(seconds, value)


def parse_time_limit(text: str) -> int:
    """Seconds of a time limit as sbatch takes it, where a lone number is minutes.

    Raises ValueError: not such a limit, zero, or over a year. See sbatch(1), ``--time``.
    """
    match = _TIME.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError(f"{text[:_MAX_LENGTH]!r} is not a time limit ({TIME_FORMS})")
    numbers = [int(part) for part in match.groups()[1:] if part is not None]
    units = [3600, 60, 1] if match[1] or len(numbers) == 3 else [60, 1]
    if any(number > 59 for number in numbers[1:]):
        raise ValueError(f"{text!r}: minutes and seconds after a colon go to 59")
    seconds = int(match[1] or 0) * _DAY + sum(number * unit for number, unit in zip(numbers, units, strict=False))
    return int(_bounded(seconds, text))


def _bounded(seconds: float, value: object) -> float:
    if not math.isfinite(seconds) or seconds > _LONGEST:
        raise ValueError(f"{value!r} is longer than a year")
    if seconds <= 0:
        raise ValueError(f"{value!r} is not more than zero")
    return seconds


def minutes_warning(text: str) -> tuple[str, str] | None:
    """What to say of ``04:00``, which sbatch reads as four minutes; None for every other form."""
    if re.fullmatch(r"[0-9]+:[0-9]+", text) is None:
        return None
    minutes, seconds = text.split(":")
    return f"{text} is {int(minutes)} minutes and {int(seconds)} seconds", f"for hours, write {text}:00"


def format_time_limit(seconds: int) -> str:
    """``HH:MM:SS``, with ``D-`` before it from one day on."""
    days, rest = divmod(int(seconds), _DAY)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text
