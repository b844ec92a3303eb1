"""The fit against constants it was made from, and against brute force."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridplan.errors import InputError
from hybridplan.ledger.work.features import FEATURES
from hybridplan.measure.timemodel import StepPoint, fit, solve

positive = st.floats(1e-3, 1e3)


def _points(rows: list[tuple[float, float, float]], times: list[float]) -> list[StepPoint]:
    names = ("step", "bytes", "dense_flop")
    return [
        StepPoint(str(i), dict(zip(names, row, strict=True)), t)
        for i, (row, t) in enumerate(zip(rows, times, strict=True))
    ]


@settings(deadline=None, max_examples=50)
@given(
    st.tuples(positive, positive, positive),
    st.lists(st.tuples(st.just(1.0), positive, positive), min_size=8, max_size=14),
)
def test_times_made_from_constants_are_met(
    constants: tuple[float, float, float], rows: list[tuple[float, float, float]]
) -> None:
    times = [sum(a * b for a, b in zip(constants, row, strict=True)) for row in rows]
    model = fit(_points(rows, times))
    assert max(abs(e) for e in model.errors(model.fitted)) < 1e-6


def _cost(points: list[StepPoint], constants: dict[str, float]) -> float:
    return sum(
        (sum(constants[n] * p.features[n] for n in constants) / p.seconds - 1) ** 2 for p in points
    )


def _best_by_trying_all_sets(points: list[StepPoint], names: tuple[str, ...]) -> float:
    best = float(len(points))
    for size in range(1, len(names) + 1):
        for kept in itertools.combinations(names, size):
            A = torch.tensor([[p.features[n] / p.seconds for n in kept] for p in points]).double()
            found = torch.linalg.pinv(A) @ torch.ones(len(points)).double()
            if float(found.min()) >= 0:
                best = min(best, _cost(points, dict(zip(kept, found.tolist(), strict=True))))
    return best


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.just(1.0), st.floats(0.5, 5), st.floats(0.5, 5)), min_size=6, max_size=10,
        unique=True,
    ),
    st.lists(st.floats(0.5, 5), min_size=10, max_size=10),
)  # fmt: skip
def test_no_constant_is_negative_and_few_sets_do_better(
    rows: list[tuple[float, float, float]], times: list[float]
) -> None:
    points = _points(rows, times[: len(rows)])
    found = solve(points)
    assert min(found.values()) >= 0
    assert set(found) <= set(FEATURES)
    best = _best_by_trying_all_sets(points, ("step", "bytes", "dense_flop"))
    assert best - 1e-9 <= _cost(points, found) <= 1.5 * best + 1e-6


def test_fitted_and_judged_points_are_apart_and_cover_the_same_range() -> None:
    rows = [(1.0, float(n), float(n % 3 + 1)) for n in range(1, 13)]
    model = fit(_points(rows, [float(n) for n in range(1, 13)]))
    fitted, judged = ({p.name for p in half} for half in (model.fitted, model.judged))
    assert not fitted & judged
    assert len(fitted) == len(judged) == 6


def test_too_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="2 points cannot fit 3 constants"):
        solve(_points([(1.0, 2.0, 3.0), (1.0, 3.0, 2.0)], [1.0, 2.0]))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.just(1.0), positive, positive), min_size=8, max_size=14),
    st.lists(positive, min_size=14, max_size=14),
    positive,
)
def test_no_constant_goes_below_its_ceiling(
    rows: list[tuple[float, float, float]], times: list[float], least: float
) -> None:
    points = _points(rows, times[: len(rows)])
    bounded = solve(points, {"bytes": least})
    assert bounded["bytes"] >= least
    assert min(bounded.values()) >= 0


def test_a_true_constant_above_its_ceiling_is_met_and_one_below_is_held() -> None:
    rows = [(1.0, 10.0 * n, 3.0 * (n * n % 7) + 1.0) for n in range(1, 13)]
    points = _points(rows, [2.0 + 0.5 * b + 0.25 * f for _, b, f in rows])
    met = solve(points, {"bytes": 0.4, "dense_flop": 0.1})
    assert met == pytest.approx({"step": 2.0, "bytes": 0.5, "dense_flop": 0.25})
    held = solve(points, {"bytes": 0.55})
    assert held["bytes"] == 0.55
