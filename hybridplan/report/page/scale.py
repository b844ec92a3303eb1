"""Scales of powers of ten for seconds and rates: ends that are round, marks of 1, 2 and 5."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, log10

_STEPS = (1, 2, 5)
_LEAST = 1e-6


def ends(values: Iterable[float]) -> tuple[float, float]:
    """The nearest marks around positive values."""
    known = [max(value, _LEAST) for value in values]
    low, high = min(known, default=1.0), max(known, default=1.0)
    marks = _marks(low, high)
    start = max(mark for mark in marks if mark <= low * (1 + 1e-9))
    end = min(mark for mark in marks if mark >= high * (1 - 1e-9))
    return (start, end) if end > start else (start, marks[marks.index(start) + 1])


def marks(low: float, high: float, most: int) -> list[float]:
    """Marks from ``low`` to ``high``: 1, 2 and 5 of each power of ten, or fewer so that at most
    ``most`` remain."""
    found = [m for m in _marks(low, high) if low * (1 - 1e-9) <= m <= high * (1 + 1e-9)]
    if len(found) <= most:
        return found
    tens = [mark for mark in found if f"{mark:e}".startswith("1.0")]
    every = -(-len(tens) // most)
    return tens[::every]


def _marks(low: float, high: float) -> list[float]:
    first, last = floor(log10(low)) - 1, floor(log10(high)) + 1
    return [float(f"{step}e{power}") for power in range(first, last + 1) for step in _STEPS]


def time(seconds: float) -> str:
    """A mark: 20 ms, 1 s, 500 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * (1 - 1e-9):
            return f"{seconds / size:,.6g} {unit}"
    return f"{seconds * 1e6:.6g} us"
