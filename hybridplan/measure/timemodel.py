"""Step time = a + launches + bytes / bandwidth + FLOP / rate, fitted and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.ledger.work.features import FEATURES


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One measured step. ``features`` by the names of FEATURES, in counts, bytes and FLOP."""

    name: str
    features: Mapping[str, float]
    seconds: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """``seconds_per`` a unit of each feature; spreads from leaving one out."""

    seconds_per: Mapping[str, float]
    spreads: Mapping[str, float]
    fitted: tuple[StepPoint, ...]
    judged: tuple[StepPoint, ...]

    def seconds(self, features: Mapping[str, float]) -> float:
        """Predicted step time."""
        return sum(self.seconds_per.get(name, 0.0) * amount for name, amount in features.items())

    def errors(self, points: Sequence[StepPoint]) -> list[float]:
        """Predicted over measured less one, a point."""
        return [self.seconds(p.features) / p.seconds - 1 for p in points]


def solve(
    points: Sequence[StepPoint], least: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Least squares of relative errors, no coefficient below ``least`` of its feature, or 0.

    A feature whose coefficient would come out lower is held there and the rest solved again (the
    classical active set, from the full one down). Raises InputError with too few points.
    """
    import torch

    names = [n for n in FEATURES if any(p.features.get(n, 0.0) for p in points)]
    if len(points) < len(names):
        raise InputError(f"{len(points)} points cannot fit {len(names)} constants")
    floor = {n: (least or {}).get(n, 0.0) for n in names}
    left = [
        [1.0 - sum(s * p.features.get(n, 0.0) for n, s in floor.items()) / p.seconds]
        for p in points
    ]
    target = torch.tensor(left, dtype=torch.float64)
    kept = list(names)
    while kept:
        rows = [[p.features.get(n, 0.0) / p.seconds for n in kept] for p in points]
        A = torch.tensor(rows, dtype=torch.float64)
        scale = A.norm(dim=0).clamp_min(1e-300)
        found = torch.linalg.lstsq(A / scale, target, driver="gelsd").solution[:, 0] / scale
        worst = int(found.argmin())
        if float(found[worst]) >= 0:
            above = dict(zip(kept, found.tolist(), strict=True))
            return {n: floor[n] + above.get(n, 0.0) for n in names}
        kept.pop(worst)
    return floor


def fit(points: Sequence[StepPoint], least: Mapping[str, float] | None = None) -> Fit:
    """Fit every other point of the list ordered by time, judge the rest.

    ``least``: seconds a unit of a feature that no constant may go below, as the card's measured
    ceilings give them.
    """
    ordered = sorted(points, key=lambda p: p.seconds)
    fitted, judged = tuple(ordered[::2]), tuple(ordered[1::2])
    found = solve(fitted, least)
    ranges: dict[str, list[float]] = {n: [v, v] for n, v in found.items()}
    for i in range(len(fitted)):
        rest = (*fitted[:i], *fitted[i + 1 :])
        if len(rest) < len(found):
            break
        for n, v in solve(rest, least).items():
            ranges[n] = [min(ranges[n][0], v), max(ranges[n][1], v)]
    spreads = {n: (high - low) / 2 for n, (low, high) in ranges.items()}
    return Fit(found, spreads, fitted, judged)
