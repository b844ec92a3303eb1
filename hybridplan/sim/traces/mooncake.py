"""Mooncake traces (FAST'25) and the dialects other tools write in the same field names.

``timestamp`` is ms by Mooncake's definition; one tool reads the same name as s, so the choice is
stated with the rate it implies and refused where it is absurd. ``hash_ids`` are prefix-chained;
the block size stands nowhere in the file and is inferred from the lengths. Rows may carry
``session_id`` and, from a second turn on, ``delay`` (ms after the previous turn) instead of a
stamp: its arrival is then counted as if that turn had taken no time, the earliest possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.clock import PER_SECOND, Stamps, settle_unit
from hybridplan.sim.traces.facts import NONE, BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.scan import Scan
from hybridplan.sim.traces.values import id_list, label, number, optional_tokens, tokens


class Mooncake(Format):
    """``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``."""

    name = "mooncake"
    containers = ("json-lines", "json-values", "csv")

    def matches(self, sample: Sample) -> bool:
        keys = sample.keys
        if "chat_id" in keys or "input_length" not in keys:
            return False
        return "hash_ids" in keys or bool(keys & {"timestamp", "delay"})

    def plan(self, opening: Opening) -> Plan:
        scan = Scan(opening)
        unit, tail = scan.block(512 if opening.sample.keys == MOONCAKE_KEYS else None)
        scope = opening.scope("file", "Mooncake numbers ids from 0 in every file")
        plan = Plan("mooncake", unit=unit, tail=tail)
        if unit is not NONE:
            plan.id_scope = scope
            plan.ids = scan.ids()
        stamp = opening.first_value("timestamp")
        if stamp is not None:
            plan.time_unit = scan.time_unit(
                settle_unit(stamp, "timestamp", given=opening.options.time_unit, defined="ms")
            )
            given = opening.options.clock_scope
            plan.clock_scope = Fact(given, "given") if given else scan.starts.fact()
        if opening.first_value("delay", "session_id") is not None:
            plan.dialect = "mooncake with sessions"
            plan.sessions = Fact("session_id", "read")
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return MooncakeRows(opening, plan, tally)


MOONCAKE_KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


class MooncakeRows(Rows):
    """One request per row."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(tally)
        self._unit = int(plan.unit.value) if plan.unit is not NONE else 1
        self._floor = plan.tail.value == "floor"
        self._ids_known = plan.unit is not NONE
        self._chained = plan.ids.value == "prefix"
        self._scope = opening.scope_name(plan.id_scope)
        self._per_session = plan.id_scope.value == "session"
        self._default_output = opening.options.output_tokens
        unit = plan.time_unit.value
        self._stamps = None if plan.time_unit is NONE else Stamps(unit, "timestamp")
        self._delay_per_s = PER_SECOND["ms" if plan.time_unit is NONE else unit]
        self._last_s: dict[str, float] = {}
        self._turns: dict[str, int] = {}
        self._count = 0

    def read(self, row: Any) -> Sequence[Request]:
        output_tokens = self._output(row)
        session = label(row.get("session_id"))
        arrival_s = self._arrival(row, session)
        prompt = self.prompt(row, session)
        turn = None
        if session is not None:
            turn = self._turns.get(session, 0) + 1
            self._turns[session] = turn
            if row.get("turn") is not None:
                turn = tokens(row["turn"], "turn")
        request_id = label(row.get("request_id")) or str(self._count)
        self._count += 1
        return (Request(request_id, prompt, output_tokens, arrival_s, session, turn),)

    def _output(self, row: dict[str, Any]) -> int:
        found = optional_tokens(row, "output_length")
        if found is None:
            found = self._default_output
            if found is None:
                raise BadRow("it has no output_length; say --output-tokens for rows without")
            self.tally.note("output-given", "a row has no output_length; --output-tokens applies")
        return found

    def _arrival(self, row: dict[str, Any], session: str | None) -> float | None:
        arrival_s = None
        if row.get("timestamp") not in (None, ""):
            if self._stamps is None:
                raise BadRow("it has a timestamp, the rows above it have none")
            arrival_s = self._stamps.seconds(row["timestamp"])
        elif session is not None and row.get("delay") is not None:
            delay_s = number(row["delay"], "delay") / self._delay_per_s
            arrival_s = self._last_s.get(session, 0.0) + delay_s
            self.tally.note(
                "delay", "an arrival is the previous turn's plus its delay, the earliest possible"
            )
        elif self._stamps is not None:
            raise BadRow("it has neither timestamp nor delay")
        if session is not None and arrival_s is not None:
            self._last_s[session] = arrival_s
        return arrival_s

    def prompt(self, row: dict[str, Any], session: str | None) -> Prompt:
        """Length and ids; BadRow when the number of ids disagrees with the block size."""
        length_tokens = tokens(row.get("input_length"), "input_length")
        ids = id_list(row.get("hash_ids"), "hash_ids")
        unit = self._unit
        wanted = length_tokens // unit if self._floor else -(-length_tokens // unit)
        if not ids:
            if self._ids_known and wanted:
                self.tally.note("no-ids", "a prompt has no hash_ids and shares nothing")
            return Prompt(length_tokens, unit, (), self._chained, self._scope)
        if len(ids) != wanted:
            raise BadRow(
                f"it has {len(ids)} hash_ids for {length_tokens} tokens, blocks of {unit} need "
                f"{wanted}"
            )
        scope = self._scope
        if self._per_session:
            if session is None:
                raise BadRow("ids are scoped to sessions, but it names no session")
            scope = f"{scope}/{session}"
        return Prompt(length_tokens, unit, ids, self._chained, scope)
