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
from hybridplan.sim.traces.blocks import BlockInference, Range
from hybridplan.sim.traces.clock import PER_SECOND, SessionStarts, Stamps, settle_unit
from hybridplan.sim.traces.facts import NONE, BadRow, Fact, Plan, Tally
from hybridplan.sim.traces.format import Format, Opening, Rows
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.values import id_list, label, number, optional_tokens, tokens

SCAN_ROWS = 1000
ABSURD_RATE_PER_S = 1000.0


class Mooncake(Format):
    """``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``."""

    name = "mooncake"
    title = "Mooncake JSONL (also Dynamo, aiperf, guidellm, vLLM timed_trace)"
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
        plan = Plan("mooncake", unit=unit, tail=tail, id_scope=scope if unit is not NONE else NONE)
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


class Scan:
    """The rows it takes to settle the block size (1,000 at least), read once before the first pass.

    It stops early; only files whose lengths leave several sizes are scanned to their end.
    """

    def __init__(self, opening: Opening, time_name: str = "timestamp") -> None:
        self.opening = opening
        self.blocks = BlockInference()
        self.starts = SessionStarts()
        self.session_rows = 0
        self._stamps: list[float] = []
        self._stamped = 0
        for count, (line, row) in enumerate(opening.records(), 1):
            if not isinstance(row, BadRow):
                self._add(row, line, time_name)
            if count >= SCAN_ROWS and (self.blocks.settled or not self.blocks.rows):
                break

    def _add(self, row: dict[str, Any], line: int, time_name: str) -> None:
        try:
            length_tokens = optional_tokens(row, "input_length")
            ids = row.get("hash_ids")
            if length_tokens and ids:
                count = len(ids) if isinstance(ids, list) else len(id_list(ids, "hash_ids"))
                self.blocks.add(length_tokens, count, line)
            if row.get(time_name) not in (None, ""):
                stamp = float(number(row[time_name], time_name))
                session = label(row.get("session_id"))
                if session is not None:
                    self.session_rows += 1
                    self.starts.add(session, stamp)
                self._stamped += 1
                self._stamps = [min([stamp, *self._stamps]), max([stamp, *self._stamps])]
        except BadRow:
            return

    def block(self, usual: int | None) -> tuple[Fact, Fact]:
        """(tokens per id, tail), given or inferred. InputError if the rows leave it open."""
        options = self.opening.options
        if not self.blocks.rows:
            return NONE, NONE
        found = self.blocks.best(options.tail)
        tail = Fact(found.tail, "given" if options.tail else "inferred")
        if options.block_tokens is not None:
            self._check_given(options.block_tokens, found)
            return Fact(str(options.block_tokens), "given"), tail
        if found.misfits > options.skip_bad:
            raise self.opening.refuse(
                f"line {found.first_misfit}: the number of hash_ids disagrees with the rows above "
                f"it, whose lengths allow blocks of {found} tokens; say --block-tokens, or let "
                f"bad rows go with --skip-bad {found.misfits}"
            )
        if found.single:
            why = f"lengths and id counts of {self.blocks.rows:,} rows allow no other"
            return Fact(str(found.low), "inferred", why), tail
        powers = found.powers_of_two()
        if len(powers) == 1:
            why = f"lengths and id counts allow {found}; it is the only power of two among them"
            return Fact(str(powers[0]), "inferred", why), tail
        hint = f" (published Mooncake traces use {usual})" if usual else ""
        raise self.opening.refuse(
            f"the lengths leave the block size open ({found} tokens per id); say "
            f"--block-tokens{hint}"
        )

    def _check_given(self, block_tokens: int, found: Range) -> None:
        if not found.allows(block_tokens) and not found.misfits:
            raise self.opening.refuse(
                f"--block-tokens {block_tokens} disagrees with the file: its lengths and id "
                f"counts allow {found}"
            )

    def time_unit(self, settled: Fact) -> Fact:
        """The settled unit with the request rate it implies; refused when it is absurd."""
        if len(self._stamps) < 2 or self._stamps[0] == self._stamps[1] or self.session_rows:
            return settled
        span_s = (self._stamps[1] - self._stamps[0]) / PER_SECOND[settled.value]
        rate = (self._stamped - 1) / span_s
        why = f"it implies {rate:.3g} requests/s over the first {self._stamped:,} rows"
        if settled.how == "format" and rate > ABSURD_RATE_PER_S:
            raise self.opening.refuse(
                f"timestamps in {settled.value} would mean {rate:,.0f} requests/s, in s "
                f"{rate / PER_SECOND[settled.value]:.3g}; say --time-unit"
            )
        return Fact(settled.value, settled.how, f"{settled.why}; {why}".lstrip("; "))


class MooncakeRows(Rows):
    """One request per row."""

    def __init__(self, opening: Opening, plan: Plan, tally: Tally) -> None:
        super().__init__(tally)
        self._unit = int(plan.unit.value) if plan.unit is not NONE else 1
        self._floor = plan.tail.value == "floor"
        self._ids_known = plan.unit is not NONE
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
        length_tokens = tokens(row.get("input_length"), "input_length")
        output_tokens = self._output(row)
        session = label(row.get("session_id"))
        arrival_s = self._arrival(row, session)
        prompt = self.prompt(row, length_tokens, session)
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

    def prompt(self, row: dict[str, Any], length_tokens: int, session: str | None) -> Prompt:
        """Length and ids; BadRow when the number of ids disagrees with the block size."""
        ids = id_list(row.get("hash_ids"), "hash_ids")
        unit = self._unit
        wanted = length_tokens // unit if self._floor else -(-length_tokens // unit)
        if not ids:
            if self._ids_known and wanted:
                self.tally.note("no-ids", "a prompt has no hash_ids and shares nothing")
            return Prompt(length_tokens, unit, (), self._ids_known, self._scope)
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
        return Prompt(length_tokens, unit, ids, True, scope)
