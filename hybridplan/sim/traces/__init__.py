"""Request traces: one reader per format, detection, statistics, and our own JSONL."""

from hybridplan.sim.traces.convert import convert_trace
from hybridplan.sim.traces.detect import FORMATS, format_names
from hybridplan.sim.traces.facts import Fact, Notice, TraceCounts, TraceInfo
from hybridplan.sim.traces.options import TraceOptions
from hybridplan.sim.traces.statistics import (
    Distribution,
    Reuse,
    TraceStatistics,
    request_statistics,
    trace_statistics,
)
from hybridplan.sim.traces.trace import Trace, open_trace

__all__ = [
    "FORMATS",
    "Distribution",
    "Fact",
    "Notice",
    "Reuse",
    "Trace",
    "TraceCounts",
    "TraceInfo",
    "TraceOptions",
    "TraceStatistics",
    "convert_trace",
    "format_names",
    "open_trace",
    "request_statistics",
    "trace_statistics",
]
