"""Sizes as users write them: a number and a unit, never a bare number."""

from __future__ import annotations

import re
from decimal import Decimal

from hybridplan.errors import InputError

_UNITS = {"b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}ib"] = 1024**_power
    _UNITS[f"{_letter}b"] = 1000**_power
_PATTERN = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]*)")
MAX_BYTES = 1 << 60


def parse_bytes(text: str, flag: str) -> int:
    """Bytes of "42GiB", "80 GB", "512MiB"; fractions of a byte are dropped.

    Raises InputError without a unit, with an unknown one, or beyond 1 EiB, naming ``flag``.
    """
    match = _PATTERN.fullmatch(text.strip())
    if not match:
        raise InputError(f"{flag} {text!r} is not a size; write a number and a unit, as in 42GiB")
    number, unit = match.groups()
    if not unit:
        raise InputError(f"{flag} {text} has no unit; write {text}GiB or {text}GB")
    if unit.lower() not in _UNITS:
        raise InputError(f"{flag} {text!r}: unit {unit!r} is not one of B, KiB, MiB, GiB, TiB, GB")
    size = int(Decimal(number) * _UNITS[unit.lower()])
    if size > MAX_BYTES:
        raise InputError(f"{flag} {text} is {size:,} bytes; the largest accepted is 1 EiB")
    return size


def gib(size_bytes: int) -> str:
    """Bytes as GiB with two decimals, the way engines' logs print them."""
    return f"{size_bytes / 1024**3:,.2f} GiB"
