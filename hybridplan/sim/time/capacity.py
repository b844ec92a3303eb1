"""The highest rate that keeps an SLO: bracket by doubling, then bisect."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from hybridplan.sim.time.result import Capacity, Probe
from hybridplan.sim.time.slo import Slo

FASTEST = 1024.0
SLOWEST = 1 / 1024
USUAL_TOLERANCE = 0.05


def find_rate(
    probe: Callable[[float], Probe],
    slo: Slo,
    *,
    start: float = 1.0,
    tolerance: float = USUAL_TOLERANCE,
    seen: Probe | None = None,
) -> Capacity:
    """Bisect the speed of the trace's clock.

    Args:
        probe: replays at a speed; the same speed gives the same answer.
        slo: what a probe is judged by.
        start: the first speed; from there doubled while the SLO is kept, or halved until it is,
            between 1/1024 and 1,024 times it. Halving ends where it changes nothing; doubling does
            not, as requests so far apart that none meets another are alike at twice the speed too.
        tolerance: stop when the speed that does not keep it is at most this share higher.
        seen: the probe at ``start``, where it has been run already.

    Speeds are rounded to four digits, so the search can be repeated by hand.
    """
    found = [probe(start) if seen is None else seen]
    best, worst = (found[0], None) if found[0].kept else (None, found[0])
    while best is None or worst is None:
        speed = 2 * best.speed if best is not None else (worst.speed if worst else start) / 2
        if not SLOWEST <= speed / start <= FASTEST:
            break
        found.append(probe(speed))
        if found[-1].kept:
            best = found[-1]
        else:
            worst = found[-1]
        if alike(found[-1], found[-2]) and (best is None or not best.rate_per_s):
            break
    while best is not None and worst is not None and worst.speed > (1 + tolerance) * best.speed:
        speed = float(f"{sqrt(best.speed * worst.speed):.4g}")
        if not best.speed < speed < worst.speed:
            break
        found.append(probe(speed))
        if found[-1].kept:
            best = found[-1]
        else:
            worst = found[-1]
    return Capacity(slo, best, worst, tolerance, tuple(found))


def alike(one: Probe, other: Probe) -> bool:
    """Whether two speeds gave the same share and p99s: requests meet only those that arrive with
    them, or (without a rate, where all arrive at one moment) all the others."""
    return (one.share_met, one.ttft_p99_s, one.tpot_p99_s) == (
        other.share_met, other.ttft_p99_s, other.tpot_p99_s,
    )  # fmt: skip
