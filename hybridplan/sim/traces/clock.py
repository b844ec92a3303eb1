"""Stamps of a file as seconds: the unit, the epoch, and clocks that restart with each session.

A file's stamps are either relative (from 0) or epochs. Epochs are recognised by size (years 2001
to 2096: 1e9 s, 1e12 ms, 1e15 us, 1e18 ns) and counted from the first row, in integers where the
file has integers, so that 100 ns of an epoch survive.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from hybridplan.errors import InputError
from hybridplan.sim.traces.facts import BadRow, Fact, TimeUnit
from hybridplan.sim.traces.values import number, shown

PER_SECOND: dict[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
MAX_SPAN_S = 10**10

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?\s*(Z|UTC|[+-]\d\d:?\d\d)?"
)


def epoch_unit(stamp: float) -> TimeUnit | None:
    """The unit in which a stamp is a date between 2001 and 2096, None for a relative stamp."""
    for unit, per_second in PER_SECOND.items():
        if 10**9 * per_second <= stamp < 4 * 10**9 * per_second:
            return unit  # type: ignore[return-value]
    return None


def iso_ns(value: object, name: str) -> int:
    """An ISO-like UTC date as integer ns since 1970; any number of fractional digits up to 9."""
    found = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise BadRow(f"{name} is {shown(value)}, not a date like 2023-11-16 18:15:46.6805900")
    day, time_of_day, fraction, zone = found.groups()
    offset = "+00:00" if zone in (None, "Z", "UTC") else zone
    if ":" not in offset:
        offset = offset[:3] + ":" + offset[3:]
    try:
        moment = datetime.fromisoformat(f"{day}T{time_of_day}{offset}")
    except ValueError as error:
        raise BadRow(f"{name} is {shown(value)}: {error}") from None
    delta = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (delta.days * 86400 + delta.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))


def settle_unit(
    first: object, name: str, *, given: TimeUnit | None, defined: TimeUnit | None
) -> Fact:
    """The unit of numeric stamps, from the caller, the format, or the size of an epoch.

    Raises InputError when the format defines none and the stamps are relative, or when the first
    stamp is an epoch in another unit than the format's.
    """
    if given is not None:
        return Fact(given, "given")
    try:
        by_size = epoch_unit(number(first, name))
    except BadRow:
        by_size = None
    if by_size is not None and defined not in (None, by_size):
        raise InputError(
            f"{name} starts at {shown(first)}, a date in {by_size}, but the format counts in "
            f"{defined}; say --time-unit {by_size} or --time-unit {defined}"
        )
    if by_size is not None:
        return Fact(by_size, "inferred", f"{shown(first)} is a date only in {by_size}")
    if defined is not None:
        return Fact(defined, "format")
    raise InputError(
        f"nothing in the file says the unit of {name} (it starts at {shown(first)}); "
        "say --time-unit s, ms, us or ns"
    )


class Stamps:
    """Numeric stamps of one pass, in s; epochs count from the first row."""

    def __init__(self, unit: str, name: str) -> None:
        self.name = name
        self._per_second = PER_SECOND[unit]
        self._base: int | float | None = None
        self._limit = MAX_SPAN_S * self._per_second

    def seconds(self, value: Any) -> float:
        """One stamp in s. BadRow for anything that is no finite number of a sane size."""
        stamp = number(value, self.name)
        if self._base is None:
            self._base = stamp if epoch_unit(stamp / self._per_second) == "s" else 0
        since = stamp - self._base
        if not -self._limit <= since <= self._limit:
            raise BadRow(f"{self.name} is {shown(value)}, too far from the first row's")
        return since / self._per_second


class DateStamps:
    """ISO dates of one pass, in s after the first row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._base_ns: int | None = None

    def seconds(self, value: object) -> float:
        """One date in s after the first row's; negative when it lies before."""
        stamp_ns = iso_ns(value, self.name)
        if self._base_ns is None:
            self._base_ns = stamp_ns
        return (stamp_ns - self._base_ns) / 10**9


class SessionStarts:
    """Whether each session's stamps start at zero, so that every session has its own clock.

    Judged over the sessions that are complete in what was scanned; two at least.
    """

    def __init__(self) -> None:
        self._current: str | None = None
        self._least = 0.0
        self._restarts = 0
        self._others = 0

    def add(self, session: str | None, stamp: float) -> None:
        """One row of the scan."""
        if session != self._current:
            self._close()
            self._current, self._least = session, stamp
        else:
            self._least = min(self._least, stamp)

    def _close(self) -> None:
        if self._current is not None:
            self._restarts += self._least == 0
            self._others += self._least != 0

    def fact(self) -> Fact:
        """clock_scope "session" if every scanned session starts at 0, else "global"."""
        self._close()
        self._current = None
        if self._restarts >= 2 and not self._others:
            why = f"the stamps of each of the first {self._restarts} sessions start at 0"
            return Fact("session", "inferred", why)
        return Fact("global", "format")
