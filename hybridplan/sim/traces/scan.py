"""What the first rows of a file with ``hash_ids`` settle, read once before the first pass."""

from __future__ import annotations

from typing import Any

from hybridplan.sim.traces.blocks import BlockInference, Range, Tail
from hybridplan.sim.traces.clock import PER_SECOND, SessionStarts
from hybridplan.sim.traces.facts import NONE, BadRow, Fact
from hybridplan.sim.traces.format import Opening
from hybridplan.sim.traces.values import id_list, label, number, optional_tokens

SCAN_ROWS = 1000
CHECKED_IDS = 2_000_000
ABSURD_RATE_PER_S = 1000.0


class Chain:
    """Whether every id follows one id only, as it must if it names the whole prefix up to it."""

    def __init__(self) -> None:
        self._before: dict[int, int | None] = {}
        self._checked = 0
        self.rows = 0
        self.broken_line: int | None = None

    def add(self, ids: tuple[int, ...], line: int) -> None:
        """One row; nothing more is checked after a break, or after two million ids."""
        if self.broken_line is not None or self._checked > CHECKED_IDS:
            return
        self._checked += len(ids)
        self.rows += 1
        before: int | None = None
        for item in ids:
            if self._before.setdefault(item, before) != before:
                self.broken_line = line
                self._before.clear()
                return
            before = item


class Scan:
    """Block size, chaining, clock and rate over 1,000 rows, or as many as settle the block size.

    Only files whose lengths leave several block sizes are scanned to their end.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.blocks = BlockInference()
        self.chain = Chain()
        self.starts = SessionStarts()
        self.session_rows = 0
        self._stamped = 0
        self._first = self._last = 0.0
        for count, (line, row) in enumerate(opening.records(), 1):
            if not isinstance(row, BadRow):
                self._add(row, line)
            if count >= SCAN_ROWS and (self.blocks.settled or not self.blocks.rows):
                break

    def _add(self, row: dict[str, Any], line: int) -> None:
        try:
            length_tokens = optional_tokens(row, "input_length")
            ids = id_list(row.get("hash_ids"), "hash_ids")
            if length_tokens and ids:
                self.blocks.add(length_tokens, len(ids), line)
                if self.blocks.rows <= SCAN_ROWS:
                    self.chain.add(ids, line)
            if row.get("timestamp") not in (None, ""):
                self._stamp(row)
        except BadRow:
            return

    def _stamp(self, row: dict[str, Any]) -> None:
        stamp = float(number(row["timestamp"], "timestamp"))
        session = label(row.get("session_id"))
        if session is not None:
            self.session_rows += 1
            self.starts.add(session, stamp)
        self._first = min(self._first, stamp) if self._stamped else stamp
        self._last = max(self._last, stamp) if self._stamped else stamp
        self._stamped += 1

    def block(self, usual: int | None) -> tuple[Fact, Fact]:
        """(tokens per id, tail), given or inferred. InputError if the rows leave it open."""
        options = self.opening.options
        if not self.blocks.rows:
            return NONE, NONE
        found = self._range(options.tail, options.block_tokens)
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

    def _range(self, tail: Tail | None, block_tokens: int | None) -> Range:
        best = self.blocks.best(tail)
        if tail is None and block_tokens is not None and not best.allows(block_tokens):
            other = self.blocks.floor if best.tail == "ceil" else self.blocks.ceil
            if other.allows(block_tokens) and not other.misfits:
                return other
        return best

    def _check_given(self, block_tokens: int, found: Range) -> None:
        if not found.allows(block_tokens) and not found.misfits:
            raise self.opening.refuse(
                f"--block-tokens {block_tokens} disagrees with the file: its lengths and id "
                f"counts allow {found}"
            )

    def time_unit(self, settled: Fact) -> Fact:
        """The settled unit with the request rate it implies; refused when it is absurd."""
        if self._first == self._last or self.session_rows:
            return settled
        span_s = (self._last - self._first) / PER_SECOND[settled.value]
        rate = (self._stamped - 1) / span_s
        shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        why = f"it implies {shown} requests/s over the first {self._stamped:,} rows"
        if settled.how == "format" and rate >= ABSURD_RATE_PER_S:
            raise self.opening.refuse(
                f"timestamps in {settled.value} would mean {rate:,.0f} requests/s, in s "
                f"{rate / PER_SECOND[settled.value]:.3g}; say --time-unit"
            )
        return Fact(settled.value, settled.how, f"{settled.why}; {why}".lstrip("; "))

    def ids(self) -> Fact:
        """ "prefix" while no id contradicts it, else "unit": ids name their own unit only."""
        line = self.chain.broken_line
        if line is None:
            return Fact("prefix", "format", f"{self.chain.rows:,} rows agree")
        why = f"at line {line} an id follows another one than before, so it names its unit only"
        return Fact("unit", "inferred", why)
