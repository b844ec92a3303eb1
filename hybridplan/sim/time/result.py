"""What a replay on a clock answers. Seconds are floats of exact ticks; see ``sim.time.clock``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hybridplan.ledger.calibration import FROM_LOG, Constant
from hybridplan.sim.time.slo import Slo

How = Literal["measured", "assumed"]
CURVE_PERCENTS = (*range(0, 100, 5), 99, 100)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of ``requests`` values. A quantile q is the smallest value that at least q of them do not
    exceed (nearest rank: value number ceil(q n) of the sorted ones), so it is one that occurred.
    ``curve_s`` are those at CURVE_PERCENTS, from the smallest value to the largest."""

    requests: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    curve_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClockInfo:
    """Where step times come from. ``how`` is "measured" for a file of ``measure --save`` or
    ``calibrate --save`` and "assumed" for a preset or the stand-in; ``constants`` are seconds a
    unit, empty for the stand-in. ``model`` is the one that was measured, "" where none was.
    Errors are those of steps that were not fitted, or (``from_log``) of the TPOT of requests."""

    name: str
    how: How
    card: str
    model: str
    constants: Mapping[str, Constant]
    mean_error: float | None
    worst_error: float | None

    @property
    def from_log(self) -> bool:
        """Whether the constants were fitted to a log of requests, not to steps."""
        return any(constant.how.startswith(FROM_LOG) for constant in self.constants.values())


@dataclass(frozen=True, slots=True)
class Attained:
    """How an SLO was kept. ``missed`` counts requests by the limit they broke (some break two);
    ``kept`` whether the share that was asked for is reached. ``goodput_per_s`` are requests a
    second that kept all limits."""

    slo: Slo
    requests: int
    met: int
    share_met: float
    missed: Mapping[str, int]
    goodput_per_s: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Where the time of the steps went, on one rank (of pipeline stages: the mean one).

    ``busy_share`` is the time in steps over the span of the replay, up to the end of the last step
    (which may give no token: async scheduling plans it ahead); ``step_shares`` what each
    feature took of it (they sum to 1). ``bytes`` and ``flop`` are all counted; their rates are
    over the time in steps. The shares of the card's published rates (FLOP: in the dtype that
    products of weights run in) are None where the card is not known.
    """

    busy_s: float
    busy_share: float
    gpu_s: float
    ranks: int
    step_shares: Mapping[str, float]
    bytes: int
    flop: int
    bytes_per_s: float
    flop_per_s: float
    bandwidth_share: float | None
    flop_share: float | None


@dataclass(frozen=True, slots=True)
class Latencies:
    """One replay's times: from sending a request to its first token (ttft), between tokens (tpot),
    to its last token (e2e), and to its first admission (queue). ``tpot`` is over requests with at
    least two output tokens, None without any."""

    ttft: Quantiles
    tpot: Quantiles | None
    e2e: Quantiles
    queue: Quantiles


@dataclass(frozen=True, slots=True)
class Worth:
    """The same replay without hits, and what hits were worth beside it.

    ``baseline`` says how hits were taken away. ``saved_ttft_s`` (of the mean) and ``saved_gpu_s``
    (time in steps, over all ranks) are without less with; a server under steady load steps nearly
    all the time with hits and without, so the latter may be small where the former is not.
    ``prefill_gpu_s`` is what the hit tokens' own rows, pairs and recurrence would have added to
    steps (weights and launches left out, as steps share them), ``ms_per_1000_hit_tokens`` the same
    for 1,000 of them.
    """

    baseline: str
    latencies: Latencies
    span_s: float
    gpu_s: float
    saved_gpu_s: float
    saved_ttft_s: float
    prefill_gpu_s: float
    ms_per_1000_hit_tokens: float


@dataclass(frozen=True, slots=True)
class Probe:
    """One replay at ``speed`` times the trace's clock, ``rate_per_s`` requests a second on the
    mean; ``ttft_p99_s`` is None where no request was served."""

    speed: float
    rate_per_s: float
    share_met: float
    kept: bool
    ttft_p99_s: float | None
    tpot_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate that keeps an SLO, found by bisection.

    ``best`` kept it and ``next`` did not, within ``tolerance`` of each other; either is None where
    the search ended at its limits without one. Whether rates in between would keep it is not
    known: more load need not always be worse. ``probes`` in the order they were run.
    """

    slo: Slo
    best: Probe | None
    next: Probe | None
    tolerance: float
    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True)
class TimeResult:
    """Times of a replay. ``span_s`` runs from the first request sent to the last token;
    ``offered_per_s`` is the trace's mean arrival rate as replayed (timed arrival).

    ``held_back`` turns were sent later than the trace says, as the turn before them was not done,
    ``held_back_s`` on the mean. Percentiles are derived from exact step ends; how sure the steps
    are, ``clock.how`` says.
    """

    clock: ClockInfo
    speed: float
    offered_per_s: float | None
    span_s: float
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    latencies: Latencies | None
    held_back: int
    held_back_s: float
    utilisation: Utilisation | None
    attained: Attained | None
    worth: Worth | None
    capacity: Capacity | None
