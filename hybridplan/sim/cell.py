"""One configuration over one trace: the row a comparison prints and a sweep stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from hybridplan.config.find import load
from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.calibration import read_calibration
from hybridplan.sim.arrival import Timed, parse_arrival, parse_rate
from hybridplan.sim.marconi.replayed import ReplayedMarconi
from hybridplan.sim.outcome import Summary
from hybridplan.sim.prepared import Prepared, Requests, open_settings_trace, prepare, wanted
from hybridplan.sim.replay import Engine, Progress, Replay
from hybridplan.sim.request import Request
from hybridplan.sim.run import clocked_requests
from hybridplan.sim.settings import Settings
from hybridplan.sim.sglang.replayed import ReplayedSglang
from hybridplan.sim.time.answer import clock_of, time_result, worth_of
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.clock import StepClock
from hybridplan.sim.time.load import assumptions as clock_assumptions
from hybridplan.sim.time.load import flop_dtype
from hybridplan.sim.time.result import TimeResult
from hybridplan.sim.time.server import Server
from hybridplan.sim.time.slo import Slo
from hybridplan.sim.time.stopwatch import Stopwatch
from hybridplan.sim.vllm.keys import Reading


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy did with a trace. Tokens are prompt tokens of the requests served.

    ``upper_hit_tokens`` is the other reading where the trace is too coarse for the block
    (``exact`` False), None where there is none or it was not asked for. ``lost`` gives tokens by
    cause and sums to ceiling - hit. ``states_kept`` counts states over the whole replay,
    ``states_hit`` those that served a hit at least once. ``memory_bytes`` None: unlimited.
    ``pool`` says what the memory holds, ``evicted`` what ``evictions`` counts. ``held_bytes`` can
    be hit when the replay ends. Seconds exist with timed arrival or a calibration, those from
    ``ttft_p50_s`` on with a calibration only: as in ``sim.time.result``, and ``busy_s`` the time in
    steps, ``spared_s`` what the hits' own prefill would have added to it, both on one rank.
    """

    policy: str
    rules: str
    requests: int
    refused: int
    requests_hit: int
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    kv_hit_tokens: int
    exact: bool
    upper_hit_tokens: int | None
    ceiling_tokens: int | None
    lost: Mapping[str, int]
    has_states: bool
    states_kept: int
    states_hit: int
    bytes_per_state: int
    memory_bytes: int | None
    pool: str
    num_blocks: int | None
    bytes_per_block: int
    block_tokens: int
    state_slots: int | None
    hit_alignment_tokens: int
    held_bytes: int
    evictions: int
    evicted: str
    steps: int
    peak_running: int
    peak_waiting: int
    preemptions: int
    recomputed_tokens: int
    waited_s: float | None
    elapsed_s: float | None
    assumptions: tuple[str, ...]
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    ttft_mean_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None
    busy_s: float | None = None
    spared_s: float | None = None

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Row:
        """The row a JSON document was made of; one written before there were times has none. Raises
        KeyError for a missing field."""
        values = {
            field.name: document[field.name]
            for field in fields(cls)
            if field.default is MISSING or field.name in document
        }
        values["assumptions"] = tuple(values["assumptions"])
        return cls(**values)


