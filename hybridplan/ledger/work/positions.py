"""Sums over positions: what attention reads of a context, and the pairs it scores.

A ``Reach`` says how far back a token looks. Naive twins stand in tests/ledger/work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """``tokens`` back at most, or all (None); ``chunked``: all since the last multiple of it."""

    tokens: int | None = None
    chunked: bool = False

    def upto(self, position: int) -> int:
        """Keys read by tokens 1, ..., ``position`` together, each counting itself."""
        size = self.tokens
        if size is None:
            return position * (position + 1) // 2
        if self.chunked:
            whole, rest = divmod(position, size)
            return whole * size * (size + 1) // 2 + rest * (rest + 1) // 2
        inside = min(position, size)
        return inside * (inside + 1) // 2 + (position - inside) * size

    def read(self, context: int, steps: int = 1) -> int:
        """Keys read by decode steps whose contexts are ``context``, ``context`` + 1, ..."""
        if self.tokens is None:
            return steps * context + steps * (steps - 1) // 2
        return self.upto(context + steps - 1) - self.upto(context - 1)

    def pairs(self, start: int, tokens: int) -> int:
        """(query, key) pairs of a chunk of ``tokens`` that begins at position ``start``."""
        return self.upto(start + tokens) - self.upto(start)

    def before(self, start: int) -> int:
        """Keys before position ``start`` that a chunk beginning there reads."""
        size = self.tokens
        if size is None:
            return start
        return start % size if self.chunked else min(start, size - 1)


FULL = Reach()
