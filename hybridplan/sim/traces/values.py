"""Cells of a row as numbers: what a trace may write for a token count, an id list or a stamp."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from hybridplan.sim.traces.facts import BadRow

MAX_TOKENS = 10**9
MAX_ID = 2**128

Row = Mapping[str, Any]


def shown(value: object) -> str:
    """A value as an error sentence quotes it: one line, at most 40 characters."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def number(value: object, name: str) -> int | float:
    """A finite number from a JSON number or a CSV cell; BadRow for anything else."""
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise BadRow(f"{name} is empty")
        try:
            value = (
                int(text) if len(text) <= 40 and text.isascii() and _digits(text) else float(text)
            )
        except ValueError:
            raise BadRow(f"{name} is {shown(text)}, not a number") from None
    if value is None:
        raise BadRow(f"{name} is missing or null")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRow(f"{name} is {shown(value)}, not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRow(f"{name} is {value}, not a finite number")
    if isinstance(value, int) and abs(value) >= 10**30:
        raise BadRow(f"{name} is {shown(value)}, far out of range")
    return value


def _digits(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def tokens(value: object, name: str) -> int:
    """A token count: a whole number from 0 to 10^9, also as 12.0 or "12"."""
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    found = number(value, name)
    if isinstance(found, float):
        if not found.is_integer():
            raise BadRow(f"{name} is {found}, not a whole number of tokens")
        found = int(found) if abs(found) <= MAX_TOKENS else MAX_TOKENS + 1
    if found < 0:
        raise BadRow(f"{name} is {shown(value)}, below zero")
    if found > MAX_TOKENS:
        raise BadRow(f"{name} is {shown(value)}, more than {MAX_TOKENS:,} tokens")
    return found


def optional_tokens(row: Row, name: str) -> int | None:
    """The count under ``name``, None when absent, null or an empty cell."""
    value = row.get(name)
    return None if value is None or value == "" else tokens(value, name)


def id_list(value: object, name: str) -> tuple[int, ...]:
    """Prefix ids: a list of integers, or the same as JSON text in a CSV cell; () when absent."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadRow(f"{name} is {shown(value)}, not a list of integers") from None
    if not isinstance(value, list):
        raise BadRow(f"{name} is {shown(value)}, not a list of integers")
    if value and set(map(type, value)) != {int}:
        wrong = next(item for item in value if type(item) is not int)
        raise BadRow(f"{name} holds {shown(wrong)}, not an integer")
    if value and not -MAX_ID < min(value) <= max(value) < MAX_ID:
        raise BadRow(f"{name} holds an integer beyond 128 bits")
    return tuple(value)


def text(row: Row, name: str) -> str:
    """The string under ``name``; BadRow when it is anything else."""
    value = row.get(name)
    if not isinstance(value, str):
        raise BadRow(f"{name} is {shown(value)}, not text")
    return value


def label(value: object) -> str | None:
    """A session or request name: text, or a whole number; None when absent or empty."""
    if value is None or value == "":
        return None
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    raise BadRow(f"a name is {shown(value)}, neither text nor a whole number")
