"""The counts that a step's time is linear in."""

from __future__ import annotations

from typing import NamedTuple

FEATURES: dict[str, str] = {
    "step": "s, once a step",
    "launches": "s a kernel launched",
    "bytes": "s a byte read or written",
    "dense_flop": "s a FLOP of projections and MLPs",
    "attention_flop": "s a FLOP of attention in a prefill",
    "scan_flop": "s a FLOP of the recurrent layers in a prefill",
}


class Counts(NamedTuple):
    """How much of each feature; whole numbers, on one rank."""

    step: int = 0
    launches: int = 0
    bytes: int = 0
    dense_flop: int = 0
    attention_flop: int = 0
    scan_flop: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sum, feature by feature."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def less(self, other: Counts) -> Counts:
        """The difference, feature by feature."""
        return Counts(*(a - b for a, b in zip(self, other, strict=True)))

    def times(self, factor: int) -> Counts:
        """Each feature ``factor`` times."""
        return Counts(*(factor * a for a in self))
