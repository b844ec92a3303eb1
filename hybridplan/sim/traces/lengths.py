"""Rows that are a pair of lengths and perhaps a stamp: what several CSV formats share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridplan.sim.request import Prompt, Request
from hybridplan.sim.traces.clock import DateStamps, Stamps
from hybridplan.sim.traces.facts import BadRow, Tally
from hybridplan.sim.traces.format import Rows
from hybridplan.sim.traces.values import label, optional_tokens, tokens


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a row keeps what; None where it does not."""

    input: str
    output: str
    time: str | None = None
    session: str | None = None
    turn: str | None = None
    request_id: str | None = None
    agent: str | None = None


class LengthRows(Rows):
    """One request per row, without ids. ``output_tokens`` stands in where a row names none."""

    def __init__(
        self,
        tally: Tally,
        columns: Columns,
        stamps: Stamps | DateStamps | None,
        output_tokens: int | None = None,
    ) -> None:
        super().__init__(tally)
        self._columns = columns
        self._seconds: Callable[[Any], float] | None = stamps.seconds if stamps else None
        self._output_tokens = output_tokens
        self._count = 0

    def read(self, row: Any) -> Sequence[Request]:
        columns = self._columns
        length_tokens = tokens(row.get(columns.input), columns.input)
        output = row.get(columns.output)
        if (output is None or output == "") and self._output_tokens is not None:
            output = self._output_tokens
            self.tally.note("output-given", "a row names no output; --output-tokens applies")
        output_tokens = tokens(output, columns.output)
        arrival_s = None
        if self._seconds is not None and columns.time is not None:
            if row.get(columns.time) in (None, ""):
                raise BadRow(f"{columns.time} is missing or null")
            arrival_s = self._seconds(row[columns.time])
        request_id = label(row.get(columns.request_id)) if columns.request_id else None
        request = Request(
            str(self._count) if request_id is None else request_id,
            Prompt(length_tokens),
            output_tokens,
            arrival_s,
            self._session(row),
            optional_tokens(row, columns.turn) if columns.turn else None,
        )
        self._count += 1
        return (request,)

    def _session(self, row: Any) -> str | None:
        if self._columns.session is None:
            return None
        session = label(row.get(self._columns.session))
        agent = label(row.get(self._columns.agent)) if self._columns.agent else None
        return f"{session}/{agent}" if session and agent else session
