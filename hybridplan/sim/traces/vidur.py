"""Vidur, etalon and Sarathi length files: ``num_prefill_tokens``, ``num_decode_tokens``.

``arrived_at`` is s and may be absent; counts may be written as floats.
"""

from __future__ import annotations

from hybridplan.sim.traces.clock import Stamps, settle_unit
from hybridplan.sim.traces.facts import NONE, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.lengths import Columns, LengthRows
from hybridplan.sim.traces.records import Sample


class Vidur(Format):
    """``num_prefill_tokens``, ``num_decode_tokens`` [, ``arrived_at`` (s)]."""

    name = "vidur"
    containers = ("csv", "json-lines", "json-values")

    def matches(self, sample: Sample) -> bool:
        return {"num_prefill_tokens", "num_decode_tokens"} <= sample.keys

    def plan(self, opening: Opening) -> Plan:
        if "arrived_at" not in opening.sample.keys:
            return Plan("lengths only")
        unit = settle_unit(
            opening.first_value("arrived_at"),
            "arrived_at",
            given=opening.options.time_unit,
            defined="s",
        )
        return Plan("with arrivals", time_unit=unit, clock_scope=Fact("global", "format"))

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        timed = plan.time_unit is not NONE
        columns = Columns(
            "num_prefill_tokens", "num_decode_tokens", "arrived_at" if timed else None
        )
        stamps = Stamps(plan.time_unit.value, "arrived_at") if timed else None
        return LengthRows(tally, columns, stamps)
