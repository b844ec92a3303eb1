"""Tokens per prefix id, inferred from lengths, for files that never say it.

With n ids for L tokens, blocks of B tokens whose partial tail has an id (ceil) mean
(n - 1) B < L <= n B; without (floor), n B <= L < (n + 1) B. Each row bounds B; the rows together
usually leave one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Tail = Literal["ceil", "floor"]


def bounds(length_tokens: int, ids: int, tail: Tail) -> tuple[int, int | None] | None:
    """Least and greatest block size (None: unbounded) one row allows; None if it allows none."""
    if tail == "ceil":
        if ids == 0:
            return (1, None) if length_tokens == 0 else None
        if length_tokens == 0:
            return None
        low = -(-length_tokens // ids)
        high = None if ids == 1 else (length_tokens - 1) // (ids - 1)
    else:
        low = length_tokens // (ids + 1) + 1
        high = None if ids == 0 else length_tokens // ids
    return (low, high) if high is None or low <= high else None


@dataclass(slots=True)
class Range:
    """The block sizes every row so far allows under one tail; rows that fit none are set aside."""

    tail: Tail
    low: int = 1
    high: int | None = None
    misfits: int = 0
    first_misfit: int | None = None

    def add(self, length_tokens: int, ids: int, line: int) -> None:
        """Narrow the range by one row."""
        row = bounds(length_tokens, ids, self.tail)
        if row is not None:
            low = max(self.low, row[0])
            high = row[1] if self.high is None else min(self.high, row[1] or self.high)
            if high is None or low <= high:
                self.low, self.high = low, high
                return
        self.misfits += 1
        self.first_misfit = self.first_misfit or line

    @property
    def single(self) -> bool:
        """Whether exactly one size is left."""
        return self.low == self.high

    def allows(self, block_tokens: int) -> bool:
        """Whether a block size lies in the range."""
        return self.low <= block_tokens and (self.high is None or self.high >= block_tokens)

    def powers_of_two(self) -> list[int]:
        """Powers of two in the range, at most two of them (more are of no use)."""
        power = 1 << (self.low - 1).bit_length()
        found: list[int] = []
        while len(found) < 2 and (self.high is None or power <= self.high):
            found.append(power)
            power *= 2
        return found

    def __str__(self) -> str:
        if self.single:
            return str(self.low)
        return f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"


@dataclass(slots=True)
class BlockInference:
    """Both tails' ranges over the rows that carry ids."""

    ceil: Range = field(default_factory=lambda: Range("ceil"))
    floor: Range = field(default_factory=lambda: Range("floor"))
    rows: int = 0

    def add(self, length_tokens: int, ids: int, line: int) -> None:
        """One row; rows without ids say nothing."""
        if ids:
            self.rows += 1
            self.ceil.add(length_tokens, ids, line)
            self.floor.add(length_tokens, ids, line)

    @property
    def settled(self) -> bool:
        """Whether more rows can change nothing but the count of misfits."""
        return (self.ceil.single and not self.ceil.misfits) or (
            self.floor.single and not self.floor.misfits and self.ceil.misfits > 0
        )

    def best(self, tail: Tail | None) -> Range:
        """The range that fits more rows; ceil, the Mooncake definition, when both fit alike."""
        if tail is not None:
            return self.ceil if tail == "ceil" else self.floor
        return self.floor if self.floor.misfits < self.ceil.misfits else self.ceil
