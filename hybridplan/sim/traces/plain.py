"""Plain tables of lengths: any CSV or JSONL whose columns say input and output in a usual name.

Arrival columns that carry their unit (``arrival_s``, ``timestamp_ms``) are read in it; a bare
``timestamp`` of small numbers is refused until the caller says the unit.
"""

from __future__ import annotations

import re

from hybridplan.sim.traces.clock import (
    DateStamps,
    SessionStarts,
    Stamps,
    iso_ns,
    settle_unit,
)
from hybridplan.sim.traces.facts import NONE, BadRow, Fact, Plan, Tally, TimeUnit
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.lengths import Columns, LengthRows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.values import label, number

INPUTS = ("input_length", "input_tokens", "prompt_tokens", "num_prompt_tokens", "prompt_length",
          "prompt_len", "input_len", "isl")  # fmt: skip
OUTPUTS = ("output_length", "output_tokens", "completion_tokens", "generated_tokens",
           "num_output_tokens", "output_len", "decode_length", "osl")  # fmt: skip
TIMES = ("timestamp", "arrival_time", "arrival", "arrived_at", "time", "start_time")
SESSIONS = ("session_id", "session", "conversation_id")
TURNS = ("turn", "idx", "round_index")
REQUEST_IDS = ("request_id", "id")
OTHERS = frozenset({"hash_ids", "chat_id", "reason_ratio", "cache_read_input_tokens",
                    "prefix_group", "messages", "usage", "newly_append_tokens",
                    "hybridplan_trace"})  # fmt: skip

SCAN_ROWS = 1000

_UNIT_SUFFIX = re.compile(
    r"(?:t|time|timestamp|arrival|arrival_time|arrived_at|start)_(s|ms|us|ns)"
)


def _one_of(names: tuple[str, ...], keys: frozenset[str]) -> str | None:
    return next((name for name in names if name in keys), None)


def columns_of(keys: frozenset[str]) -> Columns | None:
    """The columns a table's names amount to; None without both an input and an output."""
    input_name, output_name = _one_of(INPUTS, keys), _one_of(OUTPUTS, keys)
    if input_name is None or output_name is None:
        return None
    with_unit = sorted(key for key in keys if _UNIT_SUFFIX.fullmatch(key))
    return Columns(
        input_name,
        output_name,
        with_unit[0] if with_unit else _one_of(TIMES, keys),
        _one_of(SESSIONS, keys),
        _one_of(TURNS, keys),
        _one_of(REQUEST_IDS, keys),
        "agent" if "agent" in keys else None,
    )


class Plain(Format):
    """An input and an output column, perhaps an arrival, a session and a turn."""

    name = "plain"
    containers = ("csv", "json-lines", "json-values")

    def matches(self, sample: Sample) -> bool:
        return columns_of(sample.keys) is not None and not sample.keys & OTHERS

    def plan(self, opening: Opening) -> Plan:
        columns = self._columns(opening)
        plan = Plan(f"columns {columns.input}, {columns.output}")
        if columns.session is not None:
            plan.sessions = Fact(columns.session, "read")
        if columns.time is not None:
            plan.time_unit = self._time_unit(opening, columns.time)
            plan.clock_scope = self._clock_scope(opening, columns)
        return plan

    def _columns(self, opening: Opening) -> Columns:
        columns = columns_of(opening.sample.keys)
        if columns is None:
            raise opening.refuse(
                f"no column is an input and an output length; {', '.join(INPUTS[:3])} and "
                f"{', '.join(OUTPUTS[:3])} are understood"
            )
        return columns

    def _time_unit(self, opening: Opening, name: str) -> Fact:
        given: TimeUnit | None = opening.options.time_unit
        first = opening.first_value(name)
        if given is None and isinstance(first, str):
            try:
                iso_ns(first, name)
            except BadRow:
                pass
            else:
                return Fact("date", "read", "UTC dates; arrivals count from the first row")
        suffix = _UNIT_SUFFIX.fullmatch(name)
        if given is None and suffix:
            return Fact(suffix.group(1), "read", f"the column's name ends in _{suffix.group(1)}")
        if first is None:
            return NONE
        return settle_unit(first, name, given=given, defined=None)

    def _clock_scope(self, opening: Opening, columns: Columns) -> Fact:
        given = opening.options.clock_scope
        if given:
            return Fact(given, "given")
        if columns.session is None or columns.time is None:
            return Fact("global", "format")
        starts = SessionStarts()
        for count, (_, row) in enumerate(opening.records()):
            if count == SCAN_ROWS:
                break
            if isinstance(row, dict):
                try:
                    stamp = float(number(row.get(columns.time), columns.time))
                    starts.add(label(row.get(columns.session)), stamp)
                except BadRow:
                    continue
        return starts.fact()

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        columns = self._columns(opening)
        stamps: Stamps | DateStamps | None = None
        if plan.time_unit.value == "date":
            stamps = DateStamps(str(columns.time))
        elif plan.time_unit is not NONE:
            stamps = Stamps(plan.time_unit.value, str(columns.time))
        return LengthRows(tally, columns, stamps, opening.options.output_tokens)
