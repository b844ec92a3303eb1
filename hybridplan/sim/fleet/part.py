"""What is kept of one replica's requests: sums, and what each of them waited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hybridplan.sim.outcome import RequestOutcome, Summary
from hybridplan.sim.replay import Engine
from hybridplan.sim.result import Refused, count_refused
from hybridplan.sim.time.server import Server
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.time.stopwatch import Stopwatch
from hybridplan.sim.totals import Totals


def joined(watches: Iterable[Stopwatch], slo: Slo | None) -> Stopwatch:
    """The stopwatches of several replicas as one."""
    whole = Stopwatch(slo)
    for watch in watches:
        whole.join(watch)
    return whole


@dataclass(frozen=True, slots=True)
class Part:
    """A replica's share of a fleet's answer; ``watch`` has its times where there is a clock."""

    name: str
    role: str
    summary: Summary
    watch: Stopwatch
    refused: tuple[Refused, ...]
    host_tokens: int = 0
    believed_tokens: int = 0
    busy_s: float | None = None


@dataclass(slots=True)
class Collector:
    """Adds up one replica's outcomes."""

    watch: Stopwatch
    totals: Totals = field(default_factory=Totals)
    refused: dict[str, Refused] = field(default_factory=dict)
    host_tokens: int = 0
    believed_tokens: int = 0

    def add(self, outcome: RequestOutcome) -> None:
        """One request that ended, or was refused."""
        self.totals.add(outcome)
        self.watch.see(outcome)
        if outcome.refused is not None:
            count_refused(self.refused, Refused(outcome.refused, 1, outcome.request_id))

    def part(
        self, name: str, role: str, engine: Engine, arrival: str, server: Server | None
    ) -> Part:
        """The share of a replica; ``server`` None where no clock of seconds ran."""
        summary = self.totals.summary(
            engine,
            arrival=arrival,
            elapsed_s=server.now_s if server is not None else None,
            partial=False,
            interrupted=False,
        )
        return Part(
            name,
            role,
            summary,
            self.watch,
            tuple(self.refused.values()),
            self.host_tokens,
            self.believed_tokens,
            server.busy / server.clock.ticks_per_s if server is not None else None,
        )