def run_cell(
    settings: Settings,
    *,
    spec: ModelSpec | None = None,
    requests: Requests | None = None,
    bounds: bool = False,
    losses: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Row:
    """Replay one configuration.

    Args:
        settings: canonical ones (``settings.canonical``), with a model and a trace.
        spec, requests: the model and the trace, where the caller has them already.
        bounds: replay again for the upper reading where the trace is coarser than the block.
        losses: track ceiling and causes.

    Raises InputError and RefusalError as the engine's flags and memory demand.
    """
    return replay_cell(
        settings, spec=spec, requests=requests, bounds=bounds, losses=losses, progress=progress,
        baseline=False,
    ).row  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answered:
    """A configuration's row and what ``simulate`` says of its time, None where neither a
    calibration nor an SLO asks. ``steps_ahead``: steps in flight while the next one is planned,
    None without a calibration."""

    row: Row
    time: TimeResult | None
    steps_ahead: int | None


def replay_cell(
    settings: Settings,
    *,
    spec: ModelSpec | None = None,
    requests: Requests | None = None,
    bounds: bool = False,
    losses: bool = True,
    progress: Callable[[Progress], None] | None = None,
    slo: Slo | None = None,
    baseline: bool = True,
) -> Answered:
    """As ``run_cell``, with the times. ``slo`` judges them; ``baseline`` replays again without
    hits where there is a calibration, to tell what they are worth."""
    spec = spec or load(str(wanted(settings, "model")))
    prepared = prepare(settings, spec)
    arrival = parse_arrival(str(settings["arrival"]))
    if requests is None:
        trace = open_settings_trace(settings)
        gap = settings.get("session_gap")
        gap_s = float(gap) if gap is not None else None

        def requests() -> Iterable[Request]:
            return clocked_requests(trace, arrival, gap_s)

    timing = time_ask(settings, spec, slo)
    timing.check(arrival)
    if timing.rate is not None and isinstance(arrival, Timed):
        arrival = replace(arrival, speed=timing.rate.of(requests()))
    clock = clock_of(timing, prepared)

    def replayed(
        engine: Engine, stream: Iterable[Request], slo: Slo | None = None
    ) -> tuple[Replay, Stopwatch]:
        replay = Replay(stream, engine, arrival=arrival, clock=clock, progress=progress)
        watch = Stopwatch(slo, clock)
        for outcome in replay:
            watch.see(outcome)
        return replay, watch

    replay, watch = replayed(prepared.make(Reading.LOWER, losses), requests(), slo)
    summary = replay.summary()
    upper = None
    if bounds and prepared.reads_both and not summary.exact_identity:
        again, _ = replayed(prepared.make(Reading.UPPER, False), requests())
        upper = again.summary().hit_tokens
    row = _row(prepared, replay.engine, summary, upper)
    server = replay.server
    if server is None or (clock is None and slo is None):
        return Answered(row, None, None)

    def without_hits() -> tuple[str, Stopwatch, Server]:
        how, engine, stream = prepared.without_hits(requests)
        other, found = replayed(engine, stream)
        assert other.server is not None
        return how, found, other.server

    worth = None
    if clock is not None:
        row = _timed(row, clock, spec, replay, watch)
        if baseline:
            worth = worth_of(prepared, watch, server, without_hits)
    found = time_result(timing, prepared, arrival, watch, server, worth=worth)
    return Answered(row, found, replay.engine.steps_in_flight if clock is not None else None)


def time_ask(settings: Settings, spec: ModelSpec, slo: Slo | None = None) -> TimeAsk:
    """What a configuration asks of time. Raises InputError for what is no calibration or rate."""
    name, rate = settings.get("calibration"), settings.get("rate")
    return TimeAsk(
        calibration=read_calibration(str(name), flop_dtype(spec)) if name is not None else None,
        calibration_name=str(name or ""),
        rate=parse_rate(str(rate)) if rate is not None else None,
        slo=slo,
    )


def _timed(row: Row, clock: StepClock, spec: ModelSpec, replay: Replay, watch: Stopwatch) -> Row:
    """The row with its times."""
    found, server = watch.latencies(), replay.server
    said = clock_assumptions(clock, spec, replay.engine)
    row = replace(row, assumptions=(*row.assumptions, *said))
    if found is None or server is None:
        return row
    unit = clock.ticks_per_s
    return replace(
        row,
        ttft_p50_s=found.ttft.p50_s,
        ttft_p99_s=found.ttft.p99_s,
        ttft_mean_s=found.ttft.mean_s,
        tpot_p50_s=found.tpot.p50_s if found.tpot else None,
        tpot_p99_s=found.tpot.p99_s if found.tpot else None,
        busy_s=server.busy / unit,
        spared_s=watch.hit_ticks / unit,
    )


def _row(prepared: Prepared, engine: Engine, summary: Summary, upper: int | None) -> Row:
    use = summary.use
    held = use.cached_blocks * prepared.bytes_per_block
    evicted = "blocks"
    if isinstance(engine, ReplayedSglang):
        held += engine.cache.tree.states_evictable * use.states.bytes_per_state
        evicted = "nodes"
    elif isinstance(engine, ReplayedMarconi):
        held, evicted = engine.totals().bytes, "rounds"
    said = [line for line in summary.assumptions if not line.startswith("arrival ")]
    return Row(
        policy=prepared.policy.name,
        rules=prepared.rules,
        requests=summary.requests,
        refused=summary.refused,
        requests_hit=summary.requests_hit,
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        hit_tokens=summary.hit_tokens,
        kv_hit_tokens=summary.kv_hit_tokens,
        exact=summary.exact_identity,
        upper_hit_tokens=upper,
        ceiling_tokens=summary.ceiling_tokens,
        lost={cause.value: tokens for cause, tokens in summary.lost},
        has_states=prepared.has_states,
        states_kept=use.states.kept,
        states_hit=use.states.ever_hit,
        bytes_per_state=use.states.bytes_per_state,
        memory_bytes=prepared.memory_bytes,
        pool=prepared.pool,
        num_blocks=prepared.num_blocks,
        bytes_per_block=prepared.bytes_per_block,
        block_tokens=prepared.block_tokens,
        state_slots=prepared.state_slots,
        hit_alignment_tokens=prepared.hit_alignment_tokens,
        held_bytes=held,
        evictions=use.evictions,
        evicted=evicted,
        steps=summary.steps,
        peak_running=summary.peak_running,
        peak_waiting=summary.peak_waiting,
        preemptions=summary.preemptions,
        recomputed_tokens=summary.recomputed_tokens,
        waited_s=summary.waited_s,
        elapsed_s=summary.elapsed_s,
        assumptions=(*prepared.assumptions, *said),
    )
