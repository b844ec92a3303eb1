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
    sequence, walks of its sequence, first part of its sequence, first stop, parts of its sequence;
    one program goes one walk. Without segments a sequence is one walk, and walk n is sequence n.
    Parts are the walks that ``part_tokens`` as segment would give.
    stops: int32 [stops + 1, 2]: a token at which a span's full chunk starts, the slot for the state
    before it; the last row names no token.
    inner: int32 [inner_count], the walks that another one of the same sequence follows; with
    ``group_tokens``, a multiple of the segment, those before its sequence's last such group.
    """

    spans: torch.Tensor
    walks: torch.Tensor
    stops: torch.Tensor
    inner: torch.Tensor
    walk_count: int
    inner_count: int
    has_stops: bool


_MADE: weakref.WeakKeyDictionary[ChunkIndex, dict[tuple[int, int, int, int], Spans]] = (
    weakref.WeakKeyDictionary()
)
"""Spans live as long as the chunk table they belong to, which captured graphs keep alive."""


def spans_of(
    index: ChunkIndex,
    exports: tuple[tuple[int, int, int], ...],
    segment_tokens: int = 0,
    stop_tokens: int = 0,
    part_tokens: int = 0,
    group_tokens: int = 0,
) -> Spans:
    """Spans of the batch that ``index`` was made for, with the same exports; made once.

    A walk ends after ``segment_tokens`` tokens of its sequence (0: only with the sequence). A span
    ends at an export; with ``stop_tokens``, the tokens of a chunk, an export between two full
    chunks is a stop of its span.
    """
    made = _MADE.setdefault(index, {})
    key = (segment_tokens, stop_tokens, part_tokens, group_tokens)
    found = made.get(key)
    if found is None:
        device = index.chunks.device
        if is_capturing(device):
            raise KernelInputError(
                "this batch's spans are not on the device yet and a CUDA graph is being captured; "
                "call once with the same lengths and exports before the capture"
            )
        spans, walks, stops = _rows(
            index.lengths, exports, segment_tokens, stop_tokens, part_tokens
        )
        last = max(1, group_tokens // segment_tokens) if segment_tokens else 1
        inner = [i for i, walk in enumerate(walks) if walk[3] < (walk[4] - 1) // last * last]
        found = Spans(
            torch.tensor(spans, dtype=torch.int32, device=device),
            torch.tensor(walks, dtype=torch.int32, device=device),
            torch.tensor(stops, dtype=torch.int32, device=device),
            torch.tensor(inner or [0], dtype=torch.int32, device=device),
            len(walks),
            len(inner),
            len(stops) > 1,
        )
        made[key] = found
    return found


def _rows(
    lengths: tuple[int, ...],
    exports: tuple[tuple[int, int, int], ...],
    segment_tokens: int,
    stop_tokens: int,
    part_tokens: int = 0,
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[tuple[int, int]]]:
    spans: list[tuple[int, ...]] = []
    walks: list[tuple[int, ...]] = []
    stops: list[tuple[int, int]] = []
    base = first_part = 0
    for n, length in enumerate(lengths):
        slot_at = {position: slot for s, position, slot in exports if s == n}
        ends = set(range(segment_tokens, length, segment_tokens)) if segment_tokens else set()
        ends.add(length)
        first_span, start = len(spans), 0
        first_stop = len(stops)
        shares = []
        edges = sorted(ends | set(slot_at))
        for stop, following in zip(edges, [*edges[1:], length], strict=True):
            whole = stop_tokens and (stop - start) % stop_tokens == 0
            if whole and stop not in ends and following - stop >= stop_tokens:
                stops.append((base + stop, slot_at[stop]))
                continue
            spans.append((base + start, base + stop, slot_at.get(stop, -1), n))
            start = stop
            if stop in ends:
                shares.append((first_span, len(spans) - first_span, first_stop))
                first_span, first_stop = len(spans), len(stops)
        parts = max(1, -(-length // part_tokens)) if part_tokens else 1
        for place, (first, count, at) in enumerate(shares):
            walks.append((first, count, n, place, len(shares), first_part, at, parts))
        first_part += parts
        base += length
    return spans, walks, [*stops, (-1, -1)]
