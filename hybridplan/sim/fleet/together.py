"""Replicas that depend on each other, on one clock; with decoders and host tiers where asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import cast

from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.transfer import prefill_to_decode
from hybridplan.sim.ceiling import InfiniteCache
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.cosim import Fleet, Site, StepCount
from hybridplan.sim.fleet.decode import prefill_part, receiving
from hybridplan.sim.fleet.disagg import Disaggregated
from hybridplan.sim.fleet.host import HostTier
from hybridplan.sim.fleet.host_link import HostLink
from hybridplan.sim.fleet.part import Collector, Part
from hybridplan.sim.fleet.routers import RouterAsk
from hybridplan.sim.fleet.served import Served
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.request import Request
from hybridplan.sim.setup import Built
from hybridplan.sim.time.clock import Clock
from hybridplan.sim.time.stopwatch import Stopwatch
from hybridplan.sim.vllm.replayed import ReplayedVllm


@dataclass(slots=True)
class Together:
    """A fleet that has run, and what was noted beside it."""

    fleet: Fleet
    parts: list[Part]
    decoders: list[Part]
    ceiling_tokens: int | None
    waited_ticks: list[int] = field(default_factory=list)
    moving_ticks: list[int] = field(default_factory=list)
    moved_bytes: list[int] = field(default_factory=list)
    interrupted: bool = False


def run_together(
    ask: FleetAsk, built: Built, on_outcome: Callable[[int, RequestOutcome], None] | None
) -> Together:
    """Replay all replicas on one clock; Ctrl-C ends it with what was answered until then."""
    fleet = make_fleet(ask, built)
    ceiling = _Ceiling(ask.decode_replicas > 0) if ask.base.causes else None
    if ceiling is not None:
        fleet.on_sent = ceiling.see
    collectors = [Collector(Stopwatch(ask.slo)) for _ in ask.names]
    decoding = [Collector(Stopwatch()) for _ in ask.decoder_names]
    found = Together(fleet, [], [], None)
    served: Served | None = None
    try:
        for served in fleet:
            outcome = served.outcome
            assert outcome is not None
            collector = collectors[served.replica]
            collector.add(outcome)
            if outcome.refused is None:
                collector.host_tokens += served.host_tokens
                collector.believed_tokens += served.believed_tokens
                _note_move(found, served, decoding)
            if on_outcome is not None:
                on_outcome(served.replica, outcome)
    except KeyboardInterrupt:
        if served is None:
            raise
        found.interrupted = True
    has_clock = fleet.ticks_per_s > 1
    role = "prefill" if ask.decode_replicas else "serve"
    found.parts = _parts(ask, fleet.sites, collectors, role, has_clock)
    if isinstance(fleet, Disaggregated):
        found.decoders = _parts(ask, fleet.decoders, decoding, "decode", has_clock)
    if ceiling is not None and not found.interrupted:
        found.ceiling_tokens = ceiling.tokens
    return found


def _note_move(found: Together, served: Served, decoding: Sequence[Collector]) -> None:
    move = served.moved
    if move is None or move.decode is None:
        return
    decoding[move.decoder].add(move.decode)
    if move.prefill is not None:
        found.waited_ticks.append(move.begin - move.ready)
        found.moving_ticks.append(move.end - move.begin)
        found.moved_bytes.append(move.moved_bytes)


def _parts(
    ask: FleetAsk,
    sites: Sequence[Site],
    collectors: Sequence[Collector],
    role: str,
    has_clock: bool,
) -> list[Part]:
    parts = []
    for site, collector in zip(sites, collectors, strict=True):
        collector.totals.see(site.server.peak_running, site.server.peak_waiting)
        server = site.server if has_clock else None
        parts.append(collector.part(site.name, role, site.engine, str(ask.arrival), server))
    return parts


def make_fleet(ask: FleetAsk, built: Built) -> Fleet:
    """The fleet of a question, not yet run."""
    clock: Clock = ask.clock() or StepCount()
    sites = [
        Site(name, engine := built.engine(losses=ask.base.causes), clock, _host(ask, built, engine))
        for name in ask.names
    ]
    router = ask.router.make(ask.names)
    if not ask.decode_replicas:
        return Fleet(ask.requests(), sites, router, arrival=ask.arrival)
    decoders = [
        Site(name, receiving(cast("ReplayedVllm", built.engine(losses=False))), clock)
        for name in ask.decoder_names
    ]
    layers = model_caches(ask.engine.spec, ask.engine.deployment)
    return Disaggregated(
        ask.requests(),
        sites,
        router,
        arrival=ask.arrival,
        decoders=decoders,
        decode_router=RouterAsk("least-loaded", load="tokens").make(ask.decoder_names),
        speed=ask.transfer,
        bytes_of=cache(lambda tokens: prefill_to_decode(layers, tokens).total_bytes),
    )


def _host(ask: FleetAsk, built: Built, engine: object) -> HostLink | None:
    if ask.host is None:
        return None
    tier = HostTier(
        cast("ReplayedVllm", engine), ask.host.capacity_bytes, built.setup.bytes_per_block
    )
    return HostLink(tier, ask.host.speed)


class _Ceiling:
    """One infinite cache for the whole fleet, shown requests as they are sent.

    Prefillers that leave the last token to a decoder (``leaves_last``) see all but that one.
    """

    def __init__(self, leaves_last: bool) -> None:
        self.tokens = 0
        self._leaves_last = leaves_last
        self._cache = InfiniteCache()

    def see(self, request: Request) -> None:
        part = prefill_part(request) if self._leaves_last else request
        if part is not None:
            self.tokens += self._cache.reusable_tokens(part)
            self._cache.remember(part)
