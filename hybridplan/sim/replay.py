"""Drive a stream of requests through an engine and add up what happened.

An ``Engine`` owns the cache and the scheduler; this module owns arrivals, the clock, the order of a
session's turns, progress and totals. Decode is not stepped: when an engine says that its next n
steps repeat the last one, they are taken at once, up to the next arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from hybridplan.errors import HybridplanError, InputError
from hybridplan.sim.arrival import NS, Arrival, Closed, Timed
from hybridplan.sim.outcome import EngineUse, RequestOutcome, Summary
from hybridplan.sim.request import Request
from hybridplan.sim.totals import Totals

MOST_HELD_TURNS = 100_000
LONGEST_IDLE = 8
LONGEST_STALL = 10_000


class Engine(Protocol):
    """What a replay needs of an engine.

    ``step`` returns the tokens it computed, the order numbers of requests admitted for the first
    time and (order number, outcome) of those that ended. ``skip(n)`` may be called with at most
    ``skippable_steps()`` and has the effect of n calls of ``step`` in which nothing is admitted or
    ends and every running request computes one token.
    """

    @property
    def name(self) -> str: ...
    @property
    def reading(self) -> str: ...
    @property
    def exact_identity(self) -> bool: ...
    @property
    def step_index(self) -> int: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def refusal(self, request: Request) -> str | None: ...
    def add(self, request: Request) -> int: ...
    def step(self) -> tuple[int, list[int], list[tuple[int, RequestOutcome]]]: ...
    def skippable_steps(self) -> int: ...
    def skip(self, steps: int) -> None: ...
    def blocked(self) -> HybridplanError: ...
    def use(self) -> EngineUse: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a replay is. ``hit_tokens`` and ``prompt_tokens`` count finished requests."""

    finished: int
    running: int
    waiting: int
    prompt_tokens: int
    hit_tokens: int
    steps: int


