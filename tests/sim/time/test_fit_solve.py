"""Non-negative least squares against trying every set of constants that may be zero."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.sim.time.fit_solve import Equations, _free_solution, equations, solve


def squared_error(eq: Equations, x: list[float]) -> float:
    """The squared error less its constant part: x G x - 2 b x."""
    n = len(x)
    quad = sum(x[i] * eq.gram[i][j] * x[j] for i in range(n) for j in range(n))
    return quad - 2 * sum(b * v for b, v in zip(eq.right, x, strict=True))


def naive(eq: Equations) -> list[float]:
    """The best of every set of constants left free whose solution is nowhere negative."""
    n = len(eq.right)
    best, least = [0.0] * n, 0.0
    for size in range(1, n + 1):
        for free in combinations(range(n), size):
            found = _free_solution(eq.gram, eq.right, free)
            if found is None or min(found) < 0:
                continue
            x = [0.0] * n
            for i, value in zip(free, found, strict=True):
                x[i] = value
            if squared_error(eq, x) < least:
                best, least = x, squared_error(eq, x)
    return best


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 6), st.integers(1, 25), st.integers(0, 10**6))
def test_solve_finds_the_best_set(width: int, count: int, seed: int) -> None:
    random_ = random.Random(seed)
    hidden = [random_.choice((0.0, 1.0, -0.5, 3.0)) for _ in range(width)]
    rows = [[random_.uniform(0, 2) for _ in range(width)] for _ in range(count)]
    targets = [
        sum(a * b for a, b in zip(row, hidden, strict=True)) + random_.gauss(0, 0.1) for row in rows
    ]
    eq = equations(rows, targets, width)
    found = solve(eq)
    assert min(found) >= 0
    size = sum(t * t for t in targets)
    assert squared_error(eq, found) <= squared_error(eq, naive(eq)) + 1e-6 * size


def test_exact_targets_come_back() -> None:
    rows = [[1.0, float(n), float(n * n)] for n in range(8)]
    targets = [0.25 + 3.0 * n + 1e-3 * n * n for n in range(8)]
    assert solve(equations(rows, targets, 3)) == pytest.approx([0.25, 3.0, 1e-3], rel=1e-6)


def test_columns_of_one_kind_and_of_zeros() -> None:
    rows = [[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]]
    found = solve(equations(rows, [3.0, 6.0], 3))
    assert found[0] + found[1] == pytest.approx(3.0)
    assert found[2] == 0.0


def test_rows_can_be_taken_out() -> None:
    rows, targets = [[1.0, 2.0], [3.0, 1.0], [0.5, 4.0]], [1.0, 2.0, 3.0]
    whole = equations(rows, targets, 2)
    rest = whole.minus(equations(rows[:1], targets[:1], 2))
    again = equations(rows[1:], targets[1:], 2)
    assert rest.right == pytest.approx(again.right)
    for mine, theirs in zip(rest.gram, again.gram, strict=True):
        assert mine == pytest.approx(theirs)
