"""What a reader found out about a trace, and how: the typed side of every answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

How = Literal["format", "read", "inferred", "given"]
IdScope = Literal["global", "file", "session"]
ClockScope = Literal["global", "session"]
TimeUnit = Literal["s", "ms", "us", "ns"]


class BadRow(Exception):  # noqa: N818 - a row is bad; whether that is an error --skip-bad decides
    """One row that cannot be read as a request; the message ends a sentence "line N: ..."."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value and how it was obtained.

    ``how``: "format" (the format's definition says so), "read" (stands in the file), "inferred"
    (follows from the rows; ``why`` gives the evidence) or "given" (by the caller).
    """

    value: str
    how: How
    why: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """One kind of warning: how often it applied, and the first line it applied to."""

    code: str
    sentence: str
    count: int = 1
    first_line: int | None = None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What is known about an opened trace.

    ``unit`` is the token width of one prefix id ("none" when rows carry no ids), ``tail`` whether
    a prompt's last partial unit has an id ("ceil") or not ("floor"), ``ids`` whether an id names
    the whole "prefix" up to its unit's end or the "unit" alone. ``time_unit`` is the unit of
    the file's stamps (arrivals are always handed out in s), ``clock_scope`` whether all requests
    share one clock. ``inputs`` tells cumulative prompts from turn deltas, ``outputs`` actual
    lengths from caps. ``warnings`` grow while the trace is read.
    """

    path: str
    format: str
    dialect: str
    chosen: How
    unit: Fact
    tail: Fact
    ids: Fact
    id_scope: Fact
    time_unit: Fact
    clock_scope: Fact
    inputs: Fact
    outputs: Fact
    sessions: Fact
    warnings: tuple[Notice, ...] = ()

    @property
    def unit_tokens(self) -> int | None:
        """Tokens per prefix id, None when rows carry no ids."""
        return int(self.unit.value) if self.unit.value.isdigit() else None

    @property
    def has_clock(self) -> bool:
        """Whether requests carry an arrival time."""
        return self.time_unit.value != "none"


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """What the latest pass over a trace handed out and left out."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    bad_rows: int = 0
    empty_dropped: int = 0


NONE = Fact("none", "format", "the format has none")


@dataclass(slots=True)
class Plan:
    """What a format settled when it was opened; TraceInfo's fields before reading."""

    dialect: str
    unit: Fact = NONE
    tail: Fact = NONE
    ids: Fact = NONE
    id_scope: Fact = NONE
    time_unit: Fact = NONE
    clock_scope: Fact = NONE
    inputs: Fact = field(default_factory=lambda: Fact("cumulative", "format"))
    outputs: Fact = field(default_factory=lambda: Fact("actual", "format"))
    sessions: Fact = NONE


class Tally:
    """Warnings of one pass, merged by code; ``line`` is the row being read."""

    def __init__(self) -> None:
        self.line: int | None = None
        self._notices: dict[str, Notice] = {}

    def note(self, code: str, sentence: str) -> None:
        """Count one occurrence of a warning; the first one's sentence and line are kept."""
        known = self._notices.get(code)
        if known is None:
            self._notices[code] = Notice(code, sentence, 1, self.line)
        else:
            self._notices[code] = Notice(code, known.sentence, known.count + 1, known.first_line)

    def notices(self) -> tuple[Notice, ...]:
        """Every warning so far, in order of first appearance."""
        return tuple(self._notices.values())
