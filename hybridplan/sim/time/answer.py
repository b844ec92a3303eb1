"""The times of a replay put together, and the replays that only time asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError
from hybridplan.ledger.calibration import card_of
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.work.features import FEATURES
from hybridplan.sim.arrival import Arrival, Timed
from hybridplan.sim.replay import Engine, Progress, Replay
from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.setup import EngineAsk, VllmFlags, build
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.capacity import find_rate
from hybridplan.sim.time.clock import Clock, StepClock
from hybridplan.sim.time.load import flop_dtype, step_clock
from hybridplan.sim.time.result import (
    Capacity,
    ClockInfo,
    Probe,
    TimeResult,
    Utilisation,
    Worth,
)
from hybridplan.sim.time.server import Server
from hybridplan.sim.time.stopwatch import Stopwatch

UNLIKE = "no two prompts alike"
Watched = Callable[[str], Callable[[Progress], None]]
"""A stage's name to what is told of its progress."""


class Served(Protocol):
    """What times need to know of an engine: the model, and the ranks it is spread over."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def deployment(self) -> Deployment: ...


def clock_of(ask: TimeAsk, engine: Served) -> StepClock | None:
    """The clock of a calibration for that engine's model and deployment; None without one."""
    if ask.calibration is None:
        return None
    return step_clock(ask.calibration, engine.spec, engine.deployment)


@dataclass(frozen=True, slots=True)
class Replays:
    """What it takes to run the trace again: the engine, its requests and how they arrive."""

    ask: TimeAsk
    engine: EngineAsk
    arrival: Arrival
    requests: Callable[[], Iterable[Request]]
    watched: Watched

    def run(
        self,
        stage: str,
        engine: Engine,
        clock: Clock | None,
        arrival: Arrival,
        requests: Iterable[Request],
    ) -> tuple[Stopwatch, Server]:
        """One replay, timed."""
        found = Stopwatch(self.ask.slo)
        replay = Replay(
            requests, engine, arrival=arrival, clock=clock, progress=self.watched(stage),
            progress_every=50,
        )  # fmt: skip
        for outcome in replay:
            found.see(outcome)
        assert replay.server is not None
        return found, replay.server

    def probe(self, speed: float) -> Probe:
        """The trace at a speed of its clock."""
        assert isinstance(self.arrival, Timed)
        arrival = replace(self.arrival, speed=speed)
        engine = build(self.engine).engine(losses=False)
        clock = clock_of(self.ask, self.engine)
        found, _ = self.run(f"rate x{speed:g}", engine, clock, arrival, self.requests())
        return probe_of(speed, found)

    def capacity(self, seen: Stopwatch) -> Capacity:
        """The highest rate that keeps the SLO; ``seen`` is the main replay."""
        assert isinstance(self.arrival, Timed)
        assert self.ask.slo is not None
        speed = self.arrival.speed
        return find_rate(
            self.probe, self.ask.slo, start=speed, tolerance=self.ask.tolerance,
            seen=probe_of(speed, seen),
        )  # fmt: skip

    def worth(self, seen: Stopwatch, server: Server) -> Worth | None:
        """The replay without hits beside the one that was ``seen``; None where nothing was hit."""
        return worth_of(self.engine, seen, server, self._replay_without_hits)

    def _replay_without_hits(self) -> tuple[str, Stopwatch, Server]:
        baseline, engine, requests = self.without_hits()
        clock = clock_of(self.ask, self.engine)
        stage = "without prefix caching"
        return baseline, *self.run(stage, engine, clock, self.arrival, requests)

    def without_hits(self) -> tuple[str, Engine, Iterable[Request]]:
        """The engine of ``hitless`` and its requests."""
        return hitless(self.engine, self.requests)


def hitless(
    ask: EngineAsk, requests: Callable[[], Iterable[Request]]
) -> tuple[str, Engine, Iterable[Request]]:
    """An engine and requests that give no hits: vLLM's own switch, or no two prompts alike."""
    if isinstance(ask.flags, VllmFlags):
        options = replace(ask.flags.options, prefix_caching=False, prefix_match_unit=None)
        flags = replace(ask.flags, options=options, policy="engine", retention_interval=0)
        try:
            engine = build(replace(ask, flags=flags)).engine(losses=False)
        except HybridplanError:
            pass
        else:
            return "--no-prefix-caching", engine, requests()
    return UNLIKE, build(ask).engine(losses=False), unlike(requests())


