"""What a user asks of time."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.errors import InputError
from hybridplan.ledger.calibration import Calibration
from hybridplan.sim.arrival import Arrival, Rate, Timed
from hybridplan.sim.time.capacity import USUAL_TOLERANCE
from hybridplan.sim.time.slo import Slo


@dataclass(frozen=True, slots=True)
class TimeAsk:
    """``calibration`` gives steps their time (None: timed arrival's stand-in, or no clock);
    ``rate`` replays the trace's clock faster or slower. With an ``slo``, ``find_rate`` looks for
    the highest rate that keeps it, to within ``tolerance``. ``baseline`` replays again without
    prefix caching, to tell what hits are worth in time.
    """

    calibration: Calibration | None = None
    calibration_name: str = ""
    rate: Rate | None = None
    slo: Slo | None = None
    find_rate: bool = False
    tolerance: float = USUAL_TOLERANCE
    baseline: bool = True

    def check(self, arrival: Arrival) -> None:
        """Raise InputError where the questions and the arrivals do not go together."""
        is_timed = isinstance(arrival, Timed)
        if self.rate is not None and not is_timed:
            raise InputError(
                f"--rate scales the trace's clock and the arrival is {arrival}; use --arrival timed"
            )
        if self.find_rate and not is_timed:
            raise InputError(
                f"--find-rate varies the rate of arrivals and the arrival is {arrival}; use"
                " --arrival timed"
            )
        if not 0.001 <= self.tolerance < 1:
            raise InputError(
                f"--rate-tolerance {self.tolerance:g} must be at least 0.001 and below 1"
            )
        if self.find_rate and (self.slo is None or not self.slo.limits):
            raise InputError("--find-rate needs an --slo to keep, such as ttft=2s,tpot=50ms")
        if self.slo is not None and self.calibration is None and not is_timed:
            raise InputError(
                f"--slo {self.slo} asks for times and the replay has no clock; give --calibration"
                " FILE or preset:CARD, such as preset:h200"
            )
        given = isinstance(arrival, Timed) and arrival != Timed(speed=arrival.speed)
        if self.calibration is not None and given:
            raise InputError(
                f"--arrival {arrival} and --calibration both say what a step takes; give"
                " --arrival timed alone"
            )
