"""How many replicas an SLO needs: doubled until it is kept, then bisected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hybridplan.errors import InputError
from hybridplan.sim.advice import Watch
from hybridplan.sim.arrival import Timed
from hybridplan.sim.fleet.ask import MOST_REPLICAS, FleetAsk
from hybridplan.sim.fleet.result import SCHEMA_VERSION, FleetProbe, FleetResult, FleetSize
from hybridplan.sim.fleet.run import run_fleet


def find_replicas(
    ask: FleetAsk,
    *,
    most: int = 64,
    jobs: int = 1,
    scheduler: str | None = None,
    watch: Watch | None = None,
) -> FleetSize:
    """Search from 1 replica on. Decoders, where there are any, stay as many as asked.

    Ctrl-C ends the search with the sizes that are done, and is raised where none is. Raises
    InputError without an SLO or without a trace's clock.
    """
    slo = ask.slo
    if slo is None or not slo.limits:
        raise InputError("--find-replicas needs an --slo to keep, such as ttft=2s,tpot=50ms")
    if not isinstance(ask.arrival, Timed):
        raise InputError(
            f"--find-replicas needs requests that arrive on a clock and the arrival is"
            f" {ask.arrival}; use --arrival timed"
        )
    if not 1 <= most <= MOST_REPLICAS:
        raise InputError(f"--most-replicas {most}: give 1 to {MOST_REPLICAS}")
    answers: dict[int, FleetResult] = {}

    def probe(replicas: int) -> bool:
        one = replace(ask, replicas=replicas, references=False)
        sharded = one.independent
        answer = run_fleet(
            one,
            jobs=jobs if sharded else 1,
            scheduler=scheduler if sharded else None,
            watch=watch,
        )
        if answer.interrupted is not None:
            raise KeyboardInterrupt
        answers[replicas] = answer
        return probe_of(replicas, answers[replicas]).kept

    found, interrupted = None, False
    try:
        found = smallest(probe, most)
    except KeyboardInterrupt:
        if not answers:
            raise
        interrupted = True
    probes = tuple(probe_of(size, answers[size]) for size in sorted(answers))
    return FleetSize(
        schema_version=SCHEMA_VERSION,
        slo=slo,
        replicas=found,
        most=most,
        monotonic=not any(
            found is not None and one.replicas > found and not one.kept for one in probes
        ),
        probes=probes,
        answer=answers[found if found is not None else max(answers)],
        interrupted=interrupted,
    )


def smallest(keeps: Callable[[int], bool], most: int) -> int | None:
    """The least number that keeps, if all above it do; else one that keeps where one less does not.

    Doubles from 1 until one keeps, bisects, and tries the next larger one as a check. Numbers are
    tried once.
    """
    tried: dict[int, bool] = {}

    def kept(size: int) -> bool:
        if size not in tried:
            tried[size] = keeps(size)
        return tried[size]

    low, high = 0, 1
    while not kept(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if kept(middle):
            high = middle
        else:
            low = middle
    if high < most:
        kept(high + 1)
    return high


def probe_of(replicas: int, result: FleetResult) -> FleetProbe:
    """A fleet's answer as one line of the search."""
    attained, times = result.attained, result.total.latencies
    return FleetProbe(
        replicas=replicas,
        share_met=attained.share_met if attained is not None else 0.0,
        kept=attained is not None and attained.kept,
        hit_rate=result.total.hit_rate,
        ttft_p99_s=times.ttft.p99_s if times is not None else None,
        tpot_p99_s=times.tpot.p99_s if times is not None and times.tpot is not None else None,
        busy_share=result.total.busy_share,
    )
