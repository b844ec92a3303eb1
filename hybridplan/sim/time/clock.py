"""Ticks a step takes: a model of the device, or the stand-in of ``--arrival timed``.

Ticks are whole numbers, so n steps at once and n steps one by one end at the same tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hybridplan.ledger.calibration import Calibration
from hybridplan.ledger.work.features import FEATURES, Counts
from hybridplan.ledger.work.model import WorkModel
from hybridplan.ledger.work.step import StepWork

STEP_TICKS_PER_S = 10**24
NS = 10**9


@dataclass(slots=True)
class Pass:
    """A pass of the model within an engine step, and the order numbers of the requests whose
    first token it gives when it ends."""

    work: StepWork
    first: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Charge:
    """What work takes: ticks, and the counts behind them (all zero for the stand-in)."""

    ticks: int
    counts: Counts = Counts()  # noqa: RUF009


class Clock(Protocol):
    """What steps take. ``sees_queue``: an arrival waits for steps in flight, as ``Server`` says."""

    @property
    def ticks_per_s(self) -> int: ...
    @property
    def sees_queue(self) -> bool: ...
    def passes(self, passes: Sequence[Pass]) -> list[Charge]:
        """The charge of each pass of one engine step."""

    def stretch(self, work: StepWork, steps: int) -> Charge:
        """The charge of ``steps`` decode steps, the first of them ``work``."""


@dataclass(frozen=True, slots=True)
class FlatClock:
    """``step_ns + tokens * token_ns`` a step, prefill and decode tokens alike."""

    step_ns: int
    token_ns: int
    ticks_per_s: int = field(default=NS, init=False)
    sees_queue: bool = field(default=False, init=False)

    def passes(self, passes: Sequence[Pass]) -> list[Charge]:
        """The charge of each pass; what a step itself takes is in the first."""
        ticks = [found.work.tokens * self.token_ns for found in passes]
        ticks[0] += self.step_ns
        return [Charge(each) for each in ticks]

    def stretch(self, work: StepWork, steps: int) -> Charge:
        """The charge of that many decode steps."""
        return Charge(steps * (self.step_ns + len(work.contexts) * self.token_ns))


class StepClock:
    """A calibration's seconds for the work of a model on one rank.

    Constants are taken in whole 1e-24 s a unit, which is within 1e-8 of any card's. A pass that
    runs nothing takes no time.
    """

    ticks_per_s = STEP_TICKS_PER_S
    sees_queue = True

    def __init__(self, model: WorkModel, calibration: Calibration) -> None:
        self.model = model
        self.calibration = calibration
        self.unit_ticks = Counts(
            *(
                round(calibration.step_seconds(name) * STEP_TICKS_PER_S) if model.uses(name) else 0
                for name in FEATURES
            )
        )

    def charge(self, work: StepWork) -> Charge:
        """The charge of a pass, its repeats together."""
        if work.empty:
            return Charge(0)
        counts = self.model.counts(work)
        return Charge(self.ticks(counts), counts)

    def ticks(self, counts: Counts) -> int:
        """Ticks of these counts."""
        return sum(a * b for a, b in zip(counts, self.unit_ticks, strict=True))

    def passes(self, passes: Sequence[Pass]) -> list[Charge]:
        """The charge of each pass."""
        return [self.charge(found.work) for found in passes]

    def stretch(self, work: StepWork, steps: int) -> Charge:
        """The charge of ``steps`` decode steps, every context one longer in each."""
        if not steps:
            return Charge(0)
        return self.charge(StepWork(work.contexts, head_rows=work.head_rows, repeats=steps))
