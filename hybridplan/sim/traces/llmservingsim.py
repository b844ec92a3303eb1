"""LLMServingSim workloads (flat and agentic rows, ns) and its measured vLLM runs (two clocks).

A bench row's ``arrival_time`` is epoch seconds while ``queued_ts`` and the others are monotonic:
only ``arrival_time`` is read. In an agentic row each call arrives ``tool_duration_ns`` after the
previous one *ends*; arrivals are counted as if calls took no time, the earliest possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.clock import Stamps
from hybridplan.sim.traces.facts import NONE, BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows, need
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.values import id_list, label, number, shown, tokens


class LLMServingSim(Format):
    """``input_toks``, ``output_toks``, ``arrival_time_ns`` | ``arrival_time``, token ids."""

    name = "llmservingsim"
    containers = ("json-lines", "json-values")

    def matches(self, sample: Sample) -> bool:
        return {"input_toks", "output_toks"} <= sample.keys or "sub_requests" in sample.keys

    def plan(self, opening: Opening) -> Plan:
        given = opening.options.time_unit
        bench = opening.first_value("arrival_time") is not None
        defined = Fact("s", "format", "arrival_time is epoch s; the *_ts columns are another clock")
        if not bench:
            defined = Fact("ns", "read", "the field's name ends in _ns")
        plan = Plan("bench output" if bench else "workload")
        plan.time_unit = Fact(given, "given") if given else defined
        plan.clock_scope = Fact("global", "format")
        first = opening.sample.first
        calls = first.get("sub_requests") or [first]
        if isinstance(calls, list) and any("input_tok_ids" in c for c in calls if type(c) is dict):
            plan.unit = Fact("1", "read", "token ids")
            plan.tail = Fact("ceil", "format")
            plan.ids = Fact("unit", "format")
            plan.id_scope = opening.scope("file", "token ids of one tokenizer per file")
        if opening.first_value("sub_requests") is not None:
            plan.sessions = Fact("session_id", "read")
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return LLMServingSimRows(opening, plan, tally)


class LLMServingSimRows(Rows):
    """One request per flat row, one per call of an agentic row."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(tally)
        self._bench = plan.dialect == "bench output"
        self._stamps = Stamps(plan.time_unit.value, "arrival_time")
        self._scope = opening.scope_name(plan.id_scope) if plan.id_scope is not NONE else ""
        self._per_session = plan.id_scope.value == "session"
        self._count = 0

    def read(self, row: Any) -> Sequence[Request]:
        name = "arrival_time" if self._bench else "arrival_time_ns"
        need(row, (name,))
        arrival_s = self._stamps.seconds(row[name])
        session = label(row.get("session_id"))
        if "sub_requests" not in row:
            return (self._request(row, arrival_s, session, None),)
        calls = row["sub_requests"]
        if not isinstance(calls, list) or not calls:
            raise BadRow(f"sub_requests is {shown(calls)}, not a list of calls")
        found = []
        for turn, call in enumerate(calls, 1):
            if not isinstance(call, dict):
                raise BadRow(f"a sub-request is {shown(call)}, not an object")
            found.append(self._request(call, arrival_s, session, turn))
            wait_ns = number(call.get("tool_duration_ns", 0), "tool_duration_ns")
            if wait_ns < 0:
                raise BadRow(f"tool_duration_ns is {wait_ns}, below zero")
            arrival_s += wait_ns / 10**9
        if len(found) > 1:
            self.tally.note(
                "delay", "a call's arrival counts tool time only, the earliest possible"
            )
        return found

    def _request(
        self, row: dict[str, Any], arrival_s: float, session: str | None, turn: int | None
    ) -> Request:
        length_tokens = tokens(row.get("input_toks"), "input_toks")
        output_tokens = tokens(row.get("output_toks"), "output_toks")
        ids = id_list(row.get("input_tok_ids"), "input_tok_ids")
        output_ids = id_list(row.get("output_tok_ids"), "output_tok_ids")
        if ids and len(ids) != length_tokens:
            raise BadRow(f"it has {len(ids)} input_tok_ids for {length_tokens} input_toks")
        scope = f"{self._scope}/{session}" if self._per_session else self._scope
        sequence = None
        if ids and len(output_ids) == output_tokens > 0:
            sequence = Prompt(length_tokens + output_tokens, 1, ids + output_ids, False, scope)
        request_id = label(row.get("request_id"))
        self._count += 1
        return Request(
            str(self._count - 1) if request_id is None else request_id,
            Prompt(length_tokens, 1, ids, False, scope if ids else ""),
            output_tokens,
            arrival_s,
            session,
            turn,
            sequence,
        )
