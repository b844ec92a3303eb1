"""One question about a fleet, answered. Nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridplan.errors import InputError
from hybridplan.sim.advice import Watch
from hybridplan.sim.arrival import Timed
from hybridplan.sim.fleet.alone import OnOutcome, parts_alone
from hybridplan.sim.fleet.ask import FleetAsk
from hybridplan.sim.fleet.part import Part, joined
from hybridplan.sim.fleet.reference import one_large_replica
from hybridplan.sim.fleet.result import (
    SCHEMA_VERSION,
    FleetLoss,
    FleetResult,
    Imbalance,
    Reference,
    ReplicaResult,
)
from hybridplan.sim.fleet.said import arrival_words, assumptions_of
from hybridplan.sim.fleet.tiers import host_result, transfer_result
from hybridplan.sim.fleet.together import Together, run_together
from hybridplan.sim.outcome import LossCause, RequestOutcome
from hybridplan.sim.replay import Progress
from hybridplan.sim.result import Refused, count_refused
from hybridplan.sim.setup import build
from hybridplan.sim.time.answer import clock_info
from hybridplan.sim.time.stopwatch import Stopwatch

OTHER_REPLICA = "other_replica"


def run_fleet(
    ask: FleetAsk,
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    on_outcome: OnOutcome | None = None,
    watch: Watch | None = None,
) -> FleetResult:
    """Answer one question.

    Args:
        ask: replicas, router, trace, engine and arrival.
        jobs, scheduler: processes or a cluster for replicas that do not depend on each other; the
            answer is the same.
        on_outcome: receives a replica's number and every outcome, replica after replica where
            they are independent, and as they end where not. One process only.
        watch: called after every finished request, in one process.

    Ctrl-C ends replicas that depend on each other with what was answered until then, and leaves out
    the reference; otherwise it is raised.

    Raises InputError for ``jobs`` where replicas depend on each other, beside what the engine
    refuses.
    """
    ask = ask.at_rate()
    seen = on_outcome if watch is None else _watched(ask, watch, on_outcome)
    built = build(ask.engine)
    together: Together | None = None
    interrupted: str | None = None
    if ask.independent:
        parts, ceiling = parts_alone(ask, jobs, scheduler, seen)
    else:
        if jobs != 1 or scheduler is not None:
            flag = "--jobs" if scheduler is None else "--scheduler"
            raise InputError(
                f"{flag} {scheduler or jobs}: these replicas depend on each other ({_why(ask)}), so"
                f" they run in one process; drop {flag}, or use --router session with timed"
                " arrival, or sequential arrival"
            )
        together = run_together(ask, built, seen)
        parts, ceiling = together.parts, together.ceiling_tokens
        interrupted = "replay" if together.interrupted else None
    references: tuple[Reference, ...] = ()
    if ask.references and ask.replicas > 1 and interrupted is None:
        try:
            references = (one_large_replica(ask, built.setup),)
        except KeyboardInterrupt:
            interrupted = "replay of one pool"
    ends = [part.watch.last_token_s for part in parts if part.watch.requests]
    elapsed_s = max(ends) if ends else None
    times = joined((part.watch for part in parts), ask.slo)
    span_s = times.span_s if times.requests else None
    if together is not None and together.decoders:
        decoders = tuple(replica_of(part, span_s) for part in together.decoders)
    else:
        decoders = ()
    replicas = tuple(replica_of(part, span_s) for part in parts)
    total = total_of(replicas, times)
    router_believes = ask.router.kind == "prefix-aware"
    return FleetResult(
        schema_version=SCHEMA_VERSION,
        trace=ask.trace.info,
        setup=built.setup,
        arrival=arrival_words(ask),
        router=ask.router,
        replicas=replicas,
        decoders=decoders,
        total=total,
        imbalance=_imbalance(replicas),
        ceiling_tokens=ceiling,
        losses=_losses(parts, ceiling, has_host=ask.host is not None),
        believed_tokens=sum(part.believed_tokens for part in parts) if router_believes else None,
        references=references,
        clock=clock_info(ask.base.timing, ask.arrival) if ask.clock() is not None else None,
        elapsed_s=elapsed_s,
        requests_per_s=times.per_s(times.requests) if times.requests else None,
        output_tokens_per_s=times.per_s(times.output_tokens) if times.requests else None,
        gpus=ask.gpus,
        attained=times.attained() if times.requests else None,
        host=host_result(ask, together, span_s) if together is not None else None,
        transfer=transfer_result(ask, built, together, span_s) if together is not None else None,
        refused=_refused(parts),
        assumptions=assumptions_of(ask, built.setup, parts),
        interrupted=interrupted,
    )


def _watched(ask: FleetAsk, watch: Watch, on_outcome: OnOutcome | None) -> OnOutcome:
    """Tells ``watch`` how many requests have ended in the whole fleet."""
    stage = f"{ask.router} x{ask.replicas}"
    finished = prompt_tokens = hit_tokens = 0

    def see(replica: int, outcome: RequestOutcome) -> None:
        nonlocal finished, prompt_tokens, hit_tokens
        finished += 1
        if outcome.refused is None:
            prompt_tokens += outcome.prompt_tokens
            hit_tokens += outcome.hit_tokens
        watch(stage, Progress(finished, 0, 0, prompt_tokens, hit_tokens, 0), None)
        if on_outcome is not None:
            on_outcome(replica, outcome)

    return see


def _why(ask: FleetAsk) -> str:
    if ask.decode_replicas:
        return "prefill and decode apart"
    if ask.host is not None:
        return "a host tier is decided on the fleet's clock"
    if not isinstance(ask.arrival, Timed):
        return f"{ask.arrival} counts requests over the whole fleet"
    if ask.router.kind == "round-robin":
        return "turns of one session go to several replicas"
    return f"{ask.router} looks at loads"


def replica_of(part: Part, span_s: float | None) -> ReplicaResult:
    """A replica's share as it is printed; ``span_s`` from the fleet's first request sent on."""
    summary = part.summary
    states = summary.use.states
    busy = part.busy_s
    decodes = part.role == "decode"
    return ReplicaResult(
        name=part.name,
        role=part.role,
        requests=summary.requests,
        refused=summary.refused,
        requests_hit=summary.requests_hit,
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        hit_tokens=summary.hit_tokens,
        host_tokens=part.host_tokens,
        kv_hit_tokens=summary.kv_hit_tokens,
        ceiling_tokens=summary.ceiling_tokens,
        computed_tokens=0 if decodes else summary.prompt_tokens - summary.hit_tokens,
        evictions=summary.use.evictions,
        states_kept=states.kept,
        states_hit=states.ever_hit,
        preemptions=summary.preemptions,
        steps=summary.steps,
        peak_running=summary.peak_running,
        peak_waiting=summary.peak_waiting,
        busy_share=busy / span_s if busy is not None and span_s else None,
        latencies=part.watch.latencies(),
    )


def total_of(replicas: Sequence[ReplicaResult], times: Stopwatch) -> ReplicaResult:
    """All replicas as one: counts are sums, peaks are sums of peaks, times are over requests."""

    def added(name: str) -> int:
        return sum(getattr(replica, name) for replica in replicas)

    ceilings = [replica.ceiling_tokens for replica in replicas]
    busy = [replica.busy_share for replica in replicas if replica.busy_share is not None]
    return ReplicaResult(
        name="all",
        role=replicas[0].role,
        requests=added("requests"),
        refused=added("refused"),
        requests_hit=added("requests_hit"),
        prompt_tokens=added("prompt_tokens"),
        output_tokens=added("output_tokens"),
        hit_tokens=added("hit_tokens"),
        host_tokens=added("host_tokens"),
        kv_hit_tokens=added("kv_hit_tokens"),
        ceiling_tokens=sum(c for c in ceilings if c is not None) if all_known(ceilings) else None,
        computed_tokens=added("computed_tokens"),
        evictions=added("evictions"),
        states_kept=added("states_kept"),
        states_hit=added("states_hit"),
        preemptions=added("preemptions"),
        steps=added("steps"),
        peak_running=added("peak_running"),
        peak_waiting=added("peak_waiting"),
        busy_share=sum(busy) / len(busy) if busy else None,
        latencies=times.latencies(),
    )


def all_known(values: Iterable[object]) -> bool:
    """Whether none is None."""
    return all(value is not None for value in values)


def _imbalance(replicas: Sequence[ReplicaResult]) -> Imbalance:
    busy = [replica.busy_share for replica in replicas if replica.busy_share is not None]
    return Imbalance(
        requests=_over_mean([replica.requests for replica in replicas]),
        prompt_tokens=_over_mean([replica.prompt_tokens for replica in replicas]),
        computed_tokens=_over_mean([replica.computed_tokens for replica in replicas]),
        busy=_over_mean(busy) if busy else None,
    )


def _over_mean(values: Sequence[float]) -> float:
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0


def _losses(parts: Sequence[Part], ceiling: int | None, *, has_host: bool) -> tuple[FleetLoss, ...]:
    """Causes, largest first: what no cache of a replica could know, then each engine's own."""
    if ceiling is None or any(part.summary.ceiling_tokens is None for part in parts):
        return ()
    known = sum(part.summary.ceiling_tokens or 0 for part in parts)
    tokens = {OTHER_REPLICA: max(ceiling - known, 0)}
    for part in parts:
        for cause, lost in part.summary.lost:
            tokens[cause.value] = tokens.get(cause.value, 0) + lost
    total = sum(tokens.values())
    ranked = sorted(((count, name) for name, count in tokens.items() if count), reverse=True)
    return tuple(
        FleetLoss(
            name,
            count,
            count / total,
            _sentence(name, has_host),
        )
        for count, name in ranked
    )


def _sentence(cause: str, has_host: bool) -> str:
    if cause == OTHER_REPLICA:
        return "the fleet had seen it, but not the replica that the request was sent to"
    if cause == LossCause.EVICTED.value and has_host:
        return "it had left the device, and the host lacked it or its state, or was slower"
    return LossCause(cause).sentence


def _refused(parts: Sequence[Part]) -> tuple[Refused, ...]:
    found: dict[str, Refused] = {}
    for part in parts:
        for one in part.refused:
            count_refused(found, one)
    return tuple(found.values())
