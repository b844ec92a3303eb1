"""Variable-length batches: cu_seqlens -> a table of chunks on the device, made once per batch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hybridplan.kernels.common.checks import KernelInputError, host_values, is_capturing, require


@dataclass(frozen=True, eq=False)
class ChunkIndex:
    """Where each chunk and each sequence lies in a packed batch of ``tokens`` tokens.

    chunks: int32 [chunk_count, 4]: first token, end token, sequence, export slot (-1: none).
    sequences: int32 [sequence_count, 4]: first token, end token, first chunk, chunk count.
    Exported positions end a chunk, so a state can be exported after any token.
    """

    lengths: tuple[int, ...]
    chunks: torch.Tensor
    sequences: torch.Tensor
    chunk_counts: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the whole batch."""
        return sum(self.lengths)

    @property
    def chunk_count(self) -> int:
        """Chunks of the whole batch."""
        return sum(self.chunk_counts)


def chunk_bounds(
    length: int, chunk_tokens: int, stops: Sequence[int] = ()
) -> tuple[tuple[int, int], ...]:
    """Chunks [start, end) of one sequence: a new one after ``chunk_tokens`` or at each stop."""
    bounds = []
    start = 0
    for stop in (*sorted(stops), length):
        while start < stop:
            end = min(start + chunk_tokens, stop)
            bounds.append((start, end))
            start = end
    return tuple(bounds)


def sequence_lengths(cu_seqlens: torch.Tensor | Sequence[int], tokens: int) -> tuple[int, ...]:
    """Lengths from cumulative starts (0, ..., tokens); raises if they fall or miss ``tokens``."""
    return _lengths(host_values("cu_seqlens", cu_seqlens), tokens)


@functools.lru_cache(maxsize=1024)
def _lengths(cu: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    require(len(cu) >= 2 and cu[0] == 0, f"cu_seqlens is {cu[:4]}..., it must start with 0")
    require(cu[-1] == tokens, f"cu_seqlens ends at {cu[-1]}, the inputs hold {tokens} tokens")
    lengths = tuple(b - a for a, b in itertools.pairwise(cu))
    require(min(lengths) >= 0, f"cu_seqlens falls: sequence lengths {lengths[:8]}")
    return lengths


def chunk_index(
    lengths: tuple[int, ...],
    chunk_tokens: int,
    device: torch.device,
    exports: tuple[tuple[int, int, int], ...] = (),
) -> ChunkIndex:
    """Chunk table of a batch, cached. ``exports``: (sequence, tokens from its start, slot)."""
    key = (lengths, chunk_tokens, device, exports)
    index = _recent.pop(key, None)
    if index is None:
        index = _captured.get(key)
    if index is None:
        if is_capturing(device):
            raise KernelInputError(
                "this batch's chunk table is not on the device yet and a CUDA graph is being "
                "captured; call once with the same lengths and exports before the capture"
            )
        index = _build(*key)
    _recent[key] = index
    if len(_recent) > _RECENT_TABLES:
        _recent.pop(next(iter(_recent)))
    if is_capturing(device):
        _captured[key] = index
    return index


_Key = tuple[tuple[int, ...], int, torch.device, tuple[tuple[int, int, int], ...]]
_RECENT_TABLES = 256
_recent: dict[_Key, ChunkIndex] = {}
_captured: dict[_Key, ChunkIndex] = {}
"""Tables that a captured graph reads: never freed."""


def _build(
    lengths: tuple[int, ...],
    chunk_tokens: int,
    device: torch.device,
    exports: tuple[tuple[int, int, int], ...],
) -> ChunkIndex:
    slot_at: dict[tuple[int, int], int] = {}
    for sequence, position, slot in exports:
        require(
            0 <= sequence < len(lengths),
            f"export names sequence {sequence}, the batch has {len(lengths)}",
        )
        require(
            0 < position <= lengths[sequence],
            f"export at token {position} of sequence {sequence}, which has {lengths[sequence]}",
        )
        require(
            (sequence, position) not in slot_at,
            f"token {position} of sequence {sequence} is exported twice",
        )
        slot_at[sequence, position] = slot
    chunks: list[tuple[int, int, int, int]] = []
    sequences: list[tuple[int, int, int, int]] = []
    base = 0
    for n, length in enumerate(lengths):
        stops = [p for s, p in slot_at if s == n]
        bounds = chunk_bounds(length, chunk_tokens, stops)
        sequences.append((base, base + length, len(chunks), len(bounds)))
        chunks += [(base + a, base + b, n, slot_at.get((n, b), -1)) for a, b in bounds]
        base += length
    table = torch.tensor(chunks or [(0, 0, 0, -1)], dtype=torch.int32, device=device)
    return ChunkIndex(
        lengths,
        table,
        torch.tensor(sequences, dtype=torch.int32, device=device),
        tuple(s[3] for s in sequences),
    )
