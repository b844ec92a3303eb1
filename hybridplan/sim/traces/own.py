"""hybridplan's own JSONL: what every other format is converted to. docs/traces.md defines it.

The first line is a header with the version and the defaults of the rows; every other line is one
request. Ids are a list in which an inner pair [first, count] stands for consecutive integers.
Reading a written trace gives the same requests, to the last bit of an arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.clock import MAX_SPAN_S
from hybridplan.sim.traces.facts import BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows, need
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.values import MAX_ID, MAX_TOKENS, number, shown, tokens

VERSION = 1
MARK = "hybridplan_trace"
MIN_RUN = 3
FACTS = (
    "unit",
    "tail",
    "ids",
    "id_scope",
    "time_unit",
    "clock_scope",
    "inputs",
    "outputs",
    "sessions",
)

Ids = list[int | list[int]]


def pack_ids(ids: Sequence[int]) -> Ids:
    """Ids with runs of three or more consecutive integers as [first, count]."""
    packed: Ids = []
    start = 0
    for index in range(1, len(ids) + 1):
        if index < len(ids) and ids[index] == ids[index - 1] + 1:
            continue
        count = index - start
        packed += [[ids[start], count]] if count >= MIN_RUN else list(ids[start:index])
        start = index
    return packed


def unpack_ids(packed: Any) -> tuple[int, ...]:
    """The inverse of pack_ids. BadRow for anything else."""
    if not isinstance(packed, list):
        raise BadRow(f"ids is {shown(packed)}, not a list")
    ids: list[int] = []
    for item in packed:
        if isinstance(item, list):
            if len(item) != 2 or any(type(part) is not int for part in item):
                raise BadRow(f"ids holds {shown(item)}, not [first, count]")
            first, count = item
            if not 1 <= count <= MAX_TOKENS - len(ids) or not -MAX_ID < first < MAX_ID:
                raise BadRow(f"ids holds the run {shown(item)}, out of range")
            if count > 10_000_000:
                raise BadRow(f"ids holds a run of {count:,} ids, more than a prompt can have")
            ids.extend(range(first, first + count))
        elif type(item) is int and -MAX_ID < item < MAX_ID:
            ids.append(item)
        else:
            raise BadRow(f"ids holds {shown(item)}, not an integer")
    return tuple(ids)


class Own(Format):
    """A header ``{"hybridplan_trace": 1, ...}``, then one request per line."""

    name = "hybridplan"
    containers = ("json-lines",)

    def matches(self, sample: Sample) -> bool:
        return MARK in sample.keys

    def plan(self, opening: Opening) -> Plan:
        header = opening.sample.first
        if header.get(MARK) != VERSION:
            raise opening.refuse(
                f"its version is {shown(header.get(MARK))}, this program reads {VERSION}"
            )
        facts = header.get("facts")
        facts = facts if isinstance(facts, dict) else {}
        plan = Plan(str(header.get("source_format", "converted")))
        for name in FACTS:
            value = facts.get(name)
            if isinstance(value, str):
                setattr(plan, name, Fact(value, "read"))
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return OwnRows(tally)


class OwnRows(Rows):
    """One request per row after the header, whose defaults the rows may override."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(tally)
        self._default = Prompt(0)

    def read(self, row: Any) -> Sequence[Request]:
        if MARK in row:
            self._default = self._prompt(row.get("defaults", {}), 0, ())
            return ()
        need(row, ("request_id", "input_tokens", "output_tokens"))
        request_id = row["request_id"]
        session = row.get("session")
        if not isinstance(request_id, str) or not isinstance(session, (str, type(None))):
            raise BadRow("request_id and session must be text")
        length_tokens = tokens(row["input_tokens"], "input_tokens")
        output_tokens = tokens(row["output_tokens"], "output_tokens")
        arrival_s = row.get("arrival_s")
        if arrival_s is not None:
            arrival_s = float(number(arrival_s, "arrival_s"))
            if abs(arrival_s) > MAX_SPAN_S:
                raise BadRow(f"arrival_s is {arrival_s:g}, out of range")
        prompt = self._prompt(row, length_tokens, unpack_ids(row.get("ids", [])))
        sequence = None
        if "sequence" in row:
            shown_row = row["sequence"]
            if not isinstance(shown_row, dict):
                raise BadRow(f"sequence is {shown(shown_row)}, not an object")
            whole = length_tokens + output_tokens
            ids = unpack_ids(shown_row.get("ids", []))
            sequence = self._prompt({**_place(prompt), **shown_row}, whole, ids)
        turn = None if row.get("turn") is None else tokens(row["turn"], "turn")
        return (Request(request_id, prompt, output_tokens, arrival_s, session, turn, sequence),)

    def _prompt(self, row: Any, length_tokens: int, ids: tuple[int, ...]) -> Prompt:
        default = self._default
        if not isinstance(row, dict):
            raise BadRow(f"defaults is {shown(row)}, not an object")
        unit = tokens(row.get("unit_tokens", default.unit_tokens), "unit_tokens")
        chained = row.get("chained", default.chained)
        scope = row.get("scope", default.scope)
        if not unit or not isinstance(chained, bool) or not isinstance(scope, str):
            raise BadRow("unit_tokens must be 1 or more, chained true or false, scope text")
        if len(ids) > -(-length_tokens // unit):
            raise BadRow(f"it has {len(ids)} ids for {length_tokens} tokens in units of {unit}")
        return Prompt(length_tokens, unit, ids, chained, scope)


def _place(prompt: Prompt) -> dict[str, Any]:
    return {"unit_tokens": prompt.unit_tokens, "chained": prompt.chained, "scope": prompt.scope}
