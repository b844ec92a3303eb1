"""What one engine step computes, in the engine's own words: requests, positions, copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Chunk: TypeAlias = "tuple[int, int]"
"""(start, tokens): positions [start, start + tokens) of one request."""


@dataclass(slots=True)
class StepWork:
    """One pass of the model over a batch, or ``repeats`` like it.

    Attributes:
        contexts: of each request that computes one token: its length in tokens, that token
            included.
        chunks: of each request that prefills a chunk.
        windows: of each request that verifies drafts: a window of drafts + 1 tokens.
        head_rows: rows of the output head (tokens whose logits are needed).
        copied_bytes: read and written again to copy states, on one rank.
        proposed: tokens that a draft model proposes after the pass for each request with logits.
        repeats: equal passes; each finds every context one token longer than the pass before.
            Above 1 there are contexts only.
    """

    contexts: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    windows: list[Chunk] = field(default_factory=list)
    head_rows: int = 0
    copied_bytes: int = 0
    proposed: int = 0
    repeats: int = 1

    @property
    def tokens(self) -> int:
        """Tokens computed, all repeats together."""
        others = sum(n for _, n in self.chunks) + sum(n for _, n in self.windows)
        return self.repeats * (len(self.contexts) + others)

    @property
    def empty(self) -> bool:
        """Whether the model is not run at all."""
        return not (self.contexts or self.chunks or self.windows)
