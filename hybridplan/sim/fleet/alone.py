"""Replicas that do not depend on each other, replayed one by one or over processes.

Each is the plain replay of the requests a router sends there, so that one process and many give
the same bytes, and one replica gives what ``simulate`` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.part import Collector, Part
from hybridplan.sim.fleet.routers import Outstanding
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.replay import Replay
from hybridplan.sim.request import Request
from hybridplan.sim.setup import build
from hybridplan.sim.sweep.runner import connect
from hybridplan.sim.time.stopwatch import Stopwatch

OnOutcome = Callable[[int, RequestOutcome], None]


def parts_alone(
    ask: FleetAsk, jobs: int, scheduler: str | None, on_outcome: OnOutcome | None
) -> tuple[list[Part], int | None]:
    """Every replica's share, and the ceiling of one infinite cache for all of them."""
    if jobs == 1 and scheduler is None:
        parts = [replay_replica(ask, index, on_outcome) for index in range(ask.replicas)]
        return parts, shared_ceiling(ask, parts)
    with connect(scheduler, jobs) as pool:
        running = [pool.submit(replay_replica, ask, index) for index in range(ask.replicas)]
        parts = [each.result() for each in running]
    return parts, shared_ceiling(ask, parts)


def replay_replica(ask: FleetAsk, index: int, on_outcome: OnOutcome | None = None) -> Part:
    """One replica, by the plain replay of what is sent there."""
    engine = build(ask.engine).engine(losses=ask.base.causes)
    router = ask.router.make(ask.names)
    idle = [Outstanding() for _ in ask.names]
    collector = Collector(Stopwatch(ask.slo))

    def mine() -> Iterator[Request]:
        for request in ask.requests():
            if router.choose(request, idle) == index:
                if engine.refusal(request) is None:
                    collector.believed_tokens += router.believed_tokens
                yield request

    replay = Replay(mine(), engine, arrival=ask.arrival, clock=ask.clock())
    for outcome in replay:
        collector.add(outcome)
        if on_outcome is not None:
            on_outcome(index, outcome)
    part = collector.part(ask.names[index], "serve", engine, str(ask.arrival), replay.server)
    return replace(part, summary=replay.summary())


def shared_ceiling(ask: FleetAsk, parts: list[Part]) -> int | None:
    """What an infinite cache would reuse that saw all requests, in the order of the trace."""
    if not ask.base.causes:
        return None
    if ask.replicas == 1:
        return parts[0].summary.ceiling_tokens
    engine = build(ask.engine).engine(losses=False)
    cache, tokens = InfiniteCache(), 0
    for request in ask.requests():
        if engine.refusal(request) is None:
            tokens += cache.reusable_tokens(request)
            cache.remember(request)
    return tokens
