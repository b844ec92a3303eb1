"""When a load from the host is worth its way: decided when a request arrives, by what is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from hybridplan.ledger.work.step import StepWork
from hybridplan.sim.fleet.host import HostTier, Load
from hybridplan.sim.fleet.link import Link, LinkSpeed, send
from hybridplan.sim.request import Request
from hybridplan.sim.time.clock import NS, Clock, Pass


@dataclass(frozen=True, slots=True)
class Loading:
    """A load under way and the tick at which it ends."""

    load: Load
    end: int


@dataclass(slots=True)
class HostLink:
    """A host tier and the link to it (``speed`` None: loads take no time).

    ``declined`` loads would have taken longer than computing.
    Computing is priced as one prefill of the tokens that the load saves, alone on the device.
    """

    tier: HostTier
    speed: LinkSpeed | None
    link: Link = field(default_factory=Link)
    taken: int = 0
    declined: int = 0

    def ask(self, request: Request, now: int, clock: Clock) -> Loading | None:
        """Begin a load if the host has more of the prompt and that is faster than computing it.

        Without a speed or a clock of seconds a load takes no time and is always taken.
        """
        load = self.tier.find(request)
        if load is None:
            return None
        if self.speed is None or clock.ticks_per_s < NS:
            self.link.moved_bytes += load.moved_bytes
            self.link.transfers += 1
            self.taken += 1
            return Loading(load, now)
        begin = max(self.link.free_at, now)
        ends = begin + self.speed.ticks(load.moved_bytes, clock.ticks_per_s)
        chunk = (load.device_tokens, load.hit_tokens - load.device_tokens)
        computing = sum(c.ticks for c in clock.passes([Pass(StepWork(chunks=[chunk]))]))
        if ends - now >= computing:
            self.declined += 1
            return None
        _, end = send((self.link,), self.speed, load.moved_bytes, now, clock.ticks_per_s)
        self.taken += 1
        return Loading(load, end)
