"""open_trace and the Trace it returns: detection, then a re-iterable stream of requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybridplan.errors import InputError
from hybridplan.sim.request import Request
from hybridplan.sim.traces.detect import LOG_FORMATS, choose_format
from hybridplan.sim.traces.facts import BadRow, Fact, How, Tally, TraceCounts, TraceInfo
from hybridplan.sim.traces.format import Format, Opening
from hybridplan.sim.traces.link import link_sessions
from hybridplan.sim.traces.options import TraceOptions
from hybridplan.sim.traces.order import in_time_order
from hybridplan.sim.traces.records import sample
from hybridplan.sim.traces.source import Source


class Trace:
    """An opened trace. ``requests()`` reads it from the start, as often as wanted.

    ``info`` and ``counts`` describe the latest pass (warnings and counts grow as it goes).
    """

    def __init__(self, opening: Opening, fmt: Format, chosen: How) -> None:
        self._opening = opening
        self._format = fmt
        try:
            self._plan = fmt.plan(opening)
        except BadRow as error:
            raise opening.refuse(str(error)) from error
        self._tally = Tally()
        self.options = opening.options
        self.counts = TraceCounts()
        plan = self._plan
        sessions = plan.sessions
        if self.options.link_sessions:
            why = "outputs are read off the next prompt of the session that starts alike"
            sessions = Fact(sessions.value, sessions.how, f"{sessions.why}; {why}".lstrip("; "))
        self._info = TraceInfo(
            path=str(opening.source.path),
            format=fmt.name,
            dialect=plan.dialect,
            chosen=chosen,
            unit=plan.unit,
            tail=plan.tail,
            ids=plan.ids,
            id_scope=plan.id_scope,
            time_unit=plan.time_unit,
            clock_scope=plan.clock_scope,
            inputs=plan.inputs,
            outputs=plan.outputs,
            sessions=sessions,
        )

    @property
    def info(self) -> TraceInfo:
        """What was detected and how, with the warnings so far."""
        return replace(self._info, warnings=self._tally.notices())

    def requests(self) -> Iterator[Request]:
        """The requests, one at a time.

        Raises InputError naming the line when more rows are bad than ``skip_bad`` allows, when
        the file breaks off, or when ``order="time"`` needs a larger ``window``.
        """
        options = self.options
        self._tally = Tally()
        self.counts = TraceCounts()
        stream = self._read()
        if options.order == "time":
            stream = in_time_order(stream, options.window, str(self._opening.source.path))
        if options.link_sessions:
            stream = link_sessions(stream, options.window)
        return self._counted(stream)

    def _read(self) -> Iterator[Request]:
        rows = self._format.rows(self._opening, self._plan, self._tally)
        tally = self._tally
        read = rows.read
        watch = _Watch(tally, self._plan.clock_scope.value == "session")
        for line, row in self._opening.records():
            tally.line = line
            try:
                if type(row) is BadRow:
                    raise row
                found = read(row)
            except BadRow as error:
                self._bad_row(line, error)
                continue
            yield from self._kept(found, watch)
        tally.line = None
        yield from self._kept(rows.finish(), watch)

    def _kept(self, found: Iterable[Request], watch: _Watch) -> Iterator[Request]:
        for request in found:
            if watch.empty(request) and self.options.drop_empty:
                self.counts = replace(self.counts, empty_dropped=self.counts.empty_dropped + 1)
            else:
                yield request

    def _bad_row(self, line: int, error: BadRow) -> None:
        bad = self.counts.bad_rows + 1
        self.counts = replace(self.counts, bad_rows=bad)
        allowed = self.options.skip_bad
        if bad > allowed:
            more = "" if not allowed else f" ({bad - 1:,} bad rows were skipped before it)"
            raise InputError(
                f"{self._opening.source.path}, line {line}: {error}{more}; mend the row, or let "
                f"bad rows go with --skip-bad {bad} or more"
            )
        self._tally.note("bad-row", f"a row was skipped: line {line}: {error}")

    def _counted(self, stream: Iterator[Request]) -> Iterator[Request]:
        requests = input_tokens = output_tokens = 0
        limit = self.options.limit
        try:
            for request in stream:
                requests += 1
                input_tokens += request.prompt.length_tokens
                output_tokens += request.output_tokens
                yield request
                if requests == limit:
                    return
            if not requests:
                raise InputError(f"{self._opening.source.path} holds no request")
        finally:
            self.counts = replace(
                self.counts,
                requests=requests,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            )


class _Watch:
    """Warnings that concern every format: empty lengths, stamps that go back."""

    def __init__(self, tally: Tally, per_session: bool) -> None:
        self._tally = tally
        self._per_session = per_session
        self._session: str | None = None
        self._latest_s: float | None = None

    def empty(self, request: Request) -> bool:
        """Note what is odd; True if the prompt or the output has no token."""
        arrival_s = request.arrival_s
        if arrival_s is not None:
            if self._per_session and request.session != self._session:
                self._latest_s = None
                self._session = request.session
            if self._latest_s is not None and arrival_s < self._latest_s:
                self._tally.note(
                    "unsorted", "a request arrives before the one above it; --order time sorts"
                )
            self._latest_s = arrival_s
        if request.prompt.length_tokens and request.output_tokens:
            return False
        if not request.prompt.length_tokens:
            self._tally.note("empty-prompt", "a prompt has no token; --drop-empty leaves it out")
        else:
            self._tally.note("empty-output", "an output has no token (a failed request?)")
        return True


def open_trace(path: str | Path, *, format: str | None = None, **options: Any) -> Trace:
    """Open a trace file, whatever its format.

    ``format`` forces one of ``format_names()``; without it the first rows decide. ``options`` are
    the fields of TraceOptions. Raises InputError when the file is no trace, when several formats
    fit, or when a unit or block size can neither be read nor inferred.
    """
    settings = TraceOptions(**options)
    source = Source(path)
    first = sample(source, "log" if format in LOG_FORMATS else None)
    fmt, chosen = choose_format(str(source.path), first, format)
    return Trace(Opening(source, first, settings), fmt, chosen)
