"""BurstGPT traces, versions 1 to 3.

Columns are found by name: version 3 puts ``Session ID`` and ``Elapsed time`` behind ``Timestamp``.
A response of 0 tokens is a failed request; the session is empty on API rows.
"""

from __future__ import annotations

from hybridplan.sim.traces.clock import Stamps, settle_unit
from hybridplan.sim.traces.facts import NONE, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.lengths import Columns, LengthRows
from hybridplan.sim.traces.records import Sample


class BurstGPT(Format):
    """``Timestamp`` (s), ``Request tokens``, ``Response tokens`` [, ``Session ID``]."""

    name = "burstgpt"
    containers = ("csv",)

    def matches(self, sample: Sample) -> bool:
        return {"timestamp", "request tokens", "response tokens"} <= sample.keys

    def plan(self, opening: Opening) -> Plan:
        sessions = "session id" in opening.sample.keys
        given = opening.options.time_unit
        unit = settle_unit(opening.first_value("timestamp"), "Timestamp", given=given, defined="s")
        return Plan(
            "burstgpt v3" if sessions else "burstgpt v1/v2",
            time_unit=unit,
            clock_scope=Fact("global", "format"),
            sessions=Fact("Session ID", "read", "empty on API rows") if sessions else NONE,
        )

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        session = "session id" if "session id" in opening.sample.keys else None
        columns = Columns("request tokens", "response tokens", "timestamp", session)
        return LengthRows(tally, columns, Stamps(plan.time_unit.value, "Timestamp"))
