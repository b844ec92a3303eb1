"""Azure LLM inference traces of 2023 and 2024, and the multimodal one.

``TIMESTAMP`` is a UTC date with seven fractional digits (2023) or an offset (2024); arrivals
count from the first row. ``ContextTokens`` of the multimodal trace include image tokens.
"""

from __future__ import annotations

from hybridplan.sim.traces.clock import DateStamps
from hybridplan.sim.traces.facts import Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.lengths import Columns, LengthRows
from hybridplan.sim.traces.records import Sample


class Azure(Format):
    """``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens`` [, ``NumImages``]."""

    name = "azure"
    containers = ("csv",)

    def matches(self, sample: Sample) -> bool:
        return {"timestamp", "contexttokens", "generatedtokens"} <= sample.keys

    def plan(self, opening: Opening) -> Plan:
        stamp = str(opening.first_value("timestamp"))
        dialect = "azure 2024" if "+" in stamp or stamp.endswith("Z") else "azure 2023"
        inputs = Fact("cumulative", "format")
        if "numimages" in opening.sample.keys:
            dialect = "azure multimodal"
            inputs = Fact("cumulative", "format", "ContextTokens include image tokens")
        date = Fact("date", "read", "UTC dates; arrivals count from the first row")
        clock = Fact("global", "format")
        return Plan(dialect, time_unit=date, clock_scope=clock, inputs=inputs)

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        columns = Columns("contexttokens", "generatedtokens", "timestamp")
        return LengthRows(tally, columns, DateStamps("TIMESTAMP"))