class Replay:
    """One replay: iterate it for outcomes in the order they finish, ask it for the summary.

    A summary can be asked for at any time, also after an exception or KeyboardInterrupt left the
    iteration; it is then marked partial. Iterating twice continues, it does not start again.

    Args:
        requests: in trace order; read as they are needed.
        engine: not shared with another replay.
        arrival: when requests start; timed arrival needs ``arrival_s`` on each.
        hold_turns: a turn of a session waits for the turn before it to finish.
        progress: called every ``progress_every`` finished requests and at the end.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        engine: Engine,
        *,
        arrival: Arrival = Closed(1),  # noqa: B008
        hold_turns: bool = True,
        progress: Callable[[Progress], None] | None = None,
        progress_every: int = 100,
    ) -> None:
        self.engine = engine
        self.arrival = arrival
        self._source = iter(requests)
        self._exhausted = False
        self._ended = False
        self._next: Request | None = None
        self._turns = _Turns() if hold_turns else None
        self._open = 0
        self._now_ns = 0
        self._clock: dict[int, tuple[int, int | None]] = {}
        self._totals = Totals()
        self._progress = progress
        self._every = max(progress_every, 1)
        self._outcomes = self._run()

    def __iter__(self) -> Iterator[RequestOutcome]:
        return self._outcomes

    def summary(self, *, interrupted: bool = False) -> Summary:
        """Totals of the requests that ended so far."""
        return self._totals.summary(
            self.engine,
            arrival=str(self.arrival),
            elapsed_s=self._now_ns / NS if isinstance(self.arrival, Timed) else None,
            partial=not self._ended,
            interrupted=interrupted,
        )

    def _run(self) -> Iterator[RequestOutcome]:
        engine = self.engine
        in_flight = self.arrival.in_flight if isinstance(self.arrival, Closed) else None
        is_timed = isinstance(self.arrival, Timed)
        idle = 0
        while True:
            if in_flight is None or self._open < in_flight:
                yield from self._admit_ready()
            if not self._open:
                if self._exhausted and self._next is None and not self._held:
                    break
                self._sleep()
                continue
            steps = engine.skippable_steps()
            if steps and is_timed:
                steps = self._until_arrival(steps)
            if steps:
                self._advance(engine.running, steps)
                engine.skip(steps)
                continue
            tokens, admitted, finished = engine.step()
            if is_timed:
                for order in admitted:
                    self._note_start(order)
                self._advance(tokens, 1)
            waiting = engine.waiting
            if admitted or waiting:
                self._totals.see(engine.running + len(finished), waiting)
            idle = 0 if tokens or finished else idle + 1
            if idle > (LONGEST_STALL if engine.running else LONGEST_IDLE):
                raise engine.blocked()
            for order, outcome in finished:
                yield self._close(order, outcome)
        self._ended = True
        self._tell()

    @property
    def _held(self) -> bool:
        return self._turns is not None and self._turns.held > 0

    def _admit_ready(self) -> Iterator[RequestOutcome]:
        """Hand over every request whose time has come; yields those the engine refuses."""
        while True:
            request = self._take_ready()
            if request is None:
                return
            reason = self.engine.refusal(request)
            if reason is None:
                order = self.engine.add(request)
                self._open += 1
                if isinstance(self.arrival, Timed):
                    self._clock[order] = (self._arrival_ns(request), None)
                continue
            if self._turns is not None:
                self._turns.finish(request.session)
            yield self._count(
                RequestOutcome(
                    request_id=request.request_id,
                    prompt_tokens=request.prompt.length_tokens,
                    output_tokens=0,
                    arrival_s=request.arrival_s,
                    session=request.session,
                    turn=request.turn,
                    refused=reason,
                )
            )

    def _take_ready(self) -> Request | None:
        """The next request to start now, or None."""
        if isinstance(self.arrival, Closed) and self._open >= self.arrival.in_flight:
            return None
        if self._turns is not None:
            ready = self._turns.ready()
            if ready is not None:
                return ready
        while True:
            request = self._peek()
            if request is None:
                return None
            if isinstance(self.arrival, Timed) and self._arrival_ns(request) > self._now_ns:
                return None
            self._next = None
            if self._turns is None or self._turns.may_start(request):
                return request

    def _peek(self) -> Request | None:
        if self._next is None and not self._exhausted:
            self._next = next(self._source, None)
            self._exhausted = self._next is None
        return self._next

    def _arrival_ns(self, request: Request) -> int:
        if not isinstance(self.arrival, Timed):
            return 0
        if request.arrival_s is None:
            raise InputError(
                f"request {request.request_id} has no arrival time; use --arrival closed:N or"
                " sequential for a trace without a clock"
            )
        return self.arrival.arrival_ns(request.arrival_s)

    def _sleep(self) -> None:
        """Nothing is in flight: let the clock run to the next arrival."""
        request = self._peek()
        if request is not None and isinstance(self.arrival, Timed):
            self._now_ns = max(self._now_ns, self._arrival_ns(request))

    def _until_arrival(self, steps: int) -> int:
        """At most ``steps``, and no further than the step before the next arrival is noticed."""
        request = self._peek()
        if request is None or not isinstance(self.arrival, Timed):
            return steps
        step_ns = self.arrival.step_time_ns(self.engine.running)
        until = self._arrival_ns(request) - self._now_ns
        return min(steps, max(-(-until // step_ns), 0))

    def _advance(self, tokens: int, steps: int) -> None:
        if isinstance(self.arrival, Timed):
            self._now_ns += self.arrival.step_time_ns(tokens) * steps

    def _note_start(self, order: int) -> None:
        if order in self._clock:
            self._clock[order] = (self._clock[order][0], self._now_ns)

    def _close(self, order: int, outcome: RequestOutcome) -> RequestOutcome:
        self._open -= 1
        times = self._clock.pop(order, None)
        if times is not None:
            arrival, start = times
            outcome = replace(
                outcome,
                arrival_s=arrival / NS,
                waited_s=max((start if start is not None else arrival) - arrival, 0) / NS,
                finish_s=self._now_ns / NS,
            )
        if self._turns is not None:
            self._turns.finish(outcome.session)
        return self._count(outcome)

    def _count(self, outcome: RequestOutcome) -> RequestOutcome:
        self._totals.add(outcome)
        if self._totals.requests % self._every == 0:
            self._tell()
        return outcome

    def _tell(self) -> None:
        if self._progress is not None:
            totals, engine = self._totals, self.engine
            self._progress(
                Progress(
                    finished=totals.requests + totals.refused,
                    running=engine.running,
                    waiting=engine.waiting,
                    prompt_tokens=totals.prompt_tokens,
                    hit_tokens=totals.hit_tokens,
                    steps=engine.step_index,
                )
            )


class _Turns:
    """Turns of a session run one after another, whatever the arrivals would allow."""

    def __init__(self) -> None:
        self.held = 0
        self._busy: dict[str, deque[Request]] = {}
        self._ready: deque[Request] = deque()

    def may_start(self, request: Request) -> bool:
        """Claim the session, or hold the request back until its turn comes."""
        session = request.session
        if session is None:
            return True
        waiting = self._busy.get(session)
        if waiting is None:
            self._busy[session] = deque()
            return True
        if self.held >= MOST_HELD_TURNS:
            raise InputError(
                f"more than {MOST_HELD_TURNS} turns wait for earlier turns of their sessions;"
                " interleave the sessions in the trace or raise closed:N"
            )
        waiting.append(request)
        self.held += 1
        return False

    def finish(self, session: str | None) -> None:
        if session is None or session not in self._busy:
            return
        waiting = self._busy[session]
        if waiting:
            self._ready.append(waiting.popleft())
        else:
            del self._busy[session]

    def ready(self) -> Request | None:
        if not self._ready:
            return None
        self.held -= 1
        return self._ready.popleft()


def simulate(
    requests: Iterable[Request],
    engine: Engine,
    *,
    arrival: Arrival = Closed(1),  # noqa: B008
    hold_turns: bool = True,
    on_outcome: Callable[[RequestOutcome], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Replay all requests and return the totals.

    ``on_outcome`` receives every outcome as it ends. Ctrl-C ends the replay early: the summary is
    then partial and ``interrupted``. Raises RefusalError when the engine can never serve a request.
    """
    run = Replay(requests, engine, arrival=arrival, hold_turns=hold_turns, progress=progress)
    try:
        for outcome in run:
            if on_outcome is not None:
                on_outcome(outcome)
    except KeyboardInterrupt:
        return run.summary(interrupted=True)
    return run.summary()
