"""LMCache agent traces: ``timestamp`` (us since 1970), ``input`` and ``output`` text, sessions.

Some subsets log only what a turn adds. Prompts are taken as whole unless the caller says
``inputs="delta"``; then a session's earlier inputs and outputs are put in front, which keeps the
text of every open session in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridplan.sim.request import Request
from hybridplan.sim.traces.clock import Stamps, settle_unit
from hybridplan.sim.traces.facts import Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.text import open_texts, text_plan
from hybridplan.sim.traces.values import label, text


class LMCache(Format):
    """``timestamp`` (us), ``input``, ``output``, ``session_id``."""

    name = "lmcache"
    containers = ("json-lines", "json-values")

    def matches(self, sample: Sample) -> bool:
        return {"input", "output", "session_id"} <= sample.keys

    def plan(self, opening: Opening) -> Plan:
        plan = text_plan(opening, "agent text")
        stamp = opening.first_value("timestamp")
        if stamp is not None:
            given = opening.options.time_unit
            plan.time_unit = settle_unit(stamp, "timestamp", given=given, defined="us")
            plan.clock_scope = Fact("global", "format")
        plan.sessions = Fact("session_id", "read")
        inputs = opening.options.inputs
        plan.inputs = Fact(inputs, "given") if inputs else Fact("cumulative", "format")
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return LMCacheRows(opening, plan, tally)


class LMCacheRows(Rows):
    """One request per row."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(tally)
        self._texts = open_texts(opening)
        self._delta = plan.inputs.value == "delta"
        unit = plan.time_unit.value
        self._stamps = None if unit == "none" else Stamps(unit, "timestamp")
        self._history: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        self._shortest: dict[str, int] = {}
        self._count = 0

    def read(self, row: Any) -> Sequence[Request]:
        prompt_text, output_text = text(row, "input"), text(row, "output")
        session = label(row.get("session_id"))
        arrival_s = self._stamps.seconds(row.get("timestamp")) if self._stamps else None
        turn = None
        if session is not None:
            turn = self._turns.get(session, 0) + 1
            self._turns[session] = turn
            prompt_text = self._whole(session, prompt_text, output_text)
        prompt, output_tokens, sequence = self._texts.exchange(prompt_text, output_text)
        self._count += 1
        request_id = str(self._count - 1)
        return (Request(request_id, prompt, output_tokens, arrival_s, session, turn, sequence),)

    def _whole(self, session: str, prompt_text: str, output_text: str) -> str:
        if self._delta:
            prompt_text = self._history.get(session, "") + prompt_text
            self._history[session] = prompt_text + output_text
        elif len(prompt_text) < self._shortest.get(session, 0):
            self.tally.note(
                "shorter-turn",
                "a turn's input is shorter than the session's first; if inputs hold only what a "
                "turn adds, say --inputs delta",
            )
        self._shortest.setdefault(session, len(prompt_text))
        return prompt_text
