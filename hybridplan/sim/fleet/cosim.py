"""Replicas on one clock: what a router decides is decided when every replica has got that far.

Each replica is a ``Server`` with a clock of its own. The replica that is furthest behind runs
next, and nothing is decided at a tick before every busy replica has reached it: a request, the end
of one, a load from the host. A replica takes decode steps at once only up to the tick at which
another one could first end a request.

Without a clock (``Closed``, no step times) every replica takes its steps in time with the others:
a step is one tick, whatever is in it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from hybridplan.errors import InputError
from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.fleet.host_link import HostLink
from hybridplan.sim.fleet.routers import Outstanding, Router
from hybridplan.sim.fleet.served import Served, refused, since, without_times
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.replay import Engine, Turns
from hybridplan.sim.request import Request
from hybridplan.sim.time.clock import NS, Charge, Clock, Pass
from hybridplan.sim.time.server import Server


class StepCount:
    """A clock where none is known: every step takes one tick."""

    ticks_per_s = 1
    sees_queue = False

    def passes(self, passes: Sequence[Pass]) -> list[Charge]:
        """One tick for the step."""
        return [Charge(int(at == 0)) for at in range(len(passes))]

    def stretch(self, work: StepWork, steps: int) -> Charge:
        """A tick a step."""
        return Charge(steps)


class Site:
    """One replica: its server, what is outstanding there, its host tier, whose requests it has."""

    def __init__(
        self, name: str, engine: Engine, clock: Clock, host: HostLink | None = None
    ) -> None:
        self.name = name
        self.engine = engine
        self.server = Server(engine, clock)
        self.outstanding = Outstanding()
        self.host = host
        self._held: dict[str, deque[Served]] = {}
        self._quiet: int | None = None

    def add(self, served: Served, request: Request, sent: int) -> None:
        """Queue a request that the engine does not refuse."""
        self.server.add(request, served.arrival, sent)
        self._held.setdefault(request.request_id, deque()).append(served)
        self._quiet = None

    def run(self, until: int | None) -> list[tuple[Served, RequestOutcome]]:
        """A step or a stretch; who ended. Equal ids end in the order they came."""
        self._quiet = None
        ended = []
        for outcome in self.server.run(until):
            held = self._held[outcome.request_id]
            ended.append((held.popleft(), outcome))
            if not held:
                del self._held[outcome.request_id]
        return ended

    @property
    def quiet_until(self) -> int:
        """No request of a busy replica ends before this tick."""
        if self._quiet is None:
            server, engine = self.server, self.engine
            sure = engine.skippable_steps() - engine.steps_in_flight
            self._quiet = server.horizon
            if sure > 0:
                self._quiet = server.now + server.clock.stretch(engine.next_work(), sure).ticks
        return self._quiet


class Fleet:
    """Requests through a router and its replicas; iterate it for requests in the order they end.

    Args:
        requests: in trace order.
        sites: replicas, all on clocks of one rate.
        router: chooses among them when a request is sent.
        arrival: ``Closed`` counts requests in flight over the whole fleet.
        hold_turns: a turn of a session is sent when the turn before it has ended, wherever.

    ``on_sent`` is told of every request that is not refused, as it is sent.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        sites: Sequence[Site],
        router: Router,
        *,
        arrival: Arrival = Closed(1),  # noqa: B008
        hold_turns: bool = True,
    ) -> None:
        self.sites = tuple(sites)
        self.router = router
        self.arrival = arrival
        self.ticks_per_s = self.sites[0].server.clock.ticks_per_s
        self.now = 0
        self.on_sent: Callable[[Request], None] | None = None
        self._source = iter(requests)
        self._next: Request | None = None
        self._exhausted = False
        self._turns = Turns() if hold_turns else None
        self._open = 0
        self._events: list[tuple[int, int, Callable[[], Iterator[Served]]]] = []
        self._numbers = 0

    def __iter__(self) -> Iterator[Served]:
        while True:
            busy = [site for site in self._all_sites if site.server.open]
            reached = min((site.server.horizon for site in busy), default=None)
            event = self._events[0][0] if self._events else None
            source = self._next_arrival()
            if event is not None and (source is None or event <= source):
                if reached is None or event <= reached:
                    self.now, _, act = heapq.heappop(self._events)
                    yield from act()
                    if not self._events or self._events[0][0] > self.now:
                        yield from self._send_ready()
                    continue
            elif source is not None and (reached is None or source <= reached):
                self.now = max(self.now, source)
                yield from self._take_source(source)
                continue
            if not busy:
                return
            self._run_slowest(busy, event, source)

    @property
    def _all_sites(self) -> tuple[Site, ...]:
        return self.sites

    def _run_slowest(self, busy: list[Site], event: int | None, source: int | None) -> None:
        """Let the replica that is furthest behind take a step, or a stretch that is safe."""
        site = min(busy, key=lambda one: one.server.horizon)
        bounds = [one.quiet_until for one in busy if one is not site]
        bounds += [tick for tick in (event, source) if tick is not None]
        begun = site.server.horizon
        for served, outcome in site.run(min(bounds, default=None)):
            self._at(self._ended_at(site, served, begun), self._ender(site, served, outcome))

    def _ended_at(self, site: Site, served: Served, begun: int) -> int:
        """When a request ended that was seen to end in the steps run since ``begun``."""
        return site.server.horizon

    def _ender(
        self, site: Site, served: Served, outcome: RequestOutcome
    ) -> Callable[[], Iterator[Served]]:
        return lambda: self._end(site, served, outcome)

    def _at(self, tick: int, act: Callable[[], Iterator[Served]]) -> None:
        heapq.heappush(self._events, (tick, self._numbers, act))
        self._numbers += 1

    def _end(self, site: Site, served: Served, outcome: RequestOutcome) -> Iterator[Served]:
        self._unload(site, served)
        yield self._finish(served, self._counted(site, served, outcome))

    def _counted(self, site: Site, served: Served, outcome: RequestOutcome) -> RequestOutcome:
        """The outcome as the client sees it: the way to the host counts as queueing."""
        load = served.host_load
        if load is None or site.host is None:
            return outcome
        site.host.tier.ended(load)
        served.host_tokens = max(min(outcome.hit_tokens, load.hit_tokens) - load.device_tokens, 0)
        return since(outcome, served.sent, served.loaded, self.ticks_per_s)

    def _finish(self, served: Served, outcome: RequestOutcome) -> Served:
        """The request is answered: its session's next turn may be sent."""
        self._open -= 1
        self._end_turn(served.request.session)
        served.outcome = without_times(outcome) if self.ticks_per_s == 1 else outcome
        return served

    def _unload(self, site: Site, served: Served) -> None:
        site.outstanding.requests -= 1
        site.outstanding.tokens -= served.request.prompt.length_tokens

    def _end_turn(self, session: str | None) -> None:
        if self._turns is not None:
            self._turns.finish(session, self.now)

    # Arrivals

    @property
    def _has_room(self) -> bool:
        return not isinstance(self.arrival, Closed) or self._open < self.arrival.in_flight

    def _next_arrival(self) -> int | None:
        """The tick of the trace's next request; None while none may come."""
        if self._next is None and not self._exhausted:
            self._next = next(self._source, None)
            self._exhausted = self._next is None
        if self._next is None or not self._has_room:
            return None
        return self._arrival(self._next) if isinstance(self.arrival, Timed) else self.now

    def _arrival(self, request: Request) -> int:
        assert isinstance(self.arrival, Timed)
        if request.arrival_s is None:
            raise InputError(
                f"request {request.request_id} has no arrival time; use --arrival closed:N or"
                " sequential for a trace without a clock"
            )
        return self.arrival.arrival_ns(request.arrival_s) * (self.ticks_per_s // NS)

    def _take_source(self, tick: int) -> Iterator[Served]:
        request, self._next = self._next, None
        assert request is not None
        if self._turns is None or self._turns.may_start(request):
            yield from self._send(request, tick)
            yield from self._send_ready()

    def _send_ready(self) -> Iterator[Served]:
        """Send turns whose time has come."""
        while self._turns is not None and self._has_room:
            ready = self._turns.ready()
            if ready is None:
                return
            yield from self._send(*ready)

    def _send(self, request: Request, sent: int) -> Iterator[Served]:
        """Route a request; yields it where the replica refuses it."""
        arrival = self._arrival(request) if isinstance(self.arrival, Timed) else sent
        index = self.router.choose(request, [site.outstanding for site in self.sites])
        served = Served(request, arrival, sent, index, self.router.believed_tokens)
        site = self.sites[index]
        reason = self._refusal(site, request)
        if reason is not None:
            self._end_turn(request.session)
            arrival_s = arrival / self.ticks_per_s if self.ticks_per_s > 1 else None
            served.outcome = refused(request, reason, arrival_s)
            yield served
            return
        if self.on_sent is not None:
            self.on_sent(request)
        self._open += 1
        site.outstanding.requests += 1
        site.outstanding.tokens += request.prompt.length_tokens
        self._deliver(site, served)

    def _refusal(self, site: Site, request: Request) -> str | None:
        return site.engine.refusal(request)

    def _deliver(self, site: Site, served: Served) -> None:
        self._queue(site, served, served.request)

    def _queue(self, site: Site, served: Served, request: Request) -> None:
        """Hand a request to its engine, after loading what the host has where that is faster."""
        loading = site.host.ask(request, served.sent, site.server.clock) if site.host else None
        if loading is None:
            site.add(served, request, served.sent)
            return
        served.host_load = loading.load
        served.host_bytes = loading.load.moved_bytes
        self._at(loading.end, lambda: self._loaded(site, served, request))

    def _loaded(self, site: Site, served: Served, request: Request) -> Iterator[Served]:
        assert site.host is not None
        assert served.host_load is not None
        site.host.tier.loaded(served.host_load)
        served.loaded = self.now
        site.add(served, request, self.now)
        return iter(())
