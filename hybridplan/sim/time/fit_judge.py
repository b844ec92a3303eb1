"""Predicted against logged latencies: percentiles with their tolerances, and single requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum
from typing import Literal

from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.time.fit_log import Logged

Measure = Literal["TTFT", "TPOT", "e2e"]
TOLERANCES = {50: 0.15, 90: 0.30, 99: 0.30}
"""Largest relative error of a percentile that still counts as predicted."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One percentile (nearest rank) of one latency. ``error`` is predicted over logged less one."""

    measure: Measure
    percent: int
    predicted_s: float
    logged_s: float
    error: float
    tolerance: float
    within: bool


@dataclass(frozen=True, slots=True)
class Single:
    """Errors of single requests in one latency: median and largest of their sizes, and mean."""

    measure: Measure
    requests: int
    median: float
    mean: float
    worst: float


def judge(logged: Sequence[Logged], outcomes: Sequence[RequestOutcome]) -> tuple[Judged, ...]:
    """Percentiles of the same requests, as predicted and as logged."""
    judged = []
    for measure, pairs in _pairs(logged, outcomes):
        for percent, tolerance in TOLERANCES.items():
            predicted, seen = (percentile(column, percent) for column in zip(*pairs, strict=True))
            error = predicted / seen - 1
            within = abs(error) <= tolerance
            judged.append(Judged(measure, percent, predicted, seen, error, tolerance, within))
    return tuple(judged)


def singles(logged: Sequence[Logged], outcomes: Sequence[RequestOutcome]) -> tuple[Single, ...]:
    """Errors request by request."""
    found = []
    for measure, pairs in _pairs(logged, outcomes):
        errors = [abs(predicted / seen - 1) for predicted, seen in pairs]
        found.append(
            Single(
                measure,
                len(errors),
                percentile(errors, 50),
                fsum(errors) / len(errors),
                max(errors),
            )
        )
    return tuple(found)


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that at least ``percent`` of a hundred values do not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(len(ordered) * percent / 100) - 1, 0)]


def _pairs(
    logged: Sequence[Logged], outcomes: Sequence[RequestOutcome]
) -> list[tuple[Measure, list[tuple[float, float]]]]:
    """(predicted, logged) of every request, by latency; only latencies that both sides have."""
    columns: list[tuple[Measure, list[tuple[float, float]]]] = [
        ("TTFT", []), ("TPOT", []), ("e2e", [])
    ]  # fmt: skip
    for seen, outcome in zip(logged, outcomes, strict=True):
        both = (
            (outcome.ttft_s, seen.ttft_s),
            (outcome.tpot_s, seen.tpot_s),
            (outcome.e2e_s, seen.e2e_s),
        )
        for (_, pairs), (predicted, observed) in zip(columns, both, strict=True):
            if predicted is not None and observed:
                pairs.append((predicted, observed))
    return [(measure, pairs) for measure, pairs in columns if pairs]
