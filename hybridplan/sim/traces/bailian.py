"""Bailian traces (qwen-bailian-usagetraces-anon): Mooncake's names, other units.

``timestamp`` is s, blocks hold 16 tokens, a turn's ``input_length`` includes the earlier turns,
ids are salted per file. The publisher says each block is hashed by itself, so an id is taken to
name its own 16 tokens only; if ids were chained after all, the answers would be the same.
``parent_chat_id`` links turns; a parent that is not in the file (the
window cut it off) starts a session of its own name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from hybridplan.sim.request import Request
from hybridplan.sim.traces.clock import Stamps, settle_unit
from hybridplan.sim.traces.facts import BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows, need
from hybridplan.sim.traces.mooncake import MooncakeRows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.scan import Scan
from hybridplan.sim.traces.values import label, optional_tokens, tokens

BLOCK_TOKENS = 16
REMEMBERED_CHATS = 1_000_000


class Bailian(Format):
    """``chat_id``, ``parent_chat_id``, ``timestamp`` (s), lengths, ``turn``, ``hash_ids`` (16)."""

    name = "bailian"
    containers = ("json-lines", "json-values", "csv")

    def matches(self, sample: Sample) -> bool:
        return {"chat_id", "parent_chat_id", "input_length"} <= sample.keys

    def plan(self, opening: Opening) -> Plan:
        scan = Scan(opening)
        options = opening.options
        if options.block_tokens is None and scan.blocks.rows:
            found = scan.blocks.best(options.tail)
            unit = Fact(str(BLOCK_TOKENS), "format", "the lengths agree")
            tail = Fact(found.tail, "inferred")
            if not found.allows(BLOCK_TOKENS):
                raise opening.refuse(
                    f"Bailian blocks hold {BLOCK_TOKENS} tokens, but these lengths and id counts "
                    f"allow {found}; say --block-tokens"
                )
        else:
            unit, tail = scan.block(BLOCK_TOKENS)
        stamp = opening.first_value("timestamp")
        plan = Plan("bailian", unit=unit, tail=tail)
        plan.id_scope = opening.scope("file", "ids are salted per file")
        plan.ids = Fact("unit", "format", "every block is hashed by itself")
        plan.inputs = Fact("cumulative", "format", "input_length includes the earlier turns")
        plan.sessions = Fact("parent_chat_id", "read", "a session is named after its first chat")
        if stamp is not None:
            plan.time_unit = scan.time_unit(
                settle_unit(stamp, "timestamp", given=options.time_unit, defined="s")
            )
            plan.clock_scope = Fact("global", "format")
        return plan

    def rows(self, opening: Opening, plan: Plan, tally: Tally) -> Rows:
        return BailianRows(opening, plan, tally)


class BailianRows(MooncakeRows):
    """One request per row; the newest million chats are remembered to name sessions."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(opening, plan, tally)
        unit = plan.time_unit.value
        self._clock = None if unit == "none" else Stamps(unit, "timestamp")
        self._roots: OrderedDict[str, str] = OrderedDict()

    def read(self, row: Any) -> Sequence[Request]:
        need(row, ("chat_id", "input_length", "output_length"))
        chat = label(row["chat_id"])
        if chat is None:
            raise BadRow("chat_id is missing or empty")
        output_tokens = tokens(row["output_length"], "output_length")
        session = self._session(chat, label(row.get("parent_chat_id")))
        arrival_s = self._clock.seconds(row.get("timestamp")) if self._clock else None
        prompt = self.prompt(row, session)
        turn = optional_tokens(row, "turn")
        return (Request(chat, prompt, output_tokens, arrival_s, session, turn),)

    def _session(self, chat: str, parent: str | None) -> str:
        if parent in (None, "-1"):
            root = chat
        else:
            found = self._roots.get(parent)
            if found is None:
                self.tally.note("parent-outside", "a parent_chat_id names no row above it")
            root = found or str(parent)
        self._roots[chat] = root
        if len(self._roots) > REMEMBERED_CHATS:
            self._roots.popitem(last=False)
        return root