def worth_of(
    served: Served,
    seen: Stopwatch,
    server: Server,
    without_hits: Callable[[], tuple[str, Stopwatch, Server]],
) -> Worth | None:
    """What hits were worth in the replay that was ``seen``; None where nothing was hit.

    ``without_hits`` replays the same requests without any: how that was done, and its times.
    """
    latencies = seen.latencies()
    if not seen.hit_tokens or latencies is None:
        return None
    baseline, found, other = without_hits()
    without = found.latencies()
    if without is None:
        return None
    ranks = _ranks(served)
    unit = server.clock.ticks_per_s
    prefill_s = seen.hit_ticks / unit * ranks
    return Worth(
        baseline=baseline,
        latencies=without,
        span_s=found.span_s,
        gpu_s=other.busy / unit * ranks,
        saved_gpu_s=(other.busy - server.busy) / unit * ranks,
        saved_ttft_s=without.ttft.mean_s - latencies.ttft.mean_s,
        prefill_gpu_s=prefill_s,
        ms_per_1000_hit_tokens=1e6 * prefill_s / seen.hit_tokens,
    )


def unlike(requests: Iterable[Request]) -> Iterator[Request]:
    """The same requests with nothing known of their tokens, so that none is ever a hit."""
    for request in requests:
        yield replace(request, prompt=Prompt(request.prompt.length_tokens), sequence=None)


def probe_of(speed: float, found: Stopwatch) -> Probe:
    """What a search for a rate keeps of a replay."""
    attained, latencies = found.attained(), found.latencies()
    assert attained is not None
    return Probe(
        speed=speed,
        rate_per_s=found.offered_per_s or 0.0,
        share_met=attained.share_met,
        kept=attained.kept,
        ttft_p99_s=latencies.ttft.p99_s if latencies else None,
        tpot_p99_s=latencies.tpot.p99_s if latencies and latencies.tpot else None,
    )


def time_result(
    ask: TimeAsk,
    engine: Served,
    arrival: Arrival,
    found: Stopwatch,
    server: Server,
    *,
    worth: Worth | None = None,
    capacity: Capacity | None = None,
) -> TimeResult:
    """Everything the replay says of time."""
    timed = arrival if isinstance(arrival, Timed) else None
    return TimeResult(
        clock=clock_info(ask, arrival),
        speed=timed.speed if timed else 1.0,
        offered_per_s=found.offered_per_s if timed else None,
        span_s=found.span_s,
        requests_per_s=found.per_s(found.requests),
        prompt_tokens_per_s=found.per_s(found.prompt_tokens),
        output_tokens_per_s=found.per_s(found.output_tokens),
        latencies=found.latencies(),
        held_back=found.held_back,
        held_back_s=found.held_back_s,
        utilisation=_utilisation(engine, found, server),
        attained=found.attained(),
        worth=worth,
        capacity=capacity,
    )


def clock_info(ask: TimeAsk, arrival: Arrival) -> ClockInfo:
    """Where the times of a question come from."""
    made = ask.calibration
    if made is None:
        return ClockInfo(str(arrival), "assumed", "", "", {}, None, None)
    steps = {name: c for name, c in made.constants.items() if name.startswith("step.")}
    return ClockInfo(
        name=ask.calibration_name,
        how="assumed" if made.assumed else "measured",
        card=made.card,
        model=made.model,
        constants=steps,
        mean_error=made.mean_error,
        worst_error=made.worst_error,
    )


def _utilisation(engine: Served, found: Stopwatch, server: Server) -> Utilisation | None:
    """None for the stand-in, which knows nothing of bytes, and where nothing ran."""
    clock, spent = server.clock, server.spent
    stages = engine.deployment.pp
    if not isinstance(clock, StepClock) or not server.busy or found.span_s <= 0:
        return None
    busy_s = server.busy / clock.ticks_per_s
    # With steps in flight one more ends after the last token, whose work is thrown away.
    ran_s = server.ran_until / clock.ticks_per_s - (found.first_sent_s or 0.0)
    moved = spent.bytes // stages
    flop = (spent.dense_flop + spent.attention_flop + spent.scan_flop) // stages
    gpu = card_of(clock.calibration)
    bytes_per_s, flop_per_s = moved / busy_s, flop / busy_s
    rate = gpu.flops_per_s.get(flop_dtype(engine.spec)) if gpu else None
    return Utilisation(
        busy_s=busy_s,
        busy_share=busy_s / max(found.span_s, ran_s),
        gpu_s=busy_s * _ranks(engine),
        ranks=_ranks(engine),
        step_shares={
            name: amount * unit / server.busy
            for name, amount, unit in zip(FEATURES, spent, clock.unit_ticks, strict=True)
        },
        bytes=moved,
        flop=flop,
        bytes_per_s=bytes_per_s,
        flop_per_s=flop_per_s,
        bandwidth_share=bytes_per_s / gpu.bandwidth_bytes_per_s if gpu else None,
        flop_share=flop_per_s / rate if rate else None,
    )


def _ranks(engine: Served) -> int:
    return engine.deployment.tp * engine.deployment.pp
