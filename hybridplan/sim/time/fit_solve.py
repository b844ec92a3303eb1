"""Least squares without negative coefficients, for a handful of constants, without numpy.

Lawson and Hanson's active set ("Solving Least Squares Problems", 1974, chapter 23) on the normal
equations: a constant enters where it would lower the error most and leaves where it would turn
negative. ``fsum`` rounds alike on every Python, ``sum`` does not (3.12 changed it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

_SMALL = 1e-10
_MOST_CHANGES = 200


@dataclass(frozen=True, slots=True)
class Equations:
    """``row . x = target`` for many rows, summed up: products of columns with columns and target.

    Sums of two Equations are the equations of both, so leaving rows out costs a subtraction.
    """

    gram: tuple[tuple[float, ...], ...]
    right: tuple[float, ...]

    def minus(self, other: Equations) -> Equations:
        """The equations without the rows of ``other``."""
        return Equations(
            tuple(
                tuple(a - b for a, b in zip(mine, theirs, strict=True))
                for mine, theirs in zip(self.gram, other.gram, strict=True)
            ),
            tuple(a - b for a, b in zip(self.right, other.right, strict=True)),
        )


def equations(rows: Sequence[Sequence[float]], targets: Sequence[float], width: int) -> Equations:
    """Sum up rows of ``width`` numbers with their targets."""
    gram = [[0.0] * width for _ in range(width)]
    right = [0.0] * width
    for row, target in zip(rows, targets, strict=True):
        for i, a in enumerate(row):
            if a:
                right[i] += a * target
                line = gram[i]
                for j, b in enumerate(row):
                    line[j] += a * b
    return Equations(tuple(map(tuple, gram)), tuple(right))


def solve(given: Equations) -> list[float]:
    """The x >= 0 of least squared error. Of columns that say the same, one may get 0."""
    width = len(given.right)
    scale = [sqrt(max(given.gram[i][i], 0.0)) or 1.0 for i in range(width)]
    gram = [[given.gram[i][j] / scale[i] / scale[j] for j in range(width)] for i in range(width)]
    right = [given.right[i] / scale[i] for i in range(width)]
    least = _SMALL * max(map(abs, right), default=0.0)
    x = [0.0] * width
    free: list[int] = []
    barred: set[int] = set()
    for _ in range(_MOST_CHANGES):
        slopes = {
            i: right[i] - fsum(gram[i][j] * x[j] for j in free)
            for i in range(width)
            if i not in free and i not in barred
        }
        enters = max(slopes, key=lambda i: slopes[i], default=None)
        if enters is None or slopes[enters] <= least:
            break
        found = _free_solution(gram, right, [*free, enters])
        if found is None or found[-1] <= 0:
            barred.add(enters)
            continue
        barred.clear()
        free.append(enters)
        while found is not None and min(found) <= 0:
            pairs = list(zip(free, found, strict=True))
            step = min(x[i] / (x[i] - value) for i, value in pairs if value <= 0)
            for i, value in pairs:
                x[i] += step * (value - x[i])
            free = [i for i, value in pairs if value > 0 or x[i] > _SMALL]
            x = [x[i] if i in free else 0.0 for i in range(width)]
            found = _free_solution(gram, right, free)
        for i, value in zip(free, found or [], strict=False):
            x[i] = value
    return [value / s for value, s in zip(x, scale, strict=True)]


def _free_solution(
    gram: Sequence[Sequence[float]], right: Sequence[float], free: Sequence[int]
) -> list[float] | None:
    """Cholesky on the free columns; None where they are not independent."""
    n = len(free)
    lower = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = gram[free[i]][free[j]] - fsum(lower[i][k] * lower[j][k] for k in range(j))
            if i == j:
                if rest <= _SMALL:
                    return None
                lower[i][i] = sqrt(rest)
            else:
                lower[i][j] = rest / lower[j][j]
    y = [0.0] * n
    for i in range(n):
        y[i] = (right[free[i]] - fsum(lower[i][k] * y[k] for k in range(i))) / lower[i][i]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (y[i] - fsum(lower[k][i] * x[k] for k in range(i + 1, n))) / lower[i][i]
    return x
