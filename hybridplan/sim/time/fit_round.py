"""Intervals of a log against those of a replay, as equations for the constants of step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, log, sqrt
from typing import Literal

from hybridplan.ledger.work.features import FEATURES
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.time.fit_judge import percentile
from hybridplan.sim.time.fit_solve import Equations, equations, solve

_NO_CHEAPER_THAN_DENSE = ("attention_flop", "scan_flop")
_HUBER = 1.5
_LEAST_SCATTER = 1e-3
_GROUPS = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """Of one fitted request: what the log and the replay say it took, and the work in it.

    ``waiting`` is from arrival to first token, ``decoding`` from first to last. ``counts`` are by
    FEATURES.
    """

    request: int
    kind: Literal["waiting", "decoding"]
    logged_s: float
    predicted_s: float
    counts: Sequence[float]

    @property
    def error(self) -> float:
        return self.predicted_s / self.logged_s - 1


class Round:
    """One replay and the constants that its intervals ask for.

    Errors count relative to the logged interval. Times to first token scatter far more than decode
    intervals (they hang on where in a step a request arrives), so each kind is weighed by its own
    scatter, and requests far outside it pull with a bounded force (Huber).

    Attributes:
        constants: seconds per unit of each feature that the replay ran on.
        outcomes: of every request of the log, in its order.
        intervals: of the fitted ones.
        loss: what comparing rounds goes by; lower is better.
    """

    def __init__(
        self,
        constants: Mapping[str, float],
        outcomes: Sequence[RequestOutcome],
        intervals: Sequence[Interval],
    ) -> None:
        self.constants = constants
        self.outcomes = outcomes
        self.intervals = intervals
        errors: dict[str, list[float]] = {}
        for interval in intervals:
            errors.setdefault(interval.kind, []).append(abs(interval.error))
        self._scatter = {
            kind: max(percentile(sizes, 50), _LEAST_SCATTER) for kind, sizes in errors.items()
        }
        self.loss = fsum(len(errors[kind]) * log(size) for kind, size in self._scatter.items())

    def equations(self, names: Sequence[str], intervals: Sequence[Interval]) -> Equations:
        """Weighed equations of some of the intervals."""
        rows, targets = [], []
        for interval in intervals:
            scatter = self._scatter[interval.kind]
            bounded = min(1.0, _HUBER * scatter / max(abs(interval.error), 1e-12))
            weight = sqrt(bounded) / scatter
            counts = dict(zip(FEATURES, interval.counts, strict=True))
            for dearer in _NO_CHEAPER_THAN_DENSE:
                counts["dense_flop"] += counts[dearer]
            rows.append([weight * counts[name] / interval.logged_s for name in names])
            targets.append(weight)
        return equations(rows, targets, len(names))

    def scaled(self) -> dict[str, float]:
        """The same constants, all times one factor that mends the middle decode interval."""
        ratios = [i.logged_s / i.predicted_s for i in self.intervals if i.kind == "decoding"]
        factor = percentile(ratios, 50) if ratios else 1.0
        return {name: value * factor for name, value in self.constants.items()}

    def solution(self, names: Sequence[str]) -> dict[str, float]:
        """Constants by feature."""
        return _constants(names, self.equations(names, self.intervals))

    def spreads(self, names: Sequence[str]) -> dict[str, float]:
        """Half the range of the constants when each tenth of the requests is left out."""
        whole = self.equations(names, self.intervals)
        requests = list(dict.fromkeys(interval.request for interval in self.intervals))
        found = []
        for group in range(_GROUPS):
            gone = set(requests[group::_GROUPS])
            part = self.equations(names, [i for i in self.intervals if i.request in gone])
            found.append(_constants(names, whole.minus(part)))
        return {
            name: (max(each[name] for each in found) - min(each[name] for each in found)) / 2
            for name in names
        }


def moved(before: Round, now: Round) -> float:
    """By how much the middle one of all predicted intervals changed, as a share."""
    changes = [
        abs(b.predicted_s / a.predicted_s - 1) if a.predicted_s else 1.0
        for a, b in zip(before.intervals, now.intervals, strict=True)
    ]
    return percentile(changes, 50)


def _constants(names: Sequence[str], given: Equations) -> dict[str, float]:
    """Constants by feature, attention and recurrent FLOP no cheaper than those of products."""
    found = dict(zip(names, solve(given), strict=True))
    for dearer in _NO_CHEAPER_THAN_DENSE:
        if dearer in found:
            found[dearer] += found["dense_flop"]
    return found
