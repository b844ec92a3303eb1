"""WEKA / AgentX agent sessions: one JSON object per session, sub-agents nested in it.

``t`` is s from the session's start, and inside a sub-agent from its spawn. ``hash_ids`` are
prefix-chained blocks of ``block_size`` tokens without the partial tail (floor), local to the
session, so two sessions never share. ``in`` is the whole prompt; it shrinks on compaction.
A session is held in memory while its requests are handed out in order of ``t``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.clock import PER_SECOND
from hybridplan.sim.traces.facts import BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows, need
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.values import id_list, label, number, shown, tokens

MAX_DEPTH = 16

Call = tuple[float, str, dict[str, Any]]


class Weka(Format):
    """``id``, ``block_size``, ``hash_id_scope``, ``requests: [{t, type, in, out, hash_ids}]``."""

    name = "weka"
    containers = ("json-lines", "json-values")

    def matches(self, sample: Sample) -> bool:
        found = [row.get("requests") for row in sample.rows if isinstance(row, dict)]
        first = next((calls[0] for calls in found if isinstance(calls, list) and calls), None)
        if not isinstance(first, dict):
            return False
        return {"t", "in", "out"} <= first.keys() or first.get("type") == "subagent"

    def plan(self, opening: Opening) -> Plan:
        options = opening.options
        block = opening.first_value("block_size")
        if options.block_tokens is not None:
            unit = Fact(str(options.block_tokens), "given")
        elif block is not None:
            unit = Fact(str(tokens(block, "block_size")), "read", "block_size")
            if unit.value == "0":
                raise opening.refuse("block_size is 0, a block holds one token at least")
        else:
            raise opening.refuse("the sessions name no block_size; say --block-tokens")
        local = opening.first_value("hash_id_scope") != "global"
        scope = opening.scope("session" if local else "file", "hash_id_scope")
        return Plan(
            "sessions",
            unit=unit,
            tail=Fact(options.tail, "given") if options.tail else Fact("floor", "format"),
            ids=Fact("prefix", "format"),
            id_scope=scope,
            time_unit=Fact(options.time_unit, "given")
            if options.time_unit
            else Fact("s", "format", "t counts from the session's start"),
            clock_scope=Fact("session", "format"),
            inputs=Fact(
                "cumulative", "format", "a prompt can shrink when its context is compacted"
            ),
            sessions=Fact("id", "read", "a sub-agent is a session of its own, named id/agent_id"),
        )

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return WekaRows(opening, plan, tally)


class WekaRows(Rows):
    """The requests of one session per row, sub-agents merged in by time."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(tally)
        self._unit = int(plan.unit.value)
        self._given = plan.unit.how == "given"
        self._floor = plan.tail.value == "floor"
        self._scope = opening.scope_name(plan.id_scope)
        self._per_session = plan.id_scope.value == "session"
        self._per_second = PER_SECOND[plan.time_unit.value]
        self._subagents = opening.options.subagents

    def read(self, row: Any) -> Sequence[Request]:
        need(row, ("id", "requests"))
        name = label(row["id"])
        if name is None:
            raise BadRow("id is empty")
        block = row.get("block_size")
        if not self._given and tokens(block, "block_size") != self._unit:
            raise BadRow(f"block_size is {block}, the first session's is {self._unit}")
        scope = f"{self._scope}/{name}" if self._per_session else self._scope
        calls = sorted(self._calls(row["requests"], name, 0.0, 0), key=lambda call: call[0])
        turns: dict[str, int] = {}
        found = []
        for index, (t, session, call) in enumerate(calls):
            turns[session] = turns.get(session, 0) + 1
            found.append(
                Request(
                    f"{name}#{index}",
                    self._prompt(call, scope),
                    tokens(call.get("out"), "out"),
                    t,
                    session,
                    turns[session],
                )
            )
        return found

    def _calls(self, requests: Any, session: str, start_s: float, depth: int) -> Iterator[Call]:
        if not isinstance(requests, list):
            raise BadRow(f"requests is {shown(requests)}, not a list")
        if depth > MAX_DEPTH:
            raise BadRow(f"sub-agents are nested more than {MAX_DEPTH} deep")
        for call in requests:
            if not isinstance(call, dict):
                raise BadRow(f"a request is {shown(call)}, not an object")
            t = start_s + number(call.get("t"), "t") / self._per_second
            if not 0 <= t <= 10**10:
                raise BadRow(f"t is {shown(call.get('t'))}, not a time after the session's start")
            if call.get("type") != "subagent":
                yield t, session, call
            elif self._subagents:
                agent = label(call.get("agent_id")) or "agent"
                yield from self._calls(call.get("requests"), f"{session}/{agent}", t, depth + 1)
            else:
                self.tally.note("subagent", "a sub-agent was left out")

    def _prompt(self, call: dict[str, Any], scope: str) -> Prompt:
        length_tokens = tokens(call.get("in"), "in")
        ids = id_list(call.get("hash_ids"), "hash_ids")
        unit = self._unit
        wanted = length_tokens // unit if self._floor else -(-length_tokens // unit)
        if ids and len(ids) != wanted:
            raise BadRow(
                f"a request has {len(ids)} hash_ids for {length_tokens} tokens, blocks of {unit} "
                f"need {wanted}"
            )
        return Prompt(length_tokens, unit, ids, True, scope)
