"""What ``measure`` returns: checks with prediction and measurement, curves, and the device."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, TypeAlias

from hybridplan.ledger.calibration import Calibration
from hybridplan.ledger.logs.result import LogReport

SCHEMA_VERSION = 1

Verdict: TypeAlias = Literal["within", "outside", "failed", "skipped", "noted"]
Sense: TypeAlias = Literal["near", "at most", "at least"]


@dataclass(frozen=True, slots=True)
class Check:
    """One prediction and what the device said.

    ``check`` is the family ("bytes", "decode", ...), ``name`` the figure, ``what`` a sentence.
    ``error`` is measured over predicted less one (absolute where the prediction is 0); it is within
    where its size is at most ``tolerance``. With ``sense`` "at most" ("at least") the prediction is
    a bound, and the error counts only beyond it. Verdicts: "failed" broke before it could be
    measured, "skipped" cannot run here, "noted" has no prediction and decides nothing.
    ``spread`` is the difference between two measurements of the same thing, as a share.
    """

    check: str
    name: str
    what: str
    predicted: float | None
    measured: float | None
    unit: str
    error: float | None
    tolerance: float | None
    verdict: Verdict
    how: str
    sense: Sense = "near"
    spread: float | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve; ``predicted`` None where the curve is only measured, ``name`` where
    points are of different things."""

    x: float
    measured: float
    predicted: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A curve of a check, for the picture and for whoever reads the JSON."""

    check: str
    name: str
    x: str
    y: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Clocks:
    """What nvidia-smi says at one moment; None where it does not say.

    ``reasons`` are the active reasons for lower clocks, by nvidia-smi's names.
    """

    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """The card and the software that was measured.

    ``others_bytes`` is memory in use by other processes before anything was allocated.
    ``peers`` counts further cards that this one can reach directly.
    """

    name: str
    index: int | None
    capability: str
    memory_bytes: int
    free_bytes: int
    others_bytes: int
    other_processes: int
    l2_bytes: int
    multiprocessors: int
    peers: int
    driver: str
    cuda: str
    torch: str
    triton: str
    transformers: str
    python: str
    before: Clocks | None
    after: Clocks | None


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """All checks of one run.

    ``mode`` is "gpu" or "cpu"; ``complete`` False: interrupted after the checks listed. ``layers``
    says how much of the model was run. ``log`` is a boot log held against the plan.
    """

    schema_version: int
    model: str
    mode: Literal["gpu", "cpu"]
    quick: bool
    date: str
    complete: bool
    seconds: float
    device: Device
    layers: str
    checks: tuple[Check, ...]
    series: tuple[Series, ...]
    calibration: Calibration | None
    log: LogReport | None
    notes: tuple[str, ...]

    @property
    def outside(self) -> tuple[Check, ...]:
        """Checks that disagree with their prediction or broke."""
        return tuple(c for c in self.checks if c.verdict in ("outside", "failed"))

    @property
    def agrees(self) -> bool:
        """Whether every check that ran is within its tolerance, and the log with the plan."""
        return not self.outside and (self.log is None or self.log.agrees)


def compared(
    check: str,
    name: str,
    what: str,
    predicted: float,
    measured: float,
    unit: str,
    tolerance: float,
    how: str,
    *,
    sense: Sense = "near",
    spread: float | None = None,
    notes: tuple[str, ...] = (),
) -> Check:
    """A check with its error and verdict. A number that is not finite is outside, and not kept."""
    error = _error(predicted, measured, sense)
    beyond = abs(error) if sense == "near" else max(0.0, error if sense == "at most" else -error)
    named = (("prediction", predicted), ("measurement", measured), ("spread", spread or 0.0))
    broken = [which for which, value in named if not isfinite(value)]
    within = not broken and beyond <= tolerance
    return Check(
        check,
        name,
        what,
        predicted if isfinite(predicted) else None,
        measured if isfinite(measured) else None,
        unit,
        error if isfinite(error) else None,
        tolerance,
        "within" if within else "outside",
        how,
        sense,
        spread if "spread" not in broken else None,
        (*notes, *(f"the {which} is not a finite number" for which in broken)),
    )


def _error(predicted: float, measured: float, sense: Sense) -> float:
    if not (isfinite(measured) and isfinite(predicted)):
        return inf
    if predicted == 0:
        return measured
    return measured / predicted - 1


def noted(check: str, name: str, what: str, measured: float, unit: str, how: str) -> Check:
    """A measurement without a prediction; one that is not finite is a failure."""
    if not isfinite(measured):
        return failed(check, name, what, "the measurement is not a finite number")
    return Check(check, name, what, None, measured, unit, None, None, "noted", how)


def skipped(check: str, name: str, what: str, why: str) -> Check:
    """A check that cannot run here, with the reason."""
    return Check(check, name, what, None, None, "", None, None, "skipped", "", notes=(why,))


def failed(check: str, name: str, what: str, why: str, seconds: float = 0.0) -> Check:
    """A check that broke; it counts as outside."""
    return Check(
        check, name, what, None, None, "", None, None, "failed", "", notes=(why,), seconds=seconds
    )
