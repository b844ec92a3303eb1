"""Prefill and decode on instances of their own, and the transfer between them.

A request is prefilled but for its last token (``decode.prefill_part``), its KV and state are sent
(``ledger.transfer``), and it decodes elsewhere. Assumed: the decoder is chosen when the prefill has
ended, by the least outstanding; a transfer begins then and not layer by layer; each instance has
one link a rank, and a transfer has the links of both its ends to itself, in the order prefills
end. Prefix caching lives at the prefillers: a decoder receives every prompt whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from hybridplan.sim.arrival import Arrival, Closed
from hybridplan.sim.fleet.cosim import Fleet, Site
from hybridplan.sim.fleet.decode import prefill_part
from hybridplan.sim.fleet.link import Link, LinkSpeed, send
from hybridplan.sim.fleet.routers import Router
from hybridplan.sim.fleet.served import Moved, Served, since
from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.request import Request


class Disaggregated(Fleet):
    """A fleet whose sites prefill, with decoders behind them.

    Args:
        requests, sites, router, arrival: as of ``Fleet``; sites are the prefillers.
        decoders: sites whose engines are ``decode.receiving``.
        decode_router: chooses among them.
        speed: one rank's link, at both ends; None moves in no time.
        bytes_of: bytes of one rank that a prompt of so many tokens moves.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        sites: Sequence[Site],
        router: Router,
        *,
        decoders: Sequence[Site],
        decode_router: Router,
        speed: LinkSpeed | None,
        bytes_of: Callable[[int], int],
        arrival: Arrival = Closed(1),  # noqa: B008
    ) -> None:
        super().__init__(requests, sites, router, arrival=arrival)
        self.decoders = tuple(decoders)
        self.sending = tuple(Link() for _ in self.sites)
        self.receiving = tuple(Link() for _ in self.decoders)
        self._decode_router = decode_router
        self._speed = speed
        self._bytes_of = bytes_of
        self._everyone = (*self.sites, *self.decoders)

    @property
    def _all_sites(self) -> tuple[Site, ...]:
        return self._everyone

    def _refusal(self, site: Site, request: Request) -> str | None:
        part = prefill_part(request) or request
        return site.engine.refusal(part) or self.decoders[0].engine.refusal(request)

    def _deliver(self, site: Site, served: Served) -> None:
        part = prefill_part(served.request)
        if part is None:
            self._unload(site, served)
            self._move(served, None)
        else:
            self._queue(site, served, part)

    def _ended_at(self, site: Site, served: Served, begun: int) -> int:
        """A prefill ends with its only token, also where the engine plans a step more before it
        sees that, and the clock knows of none in flight."""
        unseen = site.engine.steps_in_flight and not site.server.clock.sees_queue
        return begun if unseen and served.moved is None else super()._ended_at(site, served, begun)

    def _end(self, site: Site, served: Served, outcome: RequestOutcome) -> Iterator[Served]:
        self._unload(site, served)
        if served.moved is None:
            self._move(served, self._counted(site, served, outcome))
        else:
            served.moved.decode = replace(outcome, hit_tokens=0, kv_hit_tokens=0)
            yield self._finish(served, self._joined(served, served.moved, outcome))

    def _move(self, served: Served, prefill: RequestOutcome | None) -> None:
        """Send what was computed to a decoder."""
        request = served.request
        loads = [site.outstanding for site in self.decoders]
        index = self._decode_router.choose(request, loads)
        site = self.decoders[index]
        site.outstanding.requests += 1
        site.outstanding.tokens += request.prompt.length_tokens
        ready = self.now if prefill is not None else served.sent
        moved_bytes = 0 if prefill is None else self._bytes_of(request.prompt.length_tokens)
        begin = end = ready
        if prefill is not None:
            ends = (self.sending[served.replica], self.receiving[index])
            if self._speed is not None and self.ticks_per_s > 1:
                begin, end = send(ends, self._speed, moved_bytes, ready, self.ticks_per_s)
            else:
                for link in ends:
                    link.moved_bytes += moved_bytes
                    link.transfers += 1
        served.moved = Moved(prefill, index, moved_bytes, ready, begin, end)
        self._at(end, lambda: self._received(site, served))

    def _received(self, site: Site, served: Served) -> Iterator[Served]:
        site.add(served, served.request, self.now)
        return iter(())

    def _joined(self, served: Served, move: Moved, decode: RequestOutcome) -> RequestOutcome:
        """One outcome of both instances: hits of the prefiller, tokens and end of the decoder."""
        whole = since(decode, served.sent, move.end, self.ticks_per_s)
        prefill = move.prefill
        if prefill is None:
            return replace(whole, hit_tokens=0, kv_hit_tokens=0)
        return replace(
            whole,
            hit_tokens=prefill.hit_tokens,
            kv_hit_tokens=prefill.kv_hit_tokens,
            ceiling_tokens=prefill.ceiling_tokens,
            lost=prefill.lost,
            junction_tokens=prefill.junction_tokens,
            prefill_chunks=prefill.prefill_chunks,
            preemptions=prefill.preemptions + decode.preemptions,
            recomputed_tokens=prefill.recomputed_tokens + decode.recomputed_tokens,
            waited_s=prefill.waited_s,
            queued_s=prefill.queued_s,
            arrival_step=prefill.arrival_step,
            first_step=prefill.first_step,
        )
