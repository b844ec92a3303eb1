"""aiperf's Mooncake rows that hold text: ``text_input`` instead of ``input_length``."""

from __future__ import annotations

from typing import Any

from hybridplan.sim.request import Prompt
from hybridplan.sim.traces.clock import settle_unit
from hybridplan.sim.traces.facts import Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.mooncake import MooncakeRows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.text import open_texts, text_plan
from hybridplan.sim.traces.values import text


class Aiperf(Format):
    """``text_input``, ``output_length`` [, ``timestamp`` | ``delay`` (ms), ``session_id``]."""

    name = "aiperf"
    containers = ("json-lines", "json-values")

    def matches(self, sample: Sample) -> bool:
        return "text_input" in sample.keys and "input_length" not in sample.keys

    def plan(self, opening: Opening) -> Plan:
        plan = text_plan(opening, "text_input")
        stamp = opening.first_value("timestamp")
        if stamp is not None:
            given = opening.options.time_unit
            plan.time_unit = settle_unit(stamp, "timestamp", given=given, defined="ms")
            plan.clock_scope = Fact(opening.options.clock_scope or "global", "format")
        if opening.first_value("session_id") is not None:
            plan.sessions = Fact("session_id", "read")
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return AiperfRows(opening, plan, tally)


class AiperfRows(MooncakeRows):
    """One request per row; the prompt is the row's text."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(opening, plan, tally)
        self._texts = open_texts(opening)

    def prompt(self, row: dict[str, Any], session: str | None) -> Prompt:
        found, _, _ = self._texts.exchange(text(row, "text_input"), "")
        return found
