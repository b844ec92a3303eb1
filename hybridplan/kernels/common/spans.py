"""Token ranges between exported positions, for kernels that walk a sequence by themselves."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from hybridplan.kernels.common.checks import KernelInputError, is_capturing
from hybridplan.kernels.common.varlen import ChunkIndex


@dataclass(frozen=True, eq=False)
class Spans:
    """spans: int32 [spans, 4]: first token, end token, export slot (-1: none), sequence.

    walks: int32 [walks, 8]: first span, number of spans (at least one), sequence, place in its
    sequence, walks of its sequence, first walk of its sequence; one program goes one walk. Without
    segments a sequence is one walk, and walk n is sequence n.
    inner: int32 [inner_count], the walks that another one of the same sequence follows.
    """

    spans: torch.Tensor
    walks: torch.Tensor
    inner: torch.Tensor
    walk_count: int
    inner_count: int


_MADE: weakref.WeakKeyDictionary[ChunkIndex, dict[int, Spans]] = weakref.WeakKeyDictionary()
"""Spans live as long as the chunk table they belong to, which captured graphs keep alive."""


def spans_of(
    index: ChunkIndex, exports: tuple[tuple[int, int, int], ...], segment_tokens: int = 0
) -> Spans:
    """Spans of the batch that ``index`` was made for, with the same exports; made once.

    A walk ends after ``segment_tokens`` tokens of its sequence (0: only with the sequence).
    """
    made = _MADE.setdefault(index, {})
    found = made.get(segment_tokens)
    if found is None:
        device = index.chunks.device
        if is_capturing(device):
            raise KernelInputError(
                "this batch's spans are not on the device yet and a CUDA graph is being captured; "
                "call once with the same lengths and exports before the capture"
            )
        spans, walks = _rows(index.lengths, exports, segment_tokens)
        inner = [i for i, walk in enumerate(walks) if walk[3] + 1 < walk[4]]
        found = Spans(
            torch.tensor(spans, dtype=torch.int32, device=device),
            torch.tensor(walks, dtype=torch.int32, device=device),
            torch.tensor(inner or [0], dtype=torch.int32, device=device),
            len(walks),
            len(inner),
        )
        made[segment_tokens] = found
    return found


def _rows(
    lengths: tuple[int, ...], exports: tuple[tuple[int, int, int], ...], segment_tokens: int
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    spans: list[tuple[int, ...]] = []
    walks: list[tuple[int, ...]] = []
    base = 0
    for n, length in enumerate(lengths):
        slot_at = {position: slot for s, position, slot in exports if s == n}
        ends = set(range(segment_tokens, length, segment_tokens)) if segment_tokens else set()
        ends.add(length)
        first_walk, first_span, start = len(walks), len(spans), 0
        shares = []
        for stop in sorted(ends | set(slot_at)):
            spans.append((base + start, base + stop, slot_at.get(stop, -1), n))
            start = stop
            if stop in ends:
                shares.append((first_span, len(spans) - first_span))
                first_span = len(spans)
        for place, share in enumerate(shares):
            walks.append((*share, n, place, len(shares), first_walk, 0, 0))
        base += length
    return spans, walks
