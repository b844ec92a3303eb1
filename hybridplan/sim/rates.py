"""Latencies against the rate: the first requests of a trace at several speeds of its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hybridplan.sim.advice import Watch
from hybridplan.sim.arrival import Timed
from hybridplan.sim.replay import Engine, Progress, Replay
from hybridplan.sim.request import Request
from hybridplan.sim.run import SimulateAsk, at_rate, clocked_requests
from hybridplan.sim.setup import build
from hybridplan.sim.time.answer import Replays, clock_of
from hybridplan.sim.time.result import Latencies
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.time.stopwatch import Stopwatch

MOST_REQUESTS = 500
MOST_PROMPT_TOKENS = 32_000_000
"""A replay's time grows with both; whichever ends first, but for LEAST_REQUESTS."""
LEAST_REQUESTS = 100
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5)
"""Rates that are replayed, as shares of what the server ends a second when all come at once."""
MOST_REPLAYS = 2 * (len(SHARES) + 1) + 1
_AT_ONCE = 1024.0
_NEAR = 1.1


@dataclass(frozen=True, slots=True)
class Served:
    """One replay. ``share_met`` is the share of the requests that kept the SLO, None without
    one."""

    latencies: Latencies
    share_met: float | None


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The same requests at ``speed`` times the trace's clock, ``rate_per_s`` a second on the mean.

    ``without`` gives no hits; None where the trace's own rate had none to lose, or
    no baseline was asked for.
    """

    speed: float
    rate_per_s: float
    hits: Served
    without: Served | None


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Latencies at several rates, lowest first.

    The first ``requests`` of the trace were replayed, all of it where it is ``whole``. ``speed`` is
    that of the point at the trace's rate as asked for. ``at_once_per_s``: requests ended a second
    when all arrive together. ``baseline`` says how hits were taken away, "" where none were.
    ``interrupted``: Ctrl-C left out some points.
    """

    requests: int
    whole: bool
    slo: Slo | None
    speed: float
    points: tuple[RatePoint, ...]
    at_once_per_s: float | None
    baseline: str
    interrupted: bool

    @property
    def own(self) -> RatePoint:
        """The point at the trace's rate as asked for."""
        return next(point for point in self.points if point.speed == self.speed)


def rate_curve(ask: SimulateAsk, *, watch: Watch | None = None) -> RateCurve | None:
    """Replay the first requests of a trace at the rate asked for and around the rate that the
    server can end, with hits and without.

    At most MOST_REPLAYS replays of at most MOST_REQUESTS and MOST_PROMPT_TOKENS each.

    None where there is no rate to vary: without a calibration or timed arrival, where all arrive at
    one moment, and where all are refused. Raises what ``run`` does, and KeyboardInterrupt where
    Ctrl-C came before the first point; later it ends the curve.
    """
    ask = at_rate(ask)
    if ask.timing.calibration is None or not isinstance(ask.arrival, Timed):
        return None
    return _Rates(ask, ask.arrival, watch).curve()


class _Rates:
    def __init__(self, ask: SimulateAsk, arrival: Timed, watch: Watch | None) -> None:
        self._ask = ask
        self._arrival = arrival
        self._watch = watch
        self._baseline = ""
        self._compares = ask.timing.baseline
        stream = clocked_requests(ask.trace, arrival, ask.session_gap_s)
        self._requests, self._whole = _affordable(stream)
        self._again = Replays(
            ask.timing, ask.engine, arrival, lambda: self._requests, self._watched
        )

    def curve(self) -> RateCurve | None:
        speed = self._arrival.speed
        points: list[RatePoint] = []
        at_once, interrupted = None, False
        try:
            own = self._point(speed)
            if own is None:
                return None
            points.append(own)
            self._compares = False
            at_once = self._at_once(speed * _AT_ONCE)
            for other in _speeds(own, at_once):
                found = self._point(other)
                points += [] if found is None else [found]
        except KeyboardInterrupt:
            if not points:
                raise
            interrupted = True
        return RateCurve(
            requests=len(self._requests),
            whole=self._whole,
            slo=self._ask.timing.slo,
            speed=speed,
            points=tuple(sorted(points, key=lambda point: point.speed)),
            at_once_per_s=at_once,
            baseline=self._baseline,
            interrupted=interrupted,
        )

    def _watched(self, stage: str) -> Callable[[Progress], None]:
        watch = self._watch

        def see(progress: Progress) -> None:
            if watch is not None:
                watch(stage, progress, len(self._requests))

        return see

    def _point(self, speed: float) -> RatePoint | None:
        """None where nothing is served, or at no rate: all at one moment."""
        found = self._replay(speed, self._engine(), self._requests)
        hits, rate = _served(found), found.offered_per_s
        if hits is None or rate is None:
            return None
        without = None
        if self._baseline or (self._compares and found.hit_tokens):
            self._baseline, engine, requests = self._again.without_hits()
            without = _served(self._replay(speed, engine, requests))
        return RatePoint(speed, rate, hits, without)

    def _at_once(self, speed: float) -> float:
        found = self._replay(speed, self._engine(), self._requests)
        return found.per_s(found.requests)

    def _engine(self) -> Engine:
        return build(self._ask.engine).engine(losses=False)

    def _replay(self, speed: float, engine: Engine, requests: Iterable[Request]) -> Stopwatch:
        clock = clock_of(self._ask.timing, self._ask.engine)
        found = Stopwatch(self._ask.timing.slo, clock)
        arrival = replace(self._arrival, speed=speed)
        see = self._watched(f"rate x{speed:g}")
        for outcome in Replay(requests, engine, arrival=arrival, clock=clock, progress=see):
            found.see(outcome)
        return found


def _affordable(requests: Iterable[Request]) -> tuple[list[Request], bool]:
    """The first requests, as many as are replayed, and whether they are all."""
    first: list[Request] = []
    tokens = 0
    for request in requests:
        tokens += request.prompt.length_tokens
        dear = tokens > MOST_PROMPT_TOKENS and len(first) >= LEAST_REQUESTS
        if dear or len(first) == MOST_REQUESTS:
            return first, False
        first.append(request)
    return first, True


def _speeds(own: RatePoint, at_once_per_s: float) -> list[float]:
    """Of SHARES, in three digits, but for those that are all but the trace's own."""
    speeds = (own.speed * share * at_once_per_s / own.rate_per_s for share in SHARES)
    rounded = dict.fromkeys(float(f"{speed:.3g}") for speed in speeds)
    return [s for s in rounded if not own.speed / _NEAR < s < own.speed * _NEAR]


def _served(found: Stopwatch) -> Served | None:
    latencies, attained = found.latencies(), found.attained()
    if latencies is None:
        return None
    return Served(latencies, None if attained is None else attained.share_met)
