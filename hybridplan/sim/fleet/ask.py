"""A question about a fleet, in terms of what one replica is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hybridplan.errors import InputError
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.fleet.link import LinkSpeed
from hybridplan.sim.fleet.routers import RouterAsk
from hybridplan.sim.request import Request
from hybridplan.sim.run import SimulateAsk, clocked_requests
from hybridplan.sim.setup import EngineAsk, SglangFlags
from hybridplan.sim.time.answer import clock_of
from hybridplan.sim.time.clock import Clock
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.traces.trace import Trace

MOST_REPLICAS = 1024


@dataclass(frozen=True, slots=True)
class HostAsk:
    """A host tier of every replica: bytes of one rank, and its link (None: loads take no time).

    ``measured_on`` is the card whose calibration has the link, empty where the user gave it.
    """

    capacity_bytes: int
    speed: LinkSpeed | None = None
    measured_on: str = ""


@dataclass(frozen=True, slots=True)
class FleetAsk:
    """``base``, what one replica would be asked, to ``replicas`` engines alike.

    Of ``base`` its advice and its upper reading are not asked. ``decode_replicas`` above 0 makes
    the replicas prefillers with so many decoders behind them, and ``transfer`` one rank's link
    between them (None: a transfer takes no time). ``references`` False leaves out the replay of
    one replica with all the memory.
    """

    base: SimulateAsk
    replicas: int = 1
    router: RouterAsk = field(default_factory=RouterAsk)
    decode_replicas: int = 0
    transfer: LinkSpeed | None = None
    host: HostAsk | None = None
    references: bool = True

    def __post_init__(self) -> None:
        for name, count, least in (
            ("replicas", self.replicas, 1),
            ("decode replicas", self.decode_replicas, 0),
        ):
            if not least <= count <= MOST_REPLICAS:
                raise InputError(f"{count} {name}: give {least} to {MOST_REPLICAS}")
        if isinstance(self.engine.flags, SglangFlags):
            if self.decode_replicas:
                raise InputError(
                    "prefill and decode apart are replayed for vllm only; drop --decode-replicas"
                    " or use --engine vllm"
                )
            if self.host is not None:
                raise InputError(
                    "--host-gib is a tier behind vLLM's pool; SGLang's own is --hicache-ratio or"
                    " --hicache-size"
                )
        elif self.host is not None and self.engine.flags.options.prefix_caching is False:
            raise InputError(
                "--host-gib extends the prefix cache and --no-prefix-caching turns it off; drop one"
            )
        for flag, speed in (
            ("--transfer-gb-s", self.transfer),
            ("--host-gb-s", self.host.speed if self.host is not None else None),
        ):
            if speed is not None and self.clock() is None:
                raise InputError(
                    f"{flag} {speed.bytes_per_s / 1e9:g} gives bytes a time and this replay has no"
                    " clock; use --arrival timed or --calibration, or drop it"
                )
        if self.decode_replicas and self.engine.deployment.pp > 1:
            raise InputError(
                f"prefill and decode apart are replayed without pipeline stages; drop --pp"
                f" {self.engine.deployment.pp}"
            )
        if self.decode_replicas and self.engine.deployment.drafts:
            raise InputError("prefill and decode apart are replayed without drafts; drop --drafts")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the replicas, in order."""
        role = "prefill" if self.decode_replicas else "replica"
        return tuple(f"{role}-{index}" for index in range(self.replicas))

    @property
    def decoder_names(self) -> tuple[str, ...]:
        """Of the decode instances."""
        return tuple(f"decode-{index}" for index in range(self.decode_replicas))

    @property
    def gpus(self) -> int:
        """Ranks of all instances; a DCP rank is one of TP's."""
        deployment = self.engine.deployment
        return (self.replicas + self.decode_replicas) * deployment.tp * deployment.pp

    @property
    def engine(self) -> EngineAsk:
        """Of one replica."""
        return self.base.engine

    @property
    def trace(self) -> Trace:
        """What is replayed."""
        return self.base.trace

    @property
    def arrival(self) -> Arrival:
        """How requests reach the router."""
        return self.base.arrival

    @property
    def slo(self) -> Slo | None:
        """What latencies are asked for."""
        return self.base.timing.slo

    def requests(self) -> Iterable[Request]:
        """The trace from its start, on one clock."""
        return clocked_requests(self.trace, self.arrival, self.base.session_gap_s)

    def clock(self) -> Clock | None:
        """What steps take; None where nothing says so."""
        known = clock_of(self.base.timing, self.engine)
        if known is None and isinstance(self.arrival, Timed):
            return self.arrival.stand_in
        return known

    def at_rate(self) -> FleetAsk:
        """The question with its rate put into the arrival. Raises InputError where questions of
        time and arrivals do not go together."""
        timing, arrival = self.base.timing, self.arrival
        timing.check(arrival)
        if timing.rate is None or not isinstance(arrival, Timed):
            return self
        speed = timing.rate.of(self.requests())
        return replace(self, base=replace(self.base, arrival=replace(arrival, speed=speed)))

    @property
    def independent(self) -> bool:
        """Whether what a replica does depends on no other: it can be replayed alone."""
        if self.decode_replicas or self.host is not None:
            return False
        if self.replicas == 1:
            return True
        if not isinstance(self.arrival, Timed):
            # One at a time, a replica's clock would stand still while another one works.
            return self.arrival == Closed(1) and self.clock() is None
        if self.router.kind not in ("round-robin", "session"):
            return False
        # A turn that waits for one elsewhere is no matter of one replica.
        return self.router.kind == "session" or self.trace.info.sessions.value == "none"
