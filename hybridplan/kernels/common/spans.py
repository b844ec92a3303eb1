"""Token ranges between exported positions, for kernels that walk a sequence by themselves."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from hybridplan.kernels.common.varlen import ChunkIndex


@dataclass(frozen=True, eq=False)
class Spans:
    """spans: int32 [spans, 4]: first token, end token, export slot (-1: none), sequence.

    sequences: int32 [N, 2]: a sequence's first span and number of spans, at least one each.
    """

    spans: torch.Tensor
    sequences: torch.Tensor


_MADE: weakref.WeakKeyDictionary[ChunkIndex, Spans] = weakref.WeakKeyDictionary()
"""Spans live as long as the chunk table they belong to, which captured graphs keep alive."""


def spans_of(index: ChunkIndex, exports: tuple[tuple[int, int, int], ...]) -> Spans:
    """Spans of the batch that ``index`` was made for, with the same exports; made once."""
    made = _MADE.get(index)
    if made is None:
        rows: list[tuple[int, int, int, int]] = []
        shares: list[tuple[int, int]] = []
        base = 0
        for n, length in enumerate(index.lengths):
            stops = sorted((position, slot) for s, position, slot in exports if s == n)
            if not stops or stops[-1][0] < length:
                stops.append((length, -1))
            shares.append((len(rows), len(stops)))
            start = base
            for position, slot in stops:
                rows.append((start, base + position, slot, n))
                start = base + position
            base += length
        device = index.chunks.device
        made = Spans(
            torch.tensor(rows, dtype=torch.int32, device=device),
            torch.tensor(shares, dtype=torch.int32, device=device),
        )
        _MADE[index] = made
    return made
