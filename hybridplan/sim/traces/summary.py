"""What ``hybridplan trace`` answers: how a trace was read, and what is in it."""

from __future__ import annotations

from dataclasses import dataclass

from hybridplan.sim.traces.facts import TraceCounts, TraceInfo
from hybridplan.sim.traces.statistics import TraceStatistics, trace_statistics
from hybridplan.sim.traces.trace import Trace

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """One trace, read once from end to end."""

    schema_version: int
    unit_tokens: int | None
    info: TraceInfo
    counts: TraceCounts
    statistics: TraceStatistics


@dataclass(frozen=True, slots=True)
class Conversion:
    """A trace written as hybridplan JSONL to ``target``, and what was read for it."""

    schema_version: int
    target: str
    counts: TraceCounts


def summarize(trace: Trace, *, warmup_requests: int = 0) -> TraceSummary:
    """Read a trace to its end and describe it. Raises InputError like ``Trace.requests``."""
    statistics = trace_statistics(trace, warmup_requests=warmup_requests)
    info = trace.info
    return TraceSummary(SCHEMA_VERSION, info.unit_tokens, info, trace.counts, statistics)
