"""Gathers the times of outcomes. Memory: four floats a request."""

from __future__ import annotations

from array import array
from collections import Counter
from math import fsum

from hybridplan.sim.outcome import RequestOutcome
from hybridplan.sim.time.clock import StepClock
from hybridplan.sim.time.result import CURVE_PERCENTS, Attained, Latencies, Quantiles
from hybridplan.sim.time.slo import Slo


class Stopwatch:
    """See every outcome, then ask. Refused requests arrive, and count in nothing else.

    With a ``clock`` the prefill that hits spared is added up in its ticks.
    """

    def __init__(self, slo: Slo | None = None, clock: StepClock | None = None) -> None:
        self.slo = slo
        self.hit_tokens = self.hit_ticks = 0
        self._clock = clock
        self.requests = self.prompt_tokens = self.output_tokens = 0
        self.first_sent_s: float | None = None
        self.last_token_s = 0.0
        self.held_back = 0
        self._held_s = array("d")
        self._times = {name: array("d") for name in ("ttft", "tpot", "e2e", "queued")}
        self._arrivals: tuple[float, float] | None = None
        self._arrived = 0
        self._met = 0
        self._missed: Counter[str] = Counter()

    def see(self, outcome: RequestOutcome) -> None:
        """Note an outcome of a replay with a clock."""
        if outcome.arrival_s is not None:
            low, high = self._arrivals or (outcome.arrival_s, outcome.arrival_s)
            self._arrivals = min(low, outcome.arrival_s), max(high, outcome.arrival_s)
            self._arrived += 1
        if outcome.refused is not None or outcome.sent_s is None:
            return
        self.requests += 1
        self.prompt_tokens += outcome.prompt_tokens
        self.output_tokens += outcome.output_tokens
        if self._clock is not None and outcome.hit_tokens:
            self.hit_tokens += outcome.hit_tokens
            prefix = self._clock.model.prefix(outcome.hit_tokens)
            self.hit_ticks += self._clock.ticks(prefix)
        sent, end, arrival = outcome.sent_s, outcome.finish_s, outcome.arrival_s
        assert end is not None
        assert arrival is not None
        self.first_sent_s = sent if self.first_sent_s is None else min(self.first_sent_s, sent)
        self.last_token_s = max(self.last_token_s, end)
        if sent > arrival:
            self.held_back += 1
            self._held_s.append(sent - arrival)
        for name, values in self._times.items():
            value = getattr(outcome, f"{name}_s")
            if value is not None:
                values.append(value)
        if self.slo is not None:
            missed = self.slo.missed(outcome)
            self._met += not missed
            self._missed.update(missed)

    def join(self, other: Stopwatch) -> None:
        """Take in what another one has seen, as if this one had; it judged by the same SLO."""
        self.hit_tokens += other.hit_tokens
        self.hit_ticks += other.hit_ticks
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens
        firsts = [s for s in (self.first_sent_s, other.first_sent_s) if s is not None]
        self.first_sent_s = min(firsts, default=None)
        self.last_token_s = max(self.last_token_s, other.last_token_s)
        self.held_back += other.held_back
        self._held_s.extend(other._held_s)
        for name, values in self._times.items():
            values.extend(other._times[name])
        spans = [span for span in (self._arrivals, other._arrivals) if span is not None]
        if spans:
            self._arrivals = min(low for low, _ in spans), max(high for _, high in spans)
        self._arrived += other._arrived
        self._met += other._met
        self._missed.update(other._missed)

    @property
    def span_s(self) -> float:
        """From the first request sent to the last token."""
        return self.last_token_s - (self.first_sent_s or 0.0)

    @property
    def held_back_s(self) -> float:
        """By how much turns were sent late, on the mean of those that were."""
        return fsum(self._held_s) / self.held_back if self.held_back else 0.0

    @property
    def offered_per_s(self) -> float | None:
        """Mean rate of arrivals, refused ones too; None where all arrive at once."""
        if self._arrivals is None:
            return None
        span = self._arrivals[1] - self._arrivals[0]
        return (self._arrived - 1) / span if span > 0 else None

    def per_s(self, amount: int) -> float:
        """A rate over the span."""
        return amount / self.span_s if self.span_s > 0 else 0.0

    def latencies(self) -> Latencies | None:
        """None where no request was served."""
        found = {name: quantiles(values) for name, values in self._times.items()}
        ttft, e2e, queue = found["ttft"], found["e2e"], found["queued"]
        if ttft is None or e2e is None or queue is None:
            return None
        return Latencies(ttft=ttft, tpot=found["tpot"], e2e=e2e, queue=queue)

    def attained(self) -> Attained | None:
        """How the SLO was kept; None without one. Nothing served keeps nothing."""
        if self.slo is None:
            return None
        share = self._met / self.requests if self.requests else 0.0
        return Attained(
            slo=self.slo,
            requests=self.requests,
            met=self._met,
            share_met=share,
            missed={name: self._missed[name] for name in self.slo.limits},
            goodput_per_s=self.per_s(self._met),
            kept=share >= self.slo.share,
        )


def quantiles(values: array[float] | list[float]) -> Quantiles | None:
    """By nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Quantiles(
        requests=len(ordered),
        mean_s=fsum(ordered) / len(ordered),
        p50_s=ordered[rank(50, len(ordered))],
        p90_s=ordered[rank(90, len(ordered))],
        p99_s=ordered[rank(99, len(ordered))],
        max_s=ordered[-1],
        curve_s=tuple(ordered[rank(percent, len(ordered))] for percent in CURVE_PERCENTS),
    )


def rank(percent: int, count: int) -> int:
    """Place, from 0, of a quantile among ``count`` sorted values: ceil(percent count / 100) - 1."""
    return max(-(-percent * count // 100), 1) - 1
