"""One engine on a clock of its own: what a step took, who got a token, when an arrival is seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hybridplan.ledger.work.features import Counts
from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.request import Request
from hybridplan.sim.time.clock import Clock, Pass

if TYPE_CHECKING:
    from hybridplan.sim.replay import Engine

LONGEST_IDLE = 8
LONGEST_STALL = 10_000


class TimedEngine(Protocol):
    """What a clock needs of an engine, beside ``replay.Engine``.

    ``record_work`` is called once, before the first step; without it an engine notes nothing.
    ``passes`` are those of the last ``step``. ``next_work`` is the decode step that ``skip`` would
    repeat. ``steps_in_flight`` steps run while the next one is planned (async scheduling).
    """

    @property
    def steps_in_flight(self) -> int: ...
    def record_work(self) -> None: ...
    def passes(self) -> Sequence[Pass]: ...
    def next_work(self) -> StepWork: ...


class _Times:
    """Ticks of one request."""

    __slots__ = ("arrival", "first", "sent", "start")

    def __init__(self, arrival: int, sent: int) -> None:
        self.arrival = arrival
        self.sent = sent
        self.start: int | None = None
        self.first: int | None = None


class Server:
    """An engine and its clock. All times are ticks of the clock.

    Attributes:
        now: end of the last step, or when an idle engine was last woken.
        horizon: arrivals up to here are seen when the next step is planned. With steps in flight
            (async scheduling) that is before ``now``: the next step is planned while the last runs.
        busy: ticks spent in steps.
        ran_until: end of the last step.
        spent: counts of all steps.
        open: requests added and not ended.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self.now = 0
        self.busy = self.ran_until = 0
        self.spent = Counts()
        self.open = 0
        self.peak_running = 0
        self.peak_waiting = 0
        self._lag = engine.steps_in_flight if clock.sees_queue else 0
        self._ends = deque([0] * (self._lag + 1), self._lag + 1)
        self._times: dict[int, _Times] = {}
        self._idle = 0
        engine.record_work()

    @property
    def now_s(self) -> float:
        """``now`` in seconds."""
        return self.now / self.clock.ticks_per_s

    @property
    def horizon(self) -> int:
        return self._ends[0] if self.open else self.now

    def wake(self, at: int) -> None:
        """Let the clock of an idle engine run to ``at``."""
        if at > self.now:
            self.now = at
        self._ends.extend([self.now] * (self._lag + 1))

    def add(self, request: Request, arrival: int, sent: int) -> int:
        """Queue a request the engine does not refuse.

        ``arrival`` is the trace's, ``sent`` when it reached the engine (later where it waited for
        an earlier turn). Returns its order number.
        """
        if not self.open:
            self.wake(sent)
        order = self.engine.add(request)
        self._times[order] = _Times(arrival, sent)
        self.open += 1
        return order

    def run(self, until: int | None = None) -> list[RequestOutcome]:
        """One step, or a stretch of equal steps; returns the requests that ended.

        A stretch ends with the first step after which an arrival at ``until`` is seen. Raises the
        engine's RefusalError where it can never go on.
        """
        engine = self.engine
        most = engine.skippable_steps()
        if most:
            self._skip(most, until)
            return []
        begin = self.now
        tokens, admitted, finished = engine.step()
        for order in admitted:
            self._times[order].start = begin
        self._step(engine.passes())
        waiting = engine.waiting
        if admitted or waiting:
            self.peak_running = max(self.peak_running, engine.running + len(finished))
            self.peak_waiting = max(self.peak_waiting, waiting)
        self._idle = 0 if tokens or finished else self._idle + 1
        if self._idle > (LONGEST_STALL if engine.running else LONGEST_IDLE):
            raise engine.blocked()
        return [self._close(order, outcome) for order, outcome in finished]

    def _step(self, passes: Sequence[Pass]) -> None:
        for found, charge in zip(passes, self.clock.passes(passes), strict=True):
            self._spend(charge.ticks, charge.counts)
            for order in found.first:
                times = self._times[order]
                if times.first is None:
                    times.first = self.now
        self._ends.append(self.now)

    def _skip(self, most: int, until: int | None) -> None:
        work, clock = self.engine.next_work(), self.clock
        begin = self.now
        steps = most if until is None else self._fewest(work, most, until - begin)
        charge = clock.stretch(work, steps)
        self._spend(charge.ticks, charge.counts)
        for back in range(min(self._lag, steps - 1), 0, -1):
            self._ends.append(begin + clock.stretch(work, steps - back).ticks)
        self._ends.append(self.now)
        self.engine.skip(steps)

    def _fewest(self, work: StepWork, most: int, ticks: int) -> int:
        """Steps until an arrival ``ticks`` from now is seen, at most ``most`` and at least 1.

        Steps only grow longer, so the first one bounds how many there can be.
        """
        clock, lag = self.clock, self._lag
        first = clock.stretch(work, 1).ticks
        low, high = 1, most
        if first:
            high = min(most, max(-(-ticks // first), 0) + lag + 1)
        while low < high:
            middle = (low + high) // 2
            ahead = middle - lag
            seen = clock.stretch(work, ahead).ticks if ahead > 0 else self._ends[middle] - self.now
            if seen >= ticks:
                high = middle
            else:
                low = middle + 1
        return low

    def _spend(self, ticks: int, counts: Counts) -> None:
        self.now += ticks
        self.busy += ticks
        self.ran_until = self.now
        self.spent = self.spent.plus(counts)

    def _close(self, order: int, outcome: RequestOutcome) -> RequestOutcome:
        """The outcome with its times. What ends now got its last token ``lag`` steps ago."""
        self.open -= 1
        times = self._times.pop(order)
        unit = self.clock.ticks_per_s
        first = self.now if times.first is None else times.first
        outputs = outcome.output_tokens
        end = first if outputs <= 1 and self.clock.sees_queue else max(self._ends[0], first)
        start = times.sent if times.start is None else times.start
        return replace(
            outcome,
            arrival_s=times.arrival / unit,
            waited_s=max(start - times.arrival, 0) / unit,
            finish_s=end / unit,
            sent_s=times.sent / unit,
            queued_s=max(start - times.sent, 0) / unit,
            ttft_s=(first - times.sent) / unit,
            tpot_s=(end - first) / (outputs - 1) / unit if outputs > 1 else None,
            e2e_s=(end - times.sent) / unit,
        )
