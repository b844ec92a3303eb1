"""A failed command as JSON."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """``kind`` is input, config, refused, usage, interrupted, ...; ``message`` is one sentence."""

    kind: str
    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class FailureReport:
    """All that a failed command prints with --json."""

    schema_version: int
    error: Failure
