"""Drive a stream of requests through an engine and add up what happened.

An ``Engine`` owns the cache and the scheduler; this module owns arrivals, the clock, the order of a
session's turns, progress and totals. Decode is not stepped: when an engine says that its next n
steps repeat the last one, they are taken at once, up to the next arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from hybridplan.errors import HybridplanError, InputError
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.outcome import EngineUse, RequestOutcome, Summary
from hybridplan.sim.request import Request
from hybridplan.sim.time.clock import NS, Clock
from hybridplan.sim.time.server import LONGEST_IDLE, LONGEST_STALL, Server, TimedEngine
from hybridplan.sim.totals import Totals

MOST_HELD_TURNS = 100_000


class Engine(TimedEngine, Protocol):
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
        clock: what steps take; without one there is no time, but for timed arrival's stand-in.
        hold_turns: a turn of a session waits for the turn before it to finish.
        progress: called every ``progress_every`` finished requests and at the end.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        engine: Engine,
        *,
        arrival: Arrival = Closed(1),  # noqa: B008
        clock: Clock | None = None,
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
        self._turns = Turns() if hold_turns else None
        self._open = 0
        self._arrival_words = str(arrival)
        if isinstance(arrival, Timed):
            self._arrival_words = arrival.words(stand_in=clock is None)
            clock = clock or arrival.stand_in
        self.server = None if clock is None else Server(engine, clock)
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
            arrival=self._arrival_words,
            elapsed_s=self.server.now_s if self.server is not None else None,
            partial=not self._ended,
            interrupted=interrupted,
        )

    def _run(self) -> Iterator[RequestOutcome]:
        if self.server is None:
            yield from self._run_untimed()
        else:
            yield from self._run_timed(self.server)
        self._ended = True
        self._tell()

    def _run_untimed(self) -> Iterator[RequestOutcome]:
        engine, arrival = self.engine, self.arrival
        in_flight = arrival.in_flight if isinstance(arrival, Closed) else 0
        idle = 0
        while True:
            if self._open < in_flight:
                yield from self._admit_ready()
            if not self._open:
                if self._exhausted and self._next is None and not self._held:
                    return
                continue
            steps = engine.skippable_steps()
            if steps:
                engine.skip(steps)
                continue
            tokens, admitted, finished = engine.step()
            waiting = engine.waiting
            if admitted or waiting:
                self._totals.see(engine.running + len(finished), waiting)
            idle = 0 if tokens or finished else idle + 1
            if idle > (LONGEST_STALL if engine.running else LONGEST_IDLE):
                raise engine.blocked()
            for _, outcome in finished:
                yield self._close(outcome)

    def _run_timed(self, server: Server) -> Iterator[RequestOutcome]:
        while True:
            yield from self._admit_ready()
            if not self._open:
                if self._exhausted and self._next is None and not self._held:
                    return
                request = self._peek()
                if request is not None:
                    server.wake(self._arrival(request))
                continue
            until = None
            if isinstance(self.arrival, Timed):
                request = self._peek()
                until = None if request is None else self._arrival(request)
            finished = server.run(until)
            self._totals.see(server.peak_running, server.peak_waiting)
            for outcome in finished:
                yield self._close(outcome)

    @property
    def _held(self) -> bool:
        return self._turns is not None and self._turns.held > 0

    def _admit_ready(self) -> Iterator[RequestOutcome]:
        """Hand over every request whose time has come; yields those the engine refuses."""
        while True:
            ready = self._take_ready()
            if ready is None:
                return
            request, sent = ready
            arrival = self._arrival(request) if isinstance(self.arrival, Timed) else sent
            reason = self.engine.refusal(request)
            if reason is None:
                self._open += 1
                if self.server is None:
                    self.engine.add(request)
                else:
                    self.server.add(request, arrival, sent)
                continue
            clock = None if self.server is None else self.server.clock
            self._end_turn(request.session)
            yield self._count(
                RequestOutcome(
                    request_id=request.request_id,
                    prompt_tokens=request.prompt.length_tokens,
                    output_tokens=0,
                    arrival_s=None if clock is None else arrival / clock.ticks_per_s,
                    session=request.session,
                    turn=request.turn,
                    refused=reason,
                )
            )

    def _take_ready(self) -> tuple[Request, int] | None:
        """The next request to start now and when it is sent, or None.

        A turn that was held back is sent when the turn before it has ended.
        """
        arrival, now = self.arrival, 0 if self.server is None else self.server.horizon
        if isinstance(arrival, Closed) and self._open >= arrival.in_flight:
            return None
        if self._turns is not None:
            ready = self._turns.ready()
            if ready is not None:
                return ready
        while True:
            request = self._peek()
            if request is None:
                return None
            sent = self._arrival(request) if isinstance(arrival, Timed) else now
            if sent > now:
                return None
            self._next = None
            if self._turns is None or self._turns.may_start(request):
                return request, sent

    def _peek(self) -> Request | None:
        if self._next is None and not self._exhausted:
            self._next = next(self._source, None)
            self._exhausted = self._next is None
        return self._next

    def _arrival(self, request: Request) -> int:
        """When the trace sends a request, in the clock's ticks; 0 where arrivals follow ends."""
        if not isinstance(self.arrival, Timed) or self.server is None:
            return 0
        if request.arrival_s is None:
            raise InputError(
                f"request {request.request_id} has no arrival time; use --arrival closed:N or"
                " sequential for a trace without a clock"
            )
        return self.arrival.arrival_ns(request.arrival_s) * (self.server.clock.ticks_per_s // NS)

    def _close(self, outcome: RequestOutcome) -> RequestOutcome:
        self._open -= 1
        self._end_turn(outcome.session)
        return self._count(outcome)

    def _end_turn(self, session: str | None) -> None:
        if self._turns is not None:
            self._turns.finish(session, 0 if self.server is None else self.server.horizon)

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


class Turns:
    """Turns of a session run one after another, whatever the arrivals would allow."""

    def __init__(self) -> None:
        self.held = 0
        self._busy: dict[str, deque[Request]] = {}
        self._ready: deque[tuple[Request, int]] = deque()

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

    def finish(self, session: str | None, at: int) -> None:
        """A turn has ended at tick ``at``; the next one of its session may start."""
        if session is None or session not in self._busy:
            return
        waiting = self._busy[session]
        if waiting:
            self._ready.append((waiting.popleft(), at))
        else:
            del self._busy[session]

    def ready(self) -> tuple[Request, int] | None:
        if not self._ready:
            return None
        self.held -= 1
        return self._ready.popleft()


def simulate(
    requests: Iterable[Request],
    engine: Engine,
    *,
    arrival: Arrival = Closed(1),  # noqa: B008
    clock: Clock | None = None,
    hold_turns: bool = True,
    on_outcome: Callable[[RequestOutcome], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Replay all requests and return the totals.

    ``on_outcome`` receives every outcome as it ends. Ctrl-C ends the replay early: the summary is
    then partial and ``interrupted``. Raises RefusalError when the engine can never serve a request.
    """
    run = Replay(
        requests, engine, arrival=arrival, clock=clock, hold_turns=hold_turns, progress=progress
    )
    try:
        for outcome in run:
            if on_outcome is not None:
                on_outcome(outcome)
    except KeyboardInterrupt:
        return run.summary(interrupted=True)
    return run.summary()
