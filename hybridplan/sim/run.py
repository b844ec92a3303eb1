"""One question, answered: replay the trace, read it both ways where needed, look for better flags.

Nothing is printed here. Ctrl-C ends the stage it falls into; what was found until then is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from hybridplan.errors import InputError
from hybridplan.sim.advice import Head, Watch, advise
from hybridplan.sim.arrival import Arrival, Closed, Timed
from hybridplan.sim.events import EventSink
from hybridplan.sim.outcome import RequestOutcome, Summary
from hybridplan.sim.placing import place_sessions
from hybridplan.sim.replay import Progress, Replay
from hybridplan.sim.request import Request
from hybridplan.sim.result import (
    SCHEMA_VERSION,
    Advice,
    Queue,
    Refused,
    Setup,
    SimulateResult,
    States,
    Use,
    count_refused,
    hits_of,
    losses_of,
)
from hybridplan.sim.setup import Built, EngineAsk, build
from hybridplan.sim.time.answer import Replays, clock_of, time_result
from hybridplan.sim.time.ask import TimeAsk
from hybridplan.sim.time.load import assumptions as clock_assumptions
from hybridplan.sim.time.load import other_card
from hybridplan.sim.time.result import Capacity, TimeResult, Worth
from hybridplan.sim.time.stopwatch import Stopwatch
from hybridplan.sim.timeline import Timeline
from hybridplan.sim.traces.trace import Trace
from hybridplan.sim.vllm.keys import Reading

AdviceMode = Literal["auto", "full", "off"]


@dataclass(frozen=True, slots=True)
class SimulateAsk:
    """A trace through an engine.

    ``session_gap_s`` places sessions that each have a clock of their own on the common one of timed
    arrival, ``bounds`` asks for the upper reading where the trace cannot tell, ``advice`` "auto"
    re-runs a head of long traces and "full" always the whole. ``causes`` False leaves out ceiling,
    causes and advice, whose memory grows with the trace's distinct content. ``timing`` says what
    steps take and what is asked of time.
    """

    engine: EngineAsk
    trace: Trace
    arrival: Arrival = Closed(1)  # noqa: RUF009
    session_gap_s: float | None = None
    bounds: bool = True
    advice: AdviceMode = "auto"
    causes: bool = True
    timing: TimeAsk = TimeAsk()  # noqa: RUF009


def run(
    ask: SimulateAsk,
    *,
    on_outcome: Callable[[RequestOutcome], None] | None = None,
    events: EventSink | None = None,
    watch: Watch | None = None,
) -> SimulateResult:
    """Answer one question.

    Args:
        ask: trace, engine and arrival.
        on_outcome: receives every outcome of the main replay as it ends.
        events: receives the cache's events of the main replay.
        watch: called after every finished request of any stage.
    """
    ask = at_rate(ask)
    built = build(ask.engine)
    main = _Main(ask, built, on_outcome, events, watch)
    interrupted = None if main.run() else "replay"
    summary = main.replay.summary(interrupted=interrupted is not None)
    upper: Summary | None = None
    advice: Advice | None = None
    if interrupted is None and ask.bounds and built.reads_both and not summary.exact_identity:
        upper = _upper(ask, built, watch)
        interrupted = None if upper is not None else "upper bound"
    if interrupted is None and ask.advice != "off" and summary.ceiling_tokens:
        clock = partial(clock_of, ask.timing)
        advice, whole = advise(
            ask.engine, ask.arrival, summary, main.head, watch, main.requests, clock
        )
        interrupted = None if whole else "advice"
    timed, cut = main.time(watch, whole=interrupted is None)
    result = _result(ask, built.setup, main, summary, upper, advice, interrupted or cut)
    return replace(result, time=timed)


def at_rate(ask: SimulateAsk) -> SimulateAsk:
    """The question with its rate put into the arrival."""
    ask.timing.check(ask.arrival)
    rate = ask.timing.rate
    if rate is None or not isinstance(ask.arrival, Timed):
        return ask
    speed = rate.of(clocked_requests(ask.trace, ask.arrival, ask.session_gap_s))
    return replace(ask, arrival=replace(ask.arrival, speed=speed))


class _Main:
    """The main replay and what is noted beside it."""

    def __init__(
        self,
        ask: SimulateAsk,
        built: Built,
        on_outcome: Callable[[RequestOutcome], None] | None,
        events: EventSink | None,
        watch: Watch | None,
    ) -> None:
        self._ask = ask
        self.clock = clock_of(ask.timing, ask.engine)
        self._stopwatch: Stopwatch | None = None
        if self.clock is not None or ask.timing.slo is not None:
            self._stopwatch = Stopwatch(ask.timing.slo, self.clock)
        self._on_outcome = on_outcome
        self._watch = watch
        self.last: Progress | None = None
        self.refused: dict[str, Refused] = {}
        self.head = Head(built.setup.work_tokens, whole=ask.advice == "full")
        engine = built.engine(losses=ask.causes, events=events)
        self.timeline = Timeline(engine)
        stream: Iterable[Request] = self.requests()
        if ask.advice != "off" and ask.causes:
            stream = self.head.filled(stream)
        self.replay = Replay(
            stream, engine, arrival=ask.arrival, clock=self.clock, progress=self._see,
            progress_every=1,
        )  # fmt: skip

    def requests(self) -> Iterator[Request]:
        """The trace from its start, on one clock."""
        ask = self._ask
        return iter(clocked_requests(ask.trace, ask.arrival, ask.session_gap_s))

    def run(self) -> bool:
        """False when Ctrl-C ended it."""
        # One at a time, later requests cannot change what the first ones gave.
        notes_head = self._ask.arrival == Closed(1)
        try:
            for outcome in self.replay:
                if notes_head:
                    self.head.see(outcome)
                if self._stopwatch is not None:
                    self._stopwatch.see(outcome)
                if outcome.refused is not None:
                    one = Refused(outcome.refused, 1, outcome.request_id)
                    count_refused(self.refused, one)
                if self._on_outcome is not None:
                    self._on_outcome(outcome)
        except KeyboardInterrupt:
            return False
        return True

    def time(self, watch: Watch | None, *, whole: bool) -> tuple[TimeResult | None, str | None]:
        """What the replay says of time, and what Ctrl-C cut short; no more replays if not whole."""
        ask, found, server = self._ask, self._stopwatch, self.replay.server
        if found is None or server is None:
            return None, None

        def watched(stage: str) -> Callable[[Progress], None]:
            return lambda progress: watch(stage, progress, None) if watch is not None else None

        again = Replays(ask.timing, ask.engine, ask.arrival, self.requests, watched)
        worth: Worth | None = None
        capacity: Capacity | None = None
        stage = None
        try:
            if whole and ask.timing.baseline and self.clock is not None:
                stage = "baseline"
                worth = again.worth(found, server)
            if whole and ask.timing.find_rate:
                stage = "rate search"
                capacity = again.capacity(found)
            stage = None
        except KeyboardInterrupt:
            pass
        answer = time_result(
            ask.timing, ask.engine, ask.arrival, found, server, worth=worth, capacity=capacity
        )
        return answer, stage

    def _see(self, progress: Progress) -> None:
        self.last = progress
        self.timeline.see(progress)
        if self._watch is not None:
            self._watch("replay", progress, None)


def clocked_requests(
    trace: Trace, arrival: Arrival, session_gap_s: float | None
) -> Iterable[Request]:
    """The trace from its start, on the clock ``arrival`` needs.

    Raises InputError where the trace has no such clock, or the gap has nothing to place.
    """
    stream = trace.requests()
    info = trace.info
    if session_gap_s is not None and (
        not isinstance(arrival, Timed) or info.clock_scope.value != "session"
    ):
        raise InputError(
            "--session-gap places sessions that each have a clock of their own, for timed arrival;"
            " drop it"
        )
    if not isinstance(arrival, Timed):
        return stream
    if not info.has_clock:
        raise InputError(
            f"--arrival timed needs arrival times and {info.path} has none; use closed:N or"
            " sequential"
        )
    if info.clock_scope.value != "session":
        return stream
    if session_gap_s is None:
        raise InputError(
            f"every session of {info.path} has its own clock, so timed arrival needs to know how"
            " far apart sessions start: --session-gap SECONDS (0: all at once), or use closed:N"
        )
    return place_sessions(stream, session_gap_s)


def _upper(ask: SimulateAsk, built: Built, watch: Watch | None) -> Summary | None:
    """The same replay with the other reading; None when Ctrl-C ended it."""

    def see(progress: Progress) -> None:
        if watch is not None:
            watch("upper bound", progress, None)

    engine = built.engine(Reading.UPPER, losses=False)
    requests = clocked_requests(ask.trace, ask.arrival, ask.session_gap_s)
    clock = clock_of(ask.timing, ask.engine)
    replay = Replay(
        requests, engine, arrival=ask.arrival, clock=clock, progress=see, progress_every=1
    )
    try:
        for _ in replay:
            pass
    except KeyboardInterrupt:
        return None
    return replay.summary()


def _result(
    ask: SimulateAsk,
    setup: Setup,
    main: _Main,
    summary: Summary,
    upper: Summary | None,
    advice: Advice | None,
    interrupted: str | None,
) -> SimulateResult:
    use = summary.use
    held_bytes = use.cached_blocks * setup.bytes_per_block
    if setup.rules.startswith("sglang") and not use.evictions:
        held_bytes += use.states.kept_bytes
    assumptions = [*setup.assumptions, f"arrival {summary.arrival}"]
    if isinstance(ask.arrival, Timed) and ask.session_gap_s is not None:
        assumptions.append(f"sessions start {ask.session_gap_s:g} s apart, in trace order")
    if main.clock is not None:
        assumptions += clock_assumptions(main.clock, ask.engine.spec, main.replay.engine)
        pool_gpu = setup.memory.gpu if setup.memory else None
        assumptions += other_card(main.clock.calibration, pool_gpu)
    elif isinstance(ask.arrival, Timed) and ask.arrival == Timed(speed=ask.arrival.speed):
        assumptions.append(
            "step times stand in for a device; timed:TOKENS_PER_S:STEP_S sets them, --calibration"
            " FILE or preset:CARD counts each step's work"
        )
    assumptions += [said for said in summary.assumptions if not said.startswith("arrival ")]
    if ask.trace.info.unit_tokens is None:
        assumptions.append("the trace has no prefix ids, so every prompt counts as new")
    states = None
    if setup.has_states:
        states = States(
            kept=use.states.kept,
            ever_hit=use.states.ever_hit,
            useless=use.states.useless,
            bytes_per_state=use.states.bytes_per_state,
            kept_bytes=use.states.kept_bytes,
        )
    return SimulateResult(
        schema_version=SCHEMA_VERSION,
        trace=ask.trace.info,
        setup=setup,
        arrival=summary.arrival,
        requests=summary.requests,
        refused=tuple(main.refused.values()),
        requests_hit=summary.requests_hit,
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        hits=hits_of(summary, upper),
        lost_tokens=summary.lost_tokens,
        losses=losses_of(summary),
        states=states,
        use=tuple(
            Use(
                group.kind,
                group.name,
                group.peak_blocks,
                round(group.mean_blocks, 3),
                group.allocated_blocks,
            )
            for group in use.groups
        ),
        num_blocks=setup.num_blocks,
        held_blocks=use.cached_blocks,
        held_bytes=held_bytes,
        evictions=use.evictions,
        queue=Queue(
            requests_waited=summary.requests_waited,
            waited_steps=summary.waited_steps,
            waited_s=summary.waited_s,
            elapsed_s=summary.elapsed_s,
            steps=summary.steps,
            peak_running=summary.peak_running,
            peak_waiting=summary.peak_waiting,
            preemptions=summary.preemptions,
            recomputed_tokens=summary.recomputed_tokens,
        ),
        timeline=main.timeline.points(main.last),
        advice=advice,
        assumptions=tuple(assumptions),
        partial=summary.partial,
        interrupted=interrupted,
    )
