"""When requests reach the engine. Seconds are kept as whole nanoseconds, so runs repeat exactly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from hybridplan.errors import InputError
from hybridplan.sim.request import Request
from hybridplan.sim.time.clock import NS, FlatClock

_LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Closed:
    """A fixed number of requests in flight; the next one of the trace starts when one ends."""

    in_flight: int = 1

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise InputError(f"arrival closed:{self.in_flight} needs at least 1 request in flight")

    def __str__(self) -> str:
        return "sequential" if self.in_flight == 1 else f"closed:{self.in_flight}"


@dataclass(frozen=True, slots=True)
class Timed:
    """The trace's clock against a simple step time: ``step_s + tokens / tokens_per_s``.

    ``tokens`` are those an engine step computes, prefill and decode alike. It stands in for a
    device until a measured time model does; ``speed`` > 1 replays the trace's clock faster.
    """

    tokens_per_s: float = 20_000.0
    step_s: float = 0.005
    speed: float = 1.0

    def __post_init__(self) -> None:
        takes_time = 1e-9 <= self.tokens_per_s < inf and 0 <= self.step_s <= _LONGEST_S
        if not takes_time or not 0 < self.speed < inf:
            raise InputError(
                f"timed arrival needs tokens_per_s > 0, step_s >= 0 and speed > 0, all finite, not"
                f" {self.tokens_per_s}, {self.step_s} and {self.speed}"
            )

    @property
    def step_ns(self) -> int:
        return round(self.step_s * NS)

    @property
    def token_ns(self) -> int:
        return max(round(NS / self.tokens_per_s), 1)

    @property
    def stand_in(self) -> FlatClock:
        """The clock of a step time that knows nothing of the device."""
        return FlatClock(self.step_ns, self.token_ns)

    def arrival_ns(self, arrival_s: float) -> int:
        return round(arrival_s * NS / self.speed)

    def words(self, *, stand_in: bool) -> str:
        """As a result says it; without the stand-in's step times where another clock is used."""
        speed = "" if self.speed == 1 else f", trace clock x{self.speed:g}"
        if not stand_in:
            return f"timed{speed}"
        return f"timed: {self.step_s:g} s a step + {self.tokens_per_s:g} tokens/s{speed}"

    def __str__(self) -> str:
        return self.words(stand_in=True)


Arrival = Closed | Timed


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast to replay a trace's clock: ``speed`` times, or ``per_s`` requests on the mean."""

    speed: float | None = None
    per_s: float | None = None

    def of(self, requests: Iterable[Request]) -> float:
        """The speed for these requests, whose clock is stretched evenly: bursts stay bursts.

        Raises InputError where ``per_s`` cannot be reached as all arrive at once.
        """
        if self.speed is not None:
            return self.speed
        assert self.per_s is not None
        stamps = [r.arrival_s for r in requests if r.arrival_s is not None]
        span = max(stamps) - min(stamps) if stamps else 0.0
        if span <= 0:
            raise InputError(
                f"--rate {self.per_s:g}/s cannot be reached: all requests of the trace"
                f" ({len(stamps):,}) arrive at one moment; use closed:N"
            )
        return self.per_s * span / (len(stamps) - 1)


_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+"
_RATE = re.compile(rf"x({_NUMBER})|({_NUMBER})x|(?P<per_s>{_NUMBER})\s*/s")
_SLOWEST, _FASTEST = 1e-9, 1e9


def parse_rate(text: str) -> Rate:
    """``x2``, ``2x`` or ``3/s``. Raises InputError for anything else."""
    match = _RATE.fullmatch(text.strip().lower())
    if match is None:
        raise InputError(
            f"--rate {text!r} is neither a multiple of the trace's clock such as x2 nor requests a"
            " second such as 3/s"
        )
    number = next(found for found in match.groups() if found is not None)
    value = float(number)
    if not _SLOWEST <= value <= _FASTEST:
        raise InputError(f"--rate {text!r}: {number} is not from {_SLOWEST:g} to {_FASTEST:g}")
    return Rate(per_s=value) if match["per_s"] is not None else Rate(speed=value)


def parse_arrival(text: str) -> Arrival:
    """``sequential``, ``closed:N`` or ``timed`` (``timed:TOKENS_PER_S[:STEP_S]``)."""
    name, _, rest = text.partition(":")
    try:
        if name == "sequential" and not rest:
            return Closed(1)
        if name == "closed":
            return Closed(int(rest))
        if name == "timed":
            parts = [float(part) for part in rest.split(":")] if rest else []
            if len(parts) <= 2:
                return Timed(*parts)
    except ValueError:
        pass
    raise InputError(
        f"arrival {text!r} is not known; use sequential, closed:N, timed or"
        " timed:TOKENS_PER_S:STEP_S"
    )
